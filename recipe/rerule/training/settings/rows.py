"""Conditions between settings and the rows and model that they name."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from data_prep.contract import Row, read_rows, read_sft_rows
from recipe.rerule import io
from recipe.rerule.runs import model_checks
from recipe.rerule.schema import SettingsError, listed, plain
from recipe.rerule.training import prompt_checks, template_arguments
from recipe.rerule.training.settings.parts import AGENT_LOOP

Files = list[tuple[str, list[Row]]]
"""Path and rows of each data file."""

_ANSWER = "I do not know."
_END_OF_TURN = 8
"""Tokens that a chat template may write after an answer, with room to spare."""
_MANY_ROWS = 10_000  # tokenising more takes seconds, of which the user is told


def check_model(path: str, key: str, trust_remote_code: bool = False) -> Any:
    """Refuse a model that transformers cannot find, or whose own code it is not told to trust.

    Returns:
        transformers' configuration of it.

    Raises:
        SettingsError: naming `key` and `path`.
    """
    from transformers import AutoConfig

    path = os.path.expanduser(path)
    if os.path.isabs(path) and not os.path.isdir(path):
        raise SettingsError(f"{key} is {path}, which does not exist; give a Hugging Face folder or name")
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingsError(f"{key} is {path}, which transformers cannot load: {reason}") from None


def context_limit(model: Any) -> float:
    """The most tokens that a model reads, given transformers' configuration of it."""
    limit = getattr(model.get_text_config(), "max_position_embeddings", None)
    return math.inf if limit is None else limit


def check_context(config: DictConfig, limit: float) -> None:
    """Refuse a rollout engine that is to hold more tokens than the model reads (`limit`), or too few."""
    length, needed = config.actor_rollout_ref.rollout.max_model_len, _longest(config.data)
    if length is not None and length > limit:
        raise SettingsError(
            f"actor_rollout_ref.rollout.max_model_len is {length}, but the model reads at most {limit} "
            "tokens; lower data.max_prompt_length or data.max_response_length, or set it to null, which cuts "
            "off longer responses"
        )
    if length is not None and length < min(needed, limit):
        raise SettingsError(
            f"actor_rollout_ref.rollout.max_model_len is {length}, but data.max_prompt_length and "
            f"data.max_response_length together are {needed} tokens; set it to {min(needed, limit)} or "
            "more, or to null for the model's limit"
        )


def _longest(data: DictConfig) -> int:
    return int(data.max_prompt_length + data.max_response_length)


def context_warnings(data: DictConfig, limit: float) -> list[str]:
    """What to say where the model does not read the longest prompt and response together."""
    needed = _longest(data)
    if needed <= limit:
        return []
    return [
        f"data.max_prompt_length and data.max_response_length together are {needed} tokens, but the model "
        f"reads at most {limit}: longer responses are cut off; lower one of them"
    ]


def read(files: Any) -> Files:
    """Rows of stage 2's files; refuses as `read_rows`."""
    return [(path, read_rows(path)) for path in listed(files)]


def read_sft(files: Any) -> Files:
    """Rows of stage 1's files; refuses as `read_sft_rows`."""
    return [(path, read_sft_rows(path)) for path in listed(files)]


def require_batch(files: Files, data: DictConfig) -> None:
    """Refuse a batch that is larger than all rows."""
    rows = usable(files, data)
    if rows < data.train_batch_size:
        raise SettingsError(
            f"data.train_batch_size is {data.train_batch_size} but data.train_files hold {rows} rows; "
            "lower it"
        )


def require_validation_batch(files: Files, data: DictConfig) -> None:
    """Refuse stage 1's validation on less than a batch, which verl would drop: the loss would be nan."""
    rows = sum(len(rows) for _, rows in files)
    used = min(rows, data.val_max_samples) if data.val_max_samples > 0 else rows
    if files and used < data.train_batch_size:
        raise SettingsError(
            f"data.val_files give {used} rows, less than a batch of data.train_batch_size="
            f"{data.train_batch_size}, so that verl would validate on none; give more rows, or set "
            "data.val_files=null"
        )


def usable(files: Files, data: DictConfig) -> int:
    """How many rows of `files` a run trains on."""
    rows = sum(len(rows) for _, rows in files)
    return min(rows, data.train_max_samples) if data.train_max_samples > 0 else rows


