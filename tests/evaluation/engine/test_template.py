"""--template NAME=VALUE: from the command line to the tokens that a model is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.engine.encoding import encode, warnings
from recipe.rerule.evaluation.engine.models import Model, engine_key, with_template
from recipe.rerule.evaluation.engine.requests import Generation, Likelihood, PromptText
from tests.families import templates
from tests.made_tokenizers import byte_level

TEMPLATE = "{{ messages[0].content }}{% if thinks is true %} wrote{% endif %}{{ date_string }}"
WHO = PromptText(({"role": "user", "content": "Who"},))


def model(folder: Path, template: str = TEMPLATE, name: str = "base") -> Model:
    byte_level(template, adds_bos=False).save_pretrained(folder / name)
    (folder / name / "config.json").write_text(json.dumps({}))
    return Model(name, folder / name)


def test_values_are_json_and_everything_else_is_text(tmp_path: Path) -> None:
    given = ["a=false", "b=True", "c=3", "d=26 Jul 2024", 'e="3"', "f=", "g=x=y"]
    (one,) = with_template([model(tmp_path)], given)
    values = {"a": False, "b": True, "c": 3, "d": "26 Jul 2024", "e": "3", "f": "", "g": "x=y"}
    assert dict(one.template) == values


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["thinks"], "--template 'thinks' is not NAME=VALUE"),
        (["=3"], "--template '=3' is not NAME=VALUE"),
        (["a b=3"], "--template 'a b=3' is not NAME=VALUE"),
        (["a=1", "a=2"], "--template a is given twice; an argument has one value"),
        (["tokenize=false"], "--template tokenize: transformers sets this itself; leave it out"),
    ],
)
def test_what_is_no_argument_is_refused(given: list[str], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{line}$"):
        with_template([model(tmp_path)], given)


def test_an_argument_that_no_template_has_is_refused(tmp_path: Path) -> None:
    models = [model(tmp_path), model(tmp_path, templates.QWEN_3, "qwen")]
    assert list(warnings(with_template(models, ["enable_thinking=false"]))) == []
    with pytest.raises(ValueError, match=r"^--template thinking: no model's chat template has an argument"):
        list(warnings(with_template(models, ["thinking=false"])))


def test_templates_that_write_more_than_was_asked_are_named(tmp_path: Path) -> None:
    models = [model(tmp_path, templates.QWEN_3, "qwen"), model(tmp_path, templates.LLAMA_3_2, "llama")]
    lines = list(warnings(models))
    assert len(lines) == 2
    assert f"{tmp_path / 'qwen'} has a switch for thinking" in lines[0]
    assert f"{tmp_path / 'llama'} writes today's date" in lines[1]
    assert list(warnings([Model("none", tmp_path)])) == []  # no tokenizer: refused when it is asked


def test_arguments_reach_prompts_and_answers(tmp_path: Path) -> None:
    """And models that differ in them share no tokens."""
    plain = model(tmp_path)
    (thinking,) = with_template([plain], ["thinks=true"])
    requests = [Generation("a", WHO, 1), Likelihood("b", WHO, "it")]

    def tokens(one: Model) -> list[list[str]]:
        tokenizer: Any = byte_level(TEMPLATE, adds_bos=False)
        return [tokenizer.convert_ids_to_tokens(asked.ids) for asked in encode([one], requests)[one.name]]

    # This template writes no answer, so that an answer is its end alone.
    assert tokens(plain) == [["Who"], ["Who", "<|end|>"]]
    assert tokens(thinking) == [["Who", "Ġwrote"], ["Who", "Ġwrote", "<|end|>"]]
    assert engine_key(plain) != engine_key(thinking)
