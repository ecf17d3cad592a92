"""What chat templates write without being asked, and the arguments that they have."""

from __future__ import annotations

from typing import Any

import pytest

from recipe.rerule.training.template_arguments import uses, warnings
from tests.families import templates
from tests.made_tokenizers import byte_level

DATE = "the chat template of mine writes today's date into every prompt"
THINKING = "the chat template of mine has a switch for thinking, which is not set"


@pytest.mark.parametrize(
    ("template", "arguments", "line"),
    [
        (templates.LLAMA_3_2, {}, DATE),
        (templates.LLAMA_3_2, {"date_string": "26 Jul 2024"}, None),
        (templates.LLAMA_3_1, {}, None),
        (templates.QWEN_3, {}, THINKING),
        *((templates.QWEN_3, {"enable_thinking": value}, None) for value in (True, False)),
        (None, {}, None),
        # One that names the switch and ignores it, and one that refuses it.
        ("{# enable_thinking, strftime_now #}{{ messages[0].content }}", {}, None),
        ("{{ raise_exception('no') if enable_thinking is defined else '' }}", {}, None),
    ],
)
def test_what_is_said(template: str | None, arguments: dict[str, Any], line: str | None) -> None:
    tokenizer = byte_level(template, adds_bos=False)
    tokenizer.name_or_path = "mine"
    found = list(warnings(tokenizer, arguments))
    assert len(found) == (line is not None)
    assert all(text.startswith(line or "") for text in found)


def test_which_arguments_a_template_has() -> None:
    tokenizer = byte_level(templates.LLAMA_3_2)
    assert (uses(tokenizer, "date_string"), uses(tokenizer, "date")) == (True, False)
    assert not uses(byte_level(None), "date_string")
