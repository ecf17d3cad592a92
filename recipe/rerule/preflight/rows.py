"""The rows of data files: what they say about themselves, and the tokens that they become.

Training on probes is refused. What probably is a mistake but can be meant is one warning each. Every row is
tokenised once: about a second for 12,000 prompts with a fast tokenizer.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from omegaconf import DictConfig

from data_prep.contract import SIDES, Row, control_character_place, read_sft_rows
from recipe.rerule.runs import model_checks
from recipe.rerule.schema import AGENT_LOOP, plain, refuse
from recipe.rerule.training.prompts import (
    Messages,
    PromptError,
    batch_prompt_ids,
    load_tokenizer,
    prompt_ids,
    require_chat_template,
    template_warnings,
    turn_ids,
)
from reward.refusal import RefusalPhrases
from reward.score import usable_golds

Files = Sequence[tuple[str, list[Row]]]
"""Path and rows of each data file."""

_END_OF_TURN = 8
"""Tokens that a chat template may write after an answer, with room to spare."""
_MANY_ROWS = 10_000  # tokenising more takes seconds, of which the user is told


def refuse_probes(files: Files, key: str = "data.train_files") -> None:
    """Refuse rows that models are evaluated on. Raises SettingsError."""
    for path, number, row in _rows(files):
        refuse(
            row["extra_info"].get("split") == "probe",
            f"{path}: row {number}: extra_info.split is 'probe': a model must not be trained on the rows "
            f"that it is evaluated on; take it out of {key}",
        )


def stage2_warnings(train: Files, phrases: RefusalPhrases | None = None) -> Iterator[str]:
    """What to say of prompts of stage 2: a side without rows, and leaks that the reward cannot see.

    phrases: that extend the refusal detector of the reward.
    """
    counts = _counts(train)
    if not counts["forget"]:
        yield "data.train_files hold no row of type forget, so nothing is to be forgotten"
    if not counts["retain"]:
        yield (
            "data.train_files hold no row of type retain; without boundary prompts a model learns to refuse "
            "everything"
        )
    unseen = sum(
        not usable_golds(truth["golds"], row["extra_info"]["query"], truth["keyword"], phrases)
        for _, _, row in _rows(train)
        if (truth := row["reward_model"]["ground_truth"])["type"] == "forget"
    )
    if unseen:
        yield (
            f"leaks cannot be seen for {unseen} of {counts['forget']} forget rows of data.train_files, whose "
            "golds are refusals or hold no word beyond question and keyword; give right answers as golds"
        )


def warnings(train: Files, validation: Files) -> Iterator[str]:
    """What to say of rows of any stage, of each mistake the first: repetitions, wrong files, characters."""
    yield from _repetitions(train)
    for path, number, row in _rows(train):
        if row["extra_info"].get("split") == "val":
            yield (
                f"{path}: row {number}: extra_info.split is 'val': validation rows are drawn from the "
                "probes, so that evaluation would measure what was trained"
            )
            break
    # Where some are not trained on nothing is wrong: a benchmark may validate on its forget rows.
    trained = {_said(row) for _, _, row in _rows(train)}
    if validation and all(_said(row) in trained for _, _, row in _rows(validation)):
        yield (
            "every row of data.val_files is also in data.train_files, so that validation measures what was "
            "trained; give other rows"
        )
    for path, number, row in _rows([*train, *validation]):
        if place := control_character_place(row):
            yield f"{path}: row {number}: {place}; models see it as part of the text"
            break


def check_sampled_prompts(files: Files) -> None:
    """Refuse prompts that stage 1 samples responses to. Raises SettingsError."""
    refuse_probes(files, "data.prompt_files")
    counts = _counts(files)
    for side in SIDES:
        refuse(
            not counts[side],
            f"data.prompt_files hold no row of type {side}, so that nothing can be said of that side; "
            "add some, or set data.prompt_files=null data.retain_share=0 stop=none",
        )


def side_warnings(train: Files, data: DictConfig) -> Iterator[str]:
    """Check that `data.sides` can be kept, and warn of sides that a batch has too unequally.

    Raises SettingsError: sides are to be balanced, and one has no row, or the data set is not verl's own.
    """
    counts = _counts(train)
    few, many = sorted(SIDES, key=counts.__getitem__)
    if data.sides == "balanced":
        refuse(
            not counts[few],
            f"data.sides is balanced, but data.train_files hold no row of type {few}; add some, "
            "or set data.sides=as_given",
        )
        refuse(
            data.custom_cls.path is not None,
            "data.sides is balanced, but of a data set of your own (data.custom_cls) the sides are not "
            "known; set data.sides=as_given",
        )
    elif 0 < 3 * counts[few] < counts.total():
        share = data.train_batch_size * counts[few] / counts.total()
        yield (
            f"data.train_files hold {counts[few]} {few} and {counts[many]} {many} prompts, so that a "
            f"batch of {data.train_batch_size} has {share:.1f} of the {few} side on average; set "
            "data.sides=balanced, which gives each batch half of each"
        )


def usable(files: Files, data: DictConfig) -> int:
    """How many rows of `files` a run trains on; refuses a batch that is larger."""
    rows = sum(len(rows) for _, rows in files)
    rows = min(rows, data.train_max_samples) if data.train_max_samples > 0 else rows
    refuse(
        rows < data.train_batch_size,
        f"data.train_batch_size is {data.train_batch_size} but data.train_files hold {rows} rows; lower it",
    )
    return rows


def remaining(config: DictConfig, model: DictConfig, files: Files) -> int:
    """How many rows of stage 2 a run trains on that drops long prompts; refuses a batch that is larger.

    As verl does, rows are drawn first (data.train_max_samples), and dropped then. The rows are checked ones.
    """
    data, tokenizer = config.data, load_tokenizer(model)
    template = plain(config, "data.apply_chat_template_kwargs")
    prompts = (_prompt_ids(path, rows, tokenizer, template) for path, rows in files)
    fits = [len(ids) <= data.max_prompt_length for found in prompts for _, ids in found]
    total, most = len(fits), data.train_max_samples
    drawn: Any = range(most if 0 < most < total else total)
    if data.shuffle and len(drawn) < total:
        drawn = np.random.default_rng(data.seed).choice(total, len(drawn), replace=False)
    count = sum(fits[number] for number in drawn)
    refuse(
        count < data.train_batch_size,
        f"data.filter_overlong_prompts is true, and {count} of the {len(drawn)} rows of data.train_files "
        f"have at most {data.max_prompt_length} tokens (data.max_prompt_length), fewer than "
        f"data.train_batch_size={data.train_batch_size}; raise data.max_prompt_length, or lower the batch",
    )
    return count


def require_validation_batch(files: Files, data: DictConfig) -> None:
    """Refuse stage 1's validation on less than a batch, which verl would drop: the loss would be nan."""
    rows = sum(len(rows) for _, rows in files)
    used = min(rows, data.val_max_samples) if data.val_max_samples > 0 else rows
    refuse(
        bool(files) and used < data.train_batch_size,
        f"data.val_files give {used} rows, less than a batch of data.train_batch_size="
        f"{data.train_batch_size}, so that verl would validate on none; give more rows, or set "
        "data.val_files=null",
    )


