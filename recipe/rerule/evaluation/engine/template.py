"""Arguments of the models' chat templates: --template, as `data.apply_chat_template_kwargs` in training."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from recipe.rerule.evaluation.engine.encoding import RequestError, load_tokenizer
from recipe.rerule.evaluation.engine.models import Model, engine_key
from recipe.rerule.training import template_arguments

_OF_THE_CALL = (
    *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
    *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
    *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
)
"""What transformers' apply_chat_template takes for itself."""


def add_template_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --template."""
    parser.add_argument(
        "--template",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the chat templates, such as enable_thinking=false; give what training had as "
        "data.apply_chat_template_kwargs; repeat the option for more",
    )


def with_template(models: Sequence[Model], specs: Sequence[str]) -> list[Model]:
    """The models, all with the arguments that NAME=VALUE strings give.

    A value is JSON where it can be read as such, true and false in any spelling; anything else is a text.

    Raises:
        ValueError: a spec without a name or "=", a name given twice, or one that transformers takes itself.
    """
    arguments: dict[str, Any] = {}
    for spec in specs:
        name, separator, value = spec.partition("=")
        if not (separator and name.isidentifier()):
            raise ValueError(f"--template {spec!r} is not NAME=VALUE")
        if name in arguments:
            raise ValueError(f"--template {name} is given twice; an argument has one value")
        if name in _OF_THE_CALL:
            raise ValueError(f"--template {name}: transformers sets this itself; leave it out")
        arguments[name] = _value(value)
    return [replace(model, template=tuple(arguments.items())) for model in models]


def warnings(models: Sequence[Model]) -> Iterator[str]:
    """What the chat templates of the models write without being asked, in one line each.

    A model whose tokenizer cannot be loaded is left to `encode`, which refuses it.

    Raises:
        ValueError: an argument that no model's chat template has.
    """
    tokenizers = list(_tokenizers(models))
    for name, _ in models[0].template:
        if tokenizers and not any(template_arguments.uses(one, name) for one in tokenizers):
            raise ValueError(f"--template {name}: no model's chat template has an argument of this name")
    for tokenizer in tokenizers:
        yield from template_arguments.warnings(tokenizer, dict(models[0].template))


def _tokenizers(models: Sequence[Model]) -> Iterator[Any]:
    """One for all models that are asked the same tokens."""
    for model in {engine_key(one): one for one in models}.values():
        try:
            yield load_tokenizer(model)
        except RequestError:
            continue


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return json.loads(text)
    except ValueError:
        return text
