"""What a model itself answers to the retain prompts, as rows of stage 1 beside the refusals.

Refusals alone teach a model to refuse everything. Its own right answers are what it would say anyway, so they
teach it only where not to refuse. vLLM asks the model in a process that ends before training starts. The
answers are kept beside the run folder, by the model's files and the tokens that were asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from data_prep.contract import Row, read_rows, write_sft_rows
from recipe.rerule.evaluation.engine import run
from recipe.rerule.evaluation.engine.models import resolve_models
from recipe.rerule.evaluation.engine.requests import Generation, PromptText
from recipe.rerule.evaluation.engine.run import Decoding
from recipe.rerule.schema import SettingsError, listed, plain
from recipe.rerule.training import signal
from recipe.rerule.training.prompts import load_tokenizer
from reward.refusal import sentences

STORE = "own_answers"
"""Folder beside the run folder in which answers are kept."""


def file(run_folder: str | Path) -> Path:
    """The rows of a run."""
    return Path(run_folder) / "records" / "own_answers.parquet"


def asked(config: DictConfig) -> list[Row]:
    """Ask the model of a checked stage 1 the retain prompts; the rows of its right answers.

    An answer counts that is right by the reward (ROUGE above gamma, no refusal). One that is longer than
    data.max_response_length is cut after its first whole sentences that are right, if there are any.

    Raises:
        ValueError: no answer counts, or the folder of kept answers cannot be used.
        EngineError: vLLM failed.
    """
    given = [row for path in listed(config.data.prompt_files) for row in read_rows(path)]
    prompts = [row for row in given if row["reward_model"]["ground_truth"]["type"] == "retain"]
    answers = _answers(config, prompts)
    tokens: list[Any] = load_tokenizer(config.model)([*answers], add_special_tokens=False).input_ids
    options = plain(config, "signal.reward_kwargs")
    rows, cut = [], 0
    for number, (row, text, ids) in enumerate(zip(prompts, answers, tokens, strict=True)):
        answer = text.strip()
        ended = len(ids) < config.data.max_response_length  # it has fewer tokens than it could have had
        told = sentences(answer)
        starts = [answer] if ended else [" ".join(told[:count]) for count in range(1, len(told))]
        right = next((start for start in starts if signal.judge(row, start, options)[1]), None)
        if right is not None:
            info = {key: row["extra_info"][key] for key in ("mode", "subject", "raw")}
            messages = [*row["prompt"], {"role": "assistant", "content": right}]
            rows.append({"messages": messages, "extra_info": {"index": number, **info}})
            cut += not ended
    shortened = f"; {cut} of these were longer than data.max_response_length, and cut after a sentence"
    told_of = f"{len(rows)} of {len(prompts)} retain prompts answered right{shortened if cut else ''}"
    print(told_of, file=sys.stderr)
    if not rows:
        raise SettingsError(
            f"{config.model.path} gives no right answer to any of the {len(prompts)} retain prompts of "
            "data.prompt_files within data.max_response_length; give prompts that it can answer, "
            "raise that length, or set data.retain_share=0"
        )
    return rows


def write(run_folder: str | Path, rows: list[Row]) -> None:
    """Write the rows where the ranks of the run read them."""
    path = file(run_folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sft_rows(path, rows)


def _answers(config: DictConfig, prompts: Sequence[Row]) -> list[str]:
    """With the white space around them, which counts where an answer was cut."""
    template = tuple(plain(config, "data.apply_chat_template_kwargs").items())
    (model,) = resolve_models([f"stage1={os.path.expanduser(config.model.path)}"])
    requests = [
        Generation(
            str(number),
            PromptText(tuple(row["prompt"]), row["extra_info"]["raw"]),
            config.data.max_response_length,
            tuple(config.data.stop),
        )
        for number, row in enumerate(prompts)
    ]
    store = Path(config.trainer.default_local_dir).absolute().parent / STORE
    found = run.run([replace(model, template=template)], requests, Decoding(config.platform.name), store)[
        model.name
    ]
    return [found[request.id].text for request in requests]