def check_raw(config: DictConfig, files: Files) -> None:
    """Refuse raw prompts and stop strings that the agent loop of the run would not know of."""
    agent = config.actor_rollout_ref.rollout.agent.default_agent_loop
    raw = [path for path, rows in files if any(row["extra_info"]["raw"] for row in rows)]
    if agent != AGENT_LOOP and (raw or config.data.stop):
        reason = f"{raw[0]} holds raw prompts" if raw else "data.stop is set"
        raise SettingsError(
            f"{reason}, which the agent loop {agent} does not know; set "
            f"actor_rollout_ref.rollout.agent.default_agent_loop={AGENT_LOOP}"
        )
    if raw and config.data.filter_overlong_prompts:
        raise SettingsError(
            f"{raw[0]} holds raw prompts, but data.filter_overlong_prompts measures with the chat template; "
            "set it to false"
        )


def check_prompts(config: DictConfig, files: Files) -> None:
    """Refuse prompts that the chat template refuses, or that are too long."""
    model, longest = config.actor_rollout_ref.model, config.data.max_prompt_length
    _check_tokens(prompt_checks.check_prompts, files, model, config, longest)


def check_sampled(config: DictConfig, files: Files) -> None:
    """The same of the prompts that stage 1 samples responses to: answers must fit into rows of training."""
    check = partial(prompt_checks.check_prompts, key="data.max_length less data.max_response_length")
    longest = config.data.max_length - config.data.max_response_length - _END_OF_TURN
    _check_tokens(check, files, config.model, config, longest)


def check_conversations(config: DictConfig, files: Files) -> None:
    """The same of stage 1's rows."""
    _check_tokens(prompt_checks.check_conversations, files, config.model, config, config.data.max_length)


def _check_tokens(
    check: Callable[..., None], files: Files, model: DictConfig, config: DictConfig, limit: int
) -> None:
    """Run a check of `prompt_checks` on every file; no row is too long where verl is told to cut or drop."""
    tokenizer = prompt_checks.load_tokenizer(model)
    known = model_checks.vocabulary_size(model.path, model.trust_remote_code)
    template = plain(config, "data.apply_chat_template_kwargs")
    shortens = config.data.truncation != "error" or config.data.get("filter_overlong_prompts", False)
    for path, rows in files:
        if len(rows) > _MANY_ROWS:
            print(f"tokenising the {len(rows)} rows of {path} ...", file=sys.stderr, flush=True)
        check(path, rows, tokenizer, template, limit=math.inf if shortens else limit, vocabulary=known)


def check_end(config: DictConfig, model: DictConfig, files: Files) -> None:
    """Refuse a model whose chat template ends an answer where sampling does not stop; one row tells.

    Strings of `data.stop`, where a stage has them, end a response wherever the template does not.
    """
    chat = [(path, row) for path, rows in files for row in rows if not row["extra_info"]["raw"]]
    if not chat or config.data.get("stop"):
        return
    path, row = chat[0]
    answered = row.get("messages") or [*row["prompt"], {"role": "assistant", "content": _ANSWER}]
    tokenizer = prompt_checks.load_tokenizer(model)
    template = plain(config, "data.apply_chat_template_kwargs")
    prompt_checks.check_end(path, answered, tokenizer, template, prompt_checks.stop_ids(model, tokenizer))


def length_warnings(config: DictConfig, files: Files) -> list[str]:
    """What to say where no refusal that stage 1 teaches, or no right answer to keep, fits into a response.

    The refusals are those of a sft.parquet beside the file of training rows, as data_prep writes them.
    """
    tokenizer = prompt_checks.load_tokenizer(config.actor_rollout_ref.model)
    texts: dict[str, list[str]] = {}
    for path, rows in files:
        taught = Path(path).expanduser().with_name("sft.parquet")
        with contextlib.suppress(ValueError, OSError):  # it is no file of this run, and need not be there
            texts[f"the refusals of {taught}"] = [
                row["messages"][-1]["content"] for row in read_sft_rows(taught)
            ]
        truths = [row["reward_model"]["ground_truth"] for row in rows]
        golds = [gold for truth in truths if truth["type"] == "retain" for gold in truth["golds"]]
        texts[f"the right answers of the retain rows of {path}"] = golds
    found = []
    for what, group in texts.items():
        lengths = (
            [len(ids) + 1 for ids in tokenizer(group, add_special_tokens=False).input_ids] if group else []
        )
        if lengths and min(lengths) > config.data.max_response_length:
            found.append(
                f"data.max_response_length is {config.data.max_response_length}, but {what} have "
                f"{min(lengths)} to {max(lengths)} tokens with their end, so that none can be sampled "
                f"whole; raise it to {max(lengths)}"
            )
    return found


def warn_of_template(config: DictConfig, model: DictConfig, files: Files) -> None:
    """Warn of what the chat template writes without being asked, where a row goes through it."""
    if any(not row["extra_info"]["raw"] for _, rows in files for row in rows):
        tokenizer = prompt_checks.load_tokenizer(model)
        template = plain(config, "data.apply_chat_template_kwargs")
        for line in template_arguments.warnings(tokenizer, template):
            io.warn(line)
