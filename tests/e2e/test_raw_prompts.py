"""Raw rows and stop strings through both stages on the real stack, token by token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data_prep.contract import Row, read_rows, read_sft_rows, write_rows, write_sft_rows
from recipe.rerule.replay import RolloutGroup
from recipe.rerule.replay.state import read_groups, read_record
from recipe.rerule.runs.history import read_metrics
from recipe.rerule.schema import AGENT_LOOP
from tests.e2e.run_checks import assert_same_model
from tests.e2e.stack import Command, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(900)]

STEPS = 4
STOP = "r"  # which the micro world's model writes often, unlike newlines


def raw_world(world: Path, folder: Path) -> PreTrainedTokenizerFast:
    """Write the world with raw rows, and its model with the tokenizer of a base model; returns that."""
    shutil.copytree(world / "model", folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = None
    (folder / "model" / "chat_template.jinja").unlink(missing_ok=True)
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
    tokenizer.save_pretrained(folder / "model")
    for name in ("train", "val"):
        write_rows(folder / f"{name}.parquet", made_raw(read_rows(world / f"{name}.parquet"), "prompt"))
    write_sft_rows(folder / "sft.parquet", made_raw(read_sft_rows(world / "sft.parquet"), "messages"))
    return tokenizer


def made_raw(rows: list[Row], messages: str) -> list[Row]:
    """The rows with a prompt for a base model, which ends with a space."""
    for row in rows:
        row["extra_info"]["raw"] = True
        row[messages][0]["content"] = f"Question: {row[messages][0]['content']}\nAnswer: "
    return rows


def test_raw_rows_go_through_both_stages(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    tokenizer = raw_world(micro_world, tmp_path)
    first = command(
        "-m",
        "recipe.rerule.sft",
        "experiment=tiny",
        f"model.path={tmp_path / 'model'}",
        f"data.train_files={tmp_path / 'sft.parquet'}",
        f"trainer.default_local_dir={tmp_path / 'stage1'}",
    )
    assert first.wait() == 0, first.output[-3000:]
    assert AutoTokenizer.from_pretrained(tmp_path / "stage1" / "model").chat_template is None
    second = command(
        "-m",
        "recipe.rerule.main",
        *stage2_arguments(tmp_path, tmp_path / "run"),
        f"actor_rollout_ref.model.path={tmp_path / 'stage1' / 'model'}",
        f"actor_rollout_ref.rollout.agent.default_agent_loop={AGENT_LOOP}",
        f"data.stop=['{STOP}']",
        "replay.threshold=1.0",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.test_freq={STEPS}",
        f"trainer.validation_data_dir={tmp_path / 'validation'}",
    )
    assert second.wait() == 0, second.output[-3000:]
    metrics = read_metrics(tmp_path / "run")
    assert sorted(metrics) == list(range(1, STEPS + 1))
    # Log-probs belong to the tokens they came with, the one with the stop string included.
    assert_same_model(metrics)

    folder = tmp_path / "run" / f"global_step_{STEPS}" / "replay"
    groups = [stored.group() for stored in read_groups(folder, read_record(folder))]
    assert_prompts_are_the_texts(groups, read_rows(tmp_path / "train.parquet"), tokenizer)
    assert_responses_end_at_the_stop(groups, tokenizer)
    validated = (tmp_path / "validation" / f"{STEPS}.jsonl").read_text().splitlines()
    assert_texts_end_at_the_stop([json.loads(line)["output"] for line in validated], tokenizer)


def assert_prompts_are_the_texts(
    groups: list[RolloutGroup], rows: list[Row], tokenizer: PreTrainedTokenizerFast
) -> None:
    texts = {row["extra_info"]["index"]: row["prompt"][0]["content"] for row in rows}
    for group in groups:
        expected = tokenizer(texts[group.prompt_index]).input_ids
        assert group.prompt_ids.tolist() == expected
        assert expected[0] == tokenizer.bos_token_id


def assert_responses_end_at_the_stop(groups: list[RolloutGroup], tokenizer: PreTrainedTokenizerFast) -> None:
    """The token that completes the stop string is the last one of its response."""

    def text(ids: list[int]) -> str:
        # As the rollout engine reads it: `<|user|>` holds the stop string, but special tokens are no text.
        return tokenizer.decode(ids, skip_special_tokens=True)

    rows = [row.tolist() for group in groups for row in group.response_ids.split(group.lengths.tolist())]
    stopped = [row for row in rows if STOP in text(row)]
    assert len(stopped) > len(rows) / 2
    assert all(STOP not in text(row[:-1]) for row in stopped)


def assert_texts_end_at_the_stop(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> None:
    """Some token ends each text and holds the first stop string in it: validation keeps no ids."""
    tokens = [tokenizer.decode(token, skip_special_tokens=True) for token in range(len(tokenizer))]
    ends = [token for token in tokens if STOP in token]
    stopped = [text for text in texts if STOP in text]
    assert stopped
    for text in stopped:
        assert any(text.endswith(end) and STOP not in text[: -len(end)] for end in ends), text
