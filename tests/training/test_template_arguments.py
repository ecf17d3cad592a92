"""What chat templates write without being asked, and the arguments that they have."""

from __future__ import annotations

from typing import Any

import pytest

from recipe.rerule.training.template_arguments import uses, warnings
from tests.families import templates
from tests.made_tokenizers import byte_level, sentencepiece

DATE = "the chat template of {} writes today's date into every prompt"
THINKING = "the chat template of {} has a switch for thinking, which is not set"


def said(template: str | None, **arguments: Any) -> list[str]:
    tokenizer = byte_level(template, adds_bos=False)
    tokenizer.name_or_path = "mine"
    return [
        line.split(",")[0] if "date" in line else line.split(";")[0]
        for line in warnings(tokenizer, arguments)
    ]


def test_a_date_that_changes_is_said_until_it_is_fixed() -> None:
    assert said(templates.LLAMA_3_2) == [DATE.format("mine")]
    assert said(templates.LLAMA_3_2, date_string="26 Jul 2024") == []
    assert said(templates.LLAMA_3_1) == []


def test_a_switch_that_is_not_set_is_said() -> None:
    assert said(templates.QWEN_3) == [THINKING.format("mine")]
    assert said(templates.QWEN_3, enable_thinking=True) == said(templates.QWEN_3, enable_thinking=False) == []


@pytest.mark.parametrize("template", [templates.GEMMA_2, templates.PHI_3, templates.OLMO_2, None])
def test_other_templates_have_nothing_to_say(template: str | None) -> None:
    assert said(template) == []


def test_a_template_that_names_the_switch_and_ignores_it_is_quiet() -> None:
    assert said("{# enable_thinking, strftime_now #}{{ messages[0].content }}") == []
    assert said("{{ raise_exception('no') if enable_thinking is defined else '' }}") == []


def test_which_arguments_a_template_has() -> None:
    tokenizer = byte_level(templates.LLAMA_3_2)
    assert uses(tokenizer, "date_string")
    assert not uses(tokenizer, "date")
    assert not uses(sentencepiece(), "date_string")
