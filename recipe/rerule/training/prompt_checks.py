"""Checks, before anything starts, that the rows of a data file become tokens, and not too many.

Every row is tokenised once: about a second for 12,000 prompts with a fast tokenizer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jinja2 import TemplateError
from omegaconf import DictConfig

from data_prep.contract import Row
from recipe.rerule.training.prompts import (
    Messages,
    PromptError,
    batch_prompt_ids,
    prompt_ids,
    require_chat_template,
    turn_ids,
)


def load_tokenizer(model: DictConfig) -> Any:
    """The tokenizer that verl will use for a model, given verl's configuration of it.

    Raises:
        PromptError: transformers cannot load it.
    """
    from transformers import AutoTokenizer

    path = model.tokenizer_path or model.path
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise PromptError(f"{path} has no tokenizer that transformers can load: {reason}") from None
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer


def check_prompts(
    path: str,
    rows: Sequence[Row],
    tokenizer: Any,
    template: dict[str, Any],
    limit: float,
    vocabulary: int | None = None,
    key: str = "data.max_prompt_length",
) -> None:
    """Check the prompts of RL rows.

    Args:
        path: of their file, to be named.
        template: further arguments of the chat template (`data.apply_chat_template_kwargs`).
        limit: most tokens of a prompt, by the setting `key`; longer ones lose their beginning in verl.
        vocabulary: number of tokens that the model knows; None where that is not known.

    Raises:
        PromptError: naming the file and the first row that the template refuses, that is too long or that
            has a token unknown to the model, or the model where there is no template.
    """
    for number, (length, highest) in enumerate(_prompt_sizes(path, rows, tokenizer, template)):
        _check_known(path, number, highest, tokenizer, vocabulary)
        if length > limit:
            raise PromptError(
                f"{path}: row {number}: the prompt has {length} tokens where {key} is {limit}; "
                f"raise it or shorten the prompt"
            )


def check_conversations(
    path: str,
    rows: Sequence[Row],
    tokenizer: Any,
    template: dict[str, Any],
    limit: float,
    vocabulary: int | None = None,
) -> None:
    """Check stage-1 rows as `check_prompts` does; `limit` is for prompt and answer (`data.max_length`).

    Raises:
        PromptError: as `check_prompts`, or naming a row whose answer has no tokens of its own.
    """
    if not all(row["extra_info"]["raw"] for row in rows):
        require_chat_template(tokenizer)
    for number, row in enumerate(rows):
        messages, raw = row["messages"], row["extra_info"]["raw"]
        with _row_named(path, number):
            turns = [turn_ids(tokenizer, messages, turn, raw, **template) for turn in range(len(messages))]
        _check_known(
            path, number, max((token for turn in turns for token in turn), default=0), tokenizer, vocabulary
        )
        length = sum(map(len, turns))
        if length > limit:
            raise PromptError(
                f"{path}: row {number}: prompt and answer have {length} tokens where data.max_length is "
                f"{limit}; raise it or shorten them"
            )


def stop_ids(model: DictConfig, tokenizer: Any) -> set[int]:
    """The token ids at which vLLM ends a response: the tokenizer's EOS, and those of the generation config.

    Args:
        model: verl's configuration of the model.
        tokenizer: the model's.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(model.path)
    except OSError:  # there is none: its ids are those of config.json
        config = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        generation = GenerationConfig.from_model_config(config)
    eos = generation.eos_token_id
    return {*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id} - {None}


def check_end(
    path: str, answered: Messages, tokenizer: Any, template: dict[str, Any], stops: set[int]
) -> None:
    """Refuse a chat template that ends an answer with no token at which sampling stops.

    Such an end is taught and then sampled, but nothing stops there, and every response runs into the limit.

    Args:
        path: of the rows, to be named.
        answered: a conversation that ends with an answer.
        stops: as of `stop_ids`.

    Raises:
        PromptError: naming the tokens that end an answer, and those at which sampling stops.
    """
    turn = turn_ids(tokenizer, answered, len(answered) - 1, raw=False, **template)
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    # What follows the answer: a template may end a turn, break the line and end the text (Phi-3).
    text = next((n for n in range(len(turn), 0, -1) if not _is_end(tokenizer, turn[n - 1], special)), 0)
    end = [token for token in turn[text:] if token in special] or turn[text - 1 : text]
    if stops.isdisjoint(end):
        raise PromptError(
            f"{path}: the chat template of {tokenizer.name_or_path} ends an answer with "
            f"{_named(tokenizer, end)}, but sampling stops at {_named(tokenizer, sorted(stops))} alone, so "
            "that every response would run into its limit; add the token that ends an answer to eos_token_id "
            "in the model's generation_config.json, or mend the tokenizer's eos_token or template"
        )


def _is_end(tokenizer: Any, token: int, special: set[int]) -> bool:
    return token in special or not tokenizer.decode([token]).strip()


def _named(tokenizer: Any, ids: Sequence[int]) -> str:
    named = [
        f"{token!r} (id {number})"
        for number, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
    ]
    return " and ".join(named) or "no token"


def _check_known(path: str, number: int, highest: int, tokenizer: Any, vocabulary: int | None) -> None:
    """Refuse a row with a token that the model has no embedding for; others may be unknown to it."""
    if vocabulary is not None and highest >= vocabulary:
        token = tokenizer.convert_ids_to_tokens(highest)
        raise PromptError(
            f"{path}: row {number}: the tokenizer of {tokenizer.name_or_path} gives {token!r} the id "
            f"{highest}, but the model's config.json says vocab_size {vocabulary}; the two do not fit"
        )


def _prompt_sizes(
    path: str, rows: Sequence[Row], tokenizer: Any, template: dict[str, Any]
) -> list[tuple[int, int]]:
    """Number of tokens and highest token id of each row's prompt."""
    sizes = [(0, 0)] * len(rows)
    for raw in (True, False):
        chosen = {n: row["prompt"] for n, row in enumerate(rows) if row["extra_info"]["raw"] == raw}
        if chosen and not raw:
            require_chat_template(tokenizer)
        for number, ids in _ids_by_row(path, chosen, tokenizer, raw, template):
            sizes[number] = (len(ids), max(ids, default=0))
    return sizes


def _ids_by_row(
    path: str, prompts: dict[int, Messages], tokenizer: Any, raw: bool, template: dict[str, Any]
) -> Iterable[tuple[int, list[int]]]:
    """Row number and token ids of each prompt, tokenised together; where that fails, one by one."""
    if not prompts:
        return []
    try:
        return zip(prompts, batch_prompt_ids(tokenizer, [*prompts.values()], raw, **template), strict=True)
    except TemplateError:
        for number, messages in prompts.items():
            with _row_named(path, number):
                prompt_ids(tokenizer, messages, raw, **template)
        raise


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
