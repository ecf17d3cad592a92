"""Requests as token ids, by the tokenizer of the model they go to; what is wrong with one shows here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError

from recipe.rerule.evaluation.engine.answers import digest
from recipe.rerule.evaluation.engine.models import Model, context_length, engine_key
from recipe.rerule.evaluation.engine.requests import Generation, Likelihood, Request, prefixed
from recipe.rerule.training.prompts import (
    PromptError,
    answer_ids,
    chat_answer_ids,
    prompt_ids,
    require_chat_template,
    suffixed_prompt_ids,
    template_uses,
    template_warnings,
)

_LONGEST_REASON = 200
_SEED_DIGITS = 15
"""Hexadecimal: below 2 ** 60, so that a seed and the place of a sample add up to what vLLM takes."""


class RequestError(ValueError):
    """A request that cannot be asked; the message is one line and names it."""


@dataclass(frozen=True)
class Encoded:
    """What the engine is given of a request.

    Attributes:
        ids: token ids of the prompt and, of a likelihood, of the answer with its end.
        answer_start: how many of `ids` are the prompt's, where the rest is measured; None to generate.
        max_tokens: most new tokens. vLLM writes at least one, also where it only measures.
        stop: strings that end the answer.
        samples: how many are drawn; 0 for the greedy answer.
        temperature: of the samples.
    """

    ids: list[int]
    answer_start: int | None
    max_tokens: int
    stop: tuple[str, ...]
    samples: int = 0
    temperature: float = 1.0

    @cached_property
    def key(self) -> str:
        """Equal for requests that the same model must answer alike."""
        return digest(asdict(self))

    @property
    def engine_seed(self) -> int:
        """The seed of the first sample; that of sample i is larger by i.

        One seed for all prompts would give them the same random numbers: their answers would depend on each
        other, and intervals over prompts would be too narrow.
        """
        return int(digest([0, self.ids])[:_SEED_DIGITS], 16)

    @property
    def sequences(self) -> int:
        """How many the engine writes."""
        return max(1, self.samples)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence that answering can take."""
        return len(self.ids) + self.max_tokens


def encode(models: Sequence[Model], requests: Sequence[Request]) -> dict[str, list[Encoded]]:
    """Every request as each model's tokenizer has it: {model name: one a request, in order}.

    Models that differ in weights alone share one list. A model with a prefix is asked with it.

    Raises:
        RequestError: no requests, an id that occurs twice, an empty answer or prompt, a bad limit, an answer
            without tokens of its own, messages a chat template refuses, more tokens than a model takes, or a
            model without a readable tokenizer.
        PromptError: chat prompts, and a model without a chat template.
        ValueError: a configuration of a model that is no JSON object.
    """
    if not requests:
        raise RequestError("there are no requests: nothing to ask the models")
    for request in requests:
        if isinstance(request, Likelihood) and not request.answer:
            raise RequestError(f"request {request.id}: the answer to measure is empty")
        if isinstance(request, Generation) and request.max_tokens < 1:
            raise RequestError(
                f"request {request.id}: max_tokens is {request.max_tokens}; at least 1 is needed"
            )
    keys = {model.name: engine_key(model) for model in models}
    by_key: dict[str, list[Encoded]] = {}
    for model in models:
        key = keys[model.name]
        if key in by_key:
            continue
        tokenizer, context = load_tokenizer(model), context_length(model)
        if not all(request.prompt.raw for request in requests):
            require_chat_template(tokenizer)
        by_key[key] = []
        for request in requests:
            one = encode_one(tokenizer, prefixed(request, model.prefix), dict(model.template))
            if context is not None and one.length > context:
                raise RequestError(
                    f"request {request.id}: {len(one.ids)} tokens and {one.max_tokens} new ones do not fit "
                    f"into the context of model {model.name}, {context} tokens"
                )
            by_key[key].append(one)
    return {name: by_key[key] for name, key in keys.items()}


def load_tokenizer(model: Model) -> Any:
    """The tokenizer in the model's folder. Raises RequestError where none can be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model.path)
    # Whatever is wrong with its files: transformers lets errors of many kinds through.
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_REASON]}"
        raise RequestError(
            f"model {model.name}: the tokenizer in {model.path} cannot be loaded ({reason})"
        ) from error


def encode_one(
    tokenizer: Any, request: Request, template: Mapping[str, Any] = MappingProxyType({})
) -> Encoded:
    """One request as a tokenizer has it; `template`: further arguments of its chat template.

    Raises RequestError naming the request.
    """
    prompt, answer = request.prompt, request.answer if isinstance(request, Likelihood) else ""
    messages, ids = prompt.messages, list[int]()
    try:
        if prompt.raw:
            asked = prompt_ids(tokenizer, messages, raw=True)
        else:
            asked = suffixed_prompt_ids(tokenizer, messages, prompt.suffix, prompt.double_bos, **template)
        if answer and not prompt.raw:
            ids = chat_answer_ids(tokenizer, messages, answer, prompt.suffix, **template)
        elif answer and messages[0]["content"]:
            ids = answer_ids(tokenizer, answer)
        elif answer:
            # Unlike an answer, a text begins as the tokenizer lets it: with sentencepiece's space, for one.
            whole = prompt_ids(tokenizer, [{"role": "user", "content": answer}], raw=True)
            ids = [*whole[len(asked) :], answer_ids(tokenizer, answer)[-1]]
    except (PromptError, TemplateError) as error:
        raise RequestError(f"request {request.id}: {' '.join(str(error).split())}") from error
    if not asked:
        raise RequestError(
            f"request {request.id}: the prompt is empty, and this tokenizer adds no BOS, which a text "
            "measured from its beginning needs; leave --texts out"
        )
    if isinstance(request, Likelihood):
        return Encoded([*asked, *ids], len(asked), 1, ())
    return Encoded(asked, None, request.max_tokens, request.stop, request.samples, request.temperature)


def warnings(models: Sequence[Model]) -> Iterator[str]:
    """What the chat templates of the models write without being asked, in one line each.

    A model whose tokenizer cannot be loaded is left to `encode`, which refuses it.

    Raises ValueError: an argument that no model's chat template has.
    """
    tokenizers = []
    for model in {engine_key(one): one for one in models}.values():
        with contextlib.suppress(RequestError):
            tokenizers.append(load_tokenizer(model))
    for name, _ in models[0].template:
        if tokenizers and not any(template_uses(one, name) for one in tokenizers):
            raise ValueError(f"--template {name}: no model's chat template has an argument of this name")
    for tokenizer in tokenizers:
        yield from template_warnings(tokenizer, dict(models[0].template))
