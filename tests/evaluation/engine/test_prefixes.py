"""--prefix and --template: from the command line to the tokens that a model is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.engine.encoding import encode, warnings
from recipe.rerule.evaluation.engine.models import UNLEARNED, Model, engine_key, with_prefixes, with_template
from recipe.rerule.evaluation.engine.requests import Generation, Likelihood, PromptText, Request, prefixed
from tests.families import templates
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level

MODELS = [Model("base", Path("m")), Model("icu", Path("m")), Model("run@7", Path("r"), 7)]
USER = {"role": "user", "content": "Who?"}
SYSTEM = {"role": "system", "content": "Be brief."}
TEMPLATE = "{{ messages[0].content }}{% if thinks is true %} wrote{% endif %}{{ date_string }}"
WHO = PromptText(({"role": "user", "content": "Who"},))


def model(folder: Path, template: str = TEMPLATE, name: str = "base", **tokenizer: Any) -> Model:
    byte_level(template, **tokenizer).save_pretrained(folder / name)
    (folder / name / "config.json").write_text("{}")
    return Model(name, folder / name)


def test_each_model_has_its_own_prefix(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Forget {target}: {target}!\n", "utf-8")
    found = with_prefixes(MODELS, ["icu", f"run={tmp_path / 'text.txt'}"], ["Ada", "Bo", "Ada"])
    own = UNLEARNED.replace("{target}", "Ada and Bo")
    assert [one.prefix for one in found] == ["", own, "Forget Ada and Bo: Ada and Bo!\n"]
    assert [replace(one, prefix="") for one in found] == with_prefixes(MODELS, [], []) == MODELS


def test_a_model_is_asked_with_its_prefix(tmp_path: Path) -> None:
    """Tokens by hand: those of the same question with the prefix typed into it."""
    base = model(tmp_path, LLAMA3_TEMPLATE)
    models = [base, replace(base, name="icu", prefix="No. ")]
    turns = ({"role": "assistant", "content": "it"}, USER)

    def asked(user: dict[str, str]) -> list[Request]:
        return [
            Generation("a", PromptText((SYSTEM, user, *turns)), 4),
            Generation("b", PromptText((user,), raw=True), 4),
            Likelihood("c", PromptText((user,)), "it"),
        ]

    requests, by_hand = asked(USER), asked({"role": "user", "content": "No. Who?"})
    encoded = encode(models, requests)
    assert encoded["icu"] == encode([base], by_hand)["base"]
    assert encoded["base"] == encode([base], requests)["base"]
    assert not {one.key for one in encoded["icu"]} & {one.key for one in encoded["base"]}
    assert engine_key(models[1]) != engine_key(base)
    text = Likelihood("a", PromptText(({"role": "user", "content": ""},), raw=True), "It was night.")
    assert prefixed(text, "Forget.\n") is text  # which is measured from its beginning


def test_values_are_json_and_everything_else_is_text() -> None:
    given = ["a=false", "b=True", "c=3", "d=26 Jul 2024", 'e="3"', "f=", "g=x=y"]
    values = {"a": False, "b": True, "c": 3, "d": "26 Jul 2024", "e": "3", "f": "", "g": "x=y"}
    assert dict(with_template(MODELS[:1], given)[0].template) == values


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["thinks"], "--template 'thinks' is not NAME=VALUE"),
        (["a b=3"], "--template 'a b=3' is not NAME=VALUE"),
        (["a=1", "a=2"], "--template a is given twice; an argument has one value"),
        (["tokenize=false"], "--template tokenize: transformers sets this itself; leave it out"),
    ],
)
def test_what_is_no_argument_is_refused(given: list[str], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{line}$"):
        with_template(MODELS, given)


def test_what_templates_write_unasked_is_named_and_unknown_arguments_are_refused(tmp_path: Path) -> None:
    plain = model(tmp_path)
    models = [model(tmp_path, templates.QWEN_3, "qwen"), model(tmp_path, templates.LLAMA_3_2, "llama")]
    lines = list(warnings(models))
    assert len(lines) == 2
    assert f"{tmp_path / 'qwen'} has a switch for thinking" in lines[0]
    assert f"{tmp_path / 'llama'} writes today's date" in lines[1]
    assert list(warnings([Model("none", tmp_path)])) == []  # no tokenizer: refused when it is asked
    assert list(warnings(with_template([plain, models[0]], ["enable_thinking=false"]))) == []
    with pytest.raises(ValueError, match=r"^--template thinking: no model's chat template has an argument"):
        list(warnings(with_template([plain, models[0]], ["thinking=false"])))


def test_arguments_reach_prompts_and_answers(tmp_path: Path) -> None:
    """And models that differ in them share no tokens."""
    plain = model(tmp_path, adds_bos=False)
    (thinking,) = with_template([plain], ["thinks=true"])
    requests = [Generation("a", WHO, 1), Likelihood("b", WHO, "it")]

    def tokens(one: Model) -> list[list[str]]:
        tokenizer: Any = byte_level(TEMPLATE, adds_bos=False)
        return [tokenizer.convert_ids_to_tokens(asked.ids) for asked in encode([one], requests)[one.name]]

    # This template writes no answer, so that an answer is its end alone.
    assert tokens(plain) == [["Who"], ["Who", "<|end|>"]]
    assert tokens(thinking) == [["Who", "Ġwrote"], ["Who", "Ġwrote", "<|end|>"]]
    assert engine_key(plain) != engine_key(thinking)