def check_raw(config: DictConfig, files: Files) -> None:
    """Refuse raw prompts and stop strings that the agent loop of the run would not know of."""
    agent = config.actor_rollout_ref.rollout.agent.default_agent_loop
    raw = next((path for path, _, row in _rows(files) if row["extra_info"]["raw"]), None)
    refuse(
        agent != AGENT_LOOP and bool(raw or config.data.stop),
        f"{f'{raw} holds raw prompts' if raw else 'data.stop is set'}, which the agent loop {agent} does not "
        f"know; set actor_rollout_ref.rollout.agent.default_agent_loop={AGENT_LOOP}",
    )
    refuse(
        bool(raw and config.data.filter_overlong_prompts),
        f"{raw} holds raw prompts, but data.filter_overlong_prompts measures with the chat template; "
        "set it to false",
    )


# Tokens.


def token_warnings(config: DictConfig, model: DictConfig, files: Files) -> Iterator[str]:
    """What to say of what the chat template writes without being asked, where a row goes through it.

    Refused are rows that the template refuses, that are too long, or that have a token unknown to the model,
    and a template that does not end an answer. No row is too long where verl is told to cut or drop.

    Args:
        model: verl's configuration of the model.
        files: rows of stage 1, or prompts: of stage 2, or those that stage 1 samples responses to, whose
            answers must fit into rows of training.

    Raises PromptError: naming the file and the row, or the model where it has no chat template.
    """
    data = config.data
    tokenizer, template = load_tokenizer(model), plain(config, "data.apply_chat_template_kwargs")
    vocabulary = model_checks.vocabulary_size(model.path, model.trust_remote_code)
    for path, rows in files:
        if "max_prompt_length" in data:
            key, limit = "data.max_prompt_length", data.max_prompt_length
        elif "prompt" in rows[0]:
            key = "data.max_length less data.max_response_length"
            limit = data.max_length - data.max_response_length - _END_OF_TURN
        else:
            key, limit = "data.max_length", data.max_length
        if data.truncation != "error" or data.get("filter_overlong_prompts", False):
            limit = math.inf
        if len(rows) > _MANY_ROWS:
            print(f"tokenising the {len(rows)} rows of {path} ...", file=sys.stderr, flush=True)
        check_rows(path, rows, tokenizer, template, limit, vocabulary, key)
    chat = [(path, row) for path, _, row in _rows(files) if not row["extra_info"]["raw"]]
    if chat and not data.get("stop"):  # strings of data.stop end a response wherever the template does not
        _check_end(*chat[0], model, tokenizer, template)
    if chat:
        yield from template_warnings(tokenizer, template)


