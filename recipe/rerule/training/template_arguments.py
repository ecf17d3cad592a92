"""Arguments of chat templates (`data.apply_chat_template_kwargs`, `evaluate model|attack --template`).

A template may write something that nobody asked for: today's date, or the beginning of thoughts where a
switch could leave them out. Prompts of one experiment then differ between days, or between training and
evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from jinja2 import TemplateError

Template = tuple[tuple[str, Any], ...]
"""Arguments of a chat template, as (name, value)."""
_DATE = "strftime_now"
"""The function by which templates ask transformers for today's date."""
_THINKING = "enable_thinking"
_QUESTION = [{"role": "user", "content": "Who?"}]


def warnings(tokenizer: Any, template: Mapping[str, Any]) -> Iterator[str]:
    """What to say of the prompts that a chat template makes, each in one line.

    Args:
        tokenizer: of transformers; without a chat template there is nothing to say.
        template: the further arguments that the template gets.
    """
    if not tokenizer.chat_template:
        return
    name = tokenizer.name_or_path
    if _differs(tokenizer, template, _DATE, (lambda _: "yesterday", lambda _: "today")):
        yield (
            f"the chat template of {name} writes today's date into every prompt, so that prompts differ "
            "from one day to the next; fix it with the template's own argument, often date_string, in "
            "training and in evaluation"
        )
    if _THINKING not in template and _differs(tokenizer, template, _THINKING, (True, False)):
        yield (
            f"the chat template of {name} has a switch for thinking, which is not set; set "
            f"{_THINKING}=false, or true, in training and in evaluation"
        )


def bind(tokenizer: Any, template: Template) -> Any:
    """The tokenizer, changed in place: its chat template gets these arguments in every call.

    Saved files of the tokenizer keep none of them.
    """
    if template:
        tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, **dict(template))
    return tokenizer


def uses(tokenizer: Any, name: str) -> bool:
    """Whether a chat template names an argument."""
    return re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template or "")) is not None


def _differs(tokenizer: Any, template: Mapping[str, Any], name: str, values: tuple[Any, Any]) -> bool:
    """Whether a prompt depends on the value of an argument. Of a template that refuses it: no."""
    if not uses(tokenizer, name):
        return False
    try:
        first, second = (
            tokenizer.apply_chat_template(
                _QUESTION, add_generation_prompt=True, tokenize=False, **{**template, name: value}
            )
            for value in values
        )
    except TemplateError:
        return False
    return bool(first != second)