def check_rows(
    path: str,
    rows: Sequence[Row],
    tokenizer: Any,
    template: dict[str, Any],
    limit: float,
    vocabulary: int | None = None,
    key: str = "data.max_length",
) -> None:
    """Check the rows of one file: prompts, or conversations of stage 1.

    Args:
        path: of their file, to be named.
        template: further arguments of the chat template (`data.apply_chat_template_kwargs`).
        limit: most tokens of a prompt or conversation, by the setting `key`.
        vocabulary: number of tokens that the model knows; None where that is not known.

    Raises PromptError: as of `token_warnings`, or naming a row whose answer has no tokens of its own.
    """
    if not all(row["extra_info"]["raw"] for row in rows):
        require_chat_template(tokenizer)
    trained = "messages" in rows[0]
    sizes = _conversation_ids if trained else _prompt_ids
    for number, ids in sizes(path, rows, tokenizer, template):
        highest = max(ids, default=0)
        if vocabulary is not None and highest >= vocabulary:
            token = tokenizer.convert_ids_to_tokens(highest)
            raise PromptError(
                f"{path}: row {number}: the tokenizer of {tokenizer.name_or_path} gives {token!r} the id "
                f"{highest}, but the model's config.json says vocab_size {vocabulary}; the two do not fit"
            )
        if len(ids) > limit:
            what, shorter = (
                ("prompt and answer have", "them") if trained else ("the prompt has", "the prompt")
            )
            raise PromptError(
                f"{path}: row {number}: {what} {len(ids)} tokens where {key} is {limit}; raise it or shorten "
                f"{shorter}"
            )


def _conversation_ids(
    path: str, rows: Sequence[Row], tokenizer: Any, template: dict[str, Any]
) -> Iterator[tuple[int, list[int]]]:
    for number, row in enumerate(rows):
        messages, raw = row["messages"], row["extra_info"]["raw"]
        with _row_named(path, number):
            turns = [turn_ids(tokenizer, messages, turn, raw, **template) for turn in range(len(messages))]
        yield number, [token for turn in turns for token in turn]


def _prompt_ids(
    path: str, rows: Sequence[Row], tokenizer: Any, template: dict[str, Any]
) -> Iterator[tuple[int, list[int]]]:
    """Row number and token ids of each prompt in order, tokenised together; where that fails, one by one."""
    found: dict[int, list[int]] = {}
    for raw in (True, False):
        prompts = {n: row["prompt"] for n, row in enumerate(rows) if row["extra_info"]["raw"] == raw}
        if not prompts:
            continue
        try:
            ids = batch_prompt_ids(tokenizer, [*prompts.values()], raw, **template)
        except TemplateError:
            for number, messages in prompts.items():
                with _row_named(path, number):
                    prompt_ids(tokenizer, messages, raw, **template)
            raise
        found |= dict(zip(prompts, ids, strict=True))
    yield from sorted(found.items())


@contextlib.contextmanager
def _row_named(path: str, number: int) -> Iterator[None]:
    """Say which row it is that a template or `prompts` refuses."""
    try:
        yield
    except TemplateError as error:
        reason = f"the chat template refuses it: {' '.join(str(error).split())}"
        raise PromptError(f"{path}: row {number}: {reason}") from None
    except PromptError as error:
        raise PromptError(f"{path}: row {number}: {error}") from None


def _check_end(path: str, row: Row, model: DictConfig, tokenizer: Any, template: dict[str, Any]) -> None:
    """Refuse a chat template that ends an answer with no token at which sampling stops; one row tells.

    Such an end is taught and then sampled, but nothing stops there, and every response runs into the limit.

    Raises PromptError: naming the tokens that end an answer, and those at which sampling stops.
    """
    answered: Messages = row.get("messages") or [*row["prompt"], {"role": "assistant", "content": "No."}]
    turn = turn_ids(tokenizer, answered, len(answered) - 1, raw=False, **template)
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    # What follows the answer: a template may end a turn, break the line and end the text (Phi-3).
    text = len(turn)
    while text and (turn[text - 1] in special or not tokenizer.decode([turn[text - 1]]).strip()):
        text -= 1
    end = [token for token in turn[text:] if token in special] or turn[text - 1 : text]
    stops = _stop_ids(model, tokenizer)
    if stops.isdisjoint(end):
        raise PromptError(
            f"{path}: the chat template of {tokenizer.name_or_path} ends an answer with "
            f"{_named(tokenizer, end)}, but sampling stops at {_named(tokenizer, sorted(stops))} alone, so "
            "that every response would run into its limit; add the token that ends an answer to eos_token_id "
            "in the model's generation_config.json, or mend the tokenizer's eos_token or template"
        )


def _stop_ids(model: DictConfig, tokenizer: Any) -> set[int]:
    """The token ids at which vLLM ends a response: the tokenizer's EOS and the generation config's."""
    from transformers import AutoConfig, GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(model.path)
    except OSError:  # there is none: its ids are those of config.json
        config = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        generation = GenerationConfig.from_model_config(config)
    eos = generation.eos_token_id
    return {*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id} - {None}


def _named(tokenizer: Any, ids: Sequence[int]) -> str:
    tokens = zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
    return " and ".join(f"{token!r} (id {number})" for number, token in tokens) or "no token"


def length_warnings(config: DictConfig, files: Files) -> Iterator[str]:
    """What to say where no refusal that stage 1 teaches, or no right answer to keep, fits into a response.

    The refusals are those of a sft.parquet beside the file of training rows, as data_prep writes them.
    """
    tokenizer, limit = load_tokenizer(config.actor_rollout_ref.model), config.data.max_response_length
    texts: dict[str, list[str]] = {}
    for path, rows in files:
        taught = Path(path).expanduser().with_name("sft.parquet")
        with contextlib.suppress(ValueError, OSError):  # it is no file of this run, and need not be there
            refusals = [row["messages"][-1]["content"] for row in read_sft_rows(taught)]
            texts[f"the refusals of {taught}"] = refusals
        truths = [row["reward_model"]["ground_truth"] for row in rows]
        golds = [gold for truth in truths if truth["type"] == "retain" for gold in truth["golds"]]
        texts[f"the right answers of the retain rows of {path}"] = golds
    for what, group in texts.items():
        ids = tokenizer(group, add_special_tokens=False).input_ids if group else []
        lengths = [len(one) + 1 for one in ids]
        if lengths and min(lengths) > limit:
            yield (
                f"data.max_response_length is {limit}, but {what} have {min(lengths)} to {max(lengths)} "
                f"tokens with their end, so that none can be sampled whole; raise it to {max(lengths)}"
            )


def _rows(files: Files) -> Iterator[tuple[str, int, Row]]:
    """Every row with its file and number."""
    return ((path, number, row) for path, rows in files for number, row in enumerate(rows))


def _counts(files: Files) -> Counter[str]:
    """Rows by side."""
    return Counter(row["reward_model"]["ground_truth"]["type"] for _, _, row in _rows(files))


def _said(row: Row) -> str:
    return str(row["messages"] if "messages" in row else row["prompt"])


def _repetitions(train: Files) -> Iterator[str]:
    """A row that occurs twice, and two rows of one index that are not the same; of each kind the first."""
    seen: dict[int, tuple[str, int, Row]] = {}
    found: dict[str, str] = {}
    for path, number, row in _rows(train):
        index = row["extra_info"]["index"]
        before, line, first = seen.setdefault(index, (path, number, row))
        if first is row:
            continue
        here, there = f"{path}: row {number}", f"row {line} of {before}"
        if _said(row) == _said(first):
            found.setdefault("row", f"{here} is also {there}, and will count twice in each epoch")
        else:
            found.setdefault(
                "index",
                f"{here}: extra_info.index {index} is also that of {there}, another prompt; what is kept by "
                "index will mix the two",
            )
    yield from found.values()
