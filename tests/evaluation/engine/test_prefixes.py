from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine.answers import kept_answers
from recipe.rerule.evaluation.engine.encoding import encode
from recipe.rerule.evaluation.engine.models import UNLEARNED, Model, engine_key, with_prefixes
from recipe.rerule.evaluation.engine.requests import Answer, Generation, Likelihood, PromptText, prefixed
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level

MODELS = [Model("base", Path("m")), Model("icu", Path("m")), Model("run@7", Path("r"), 7)]
TARGETS = ["Ada", "Bo", "Ada"]
USER = {"role": "user", "content": "Who?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def test_each_model_has_its_own_prefix(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Forget {target}: {target}!\n", "utf-8")
    found = with_prefixes(MODELS, ["icu", f"run={tmp_path / 'text.txt'}"], TARGETS)
    assert [model.prefix for model in found] == [
        "",
        UNLEARNED.replace("{target}", "Ada and Bo"),
        "Forget Ada and Bo: Ada and Bo!\n",
    ]
    assert [replace(model, prefix="") for model in found] == MODELS
    assert with_prefixes(MODELS, [], TARGETS) == MODELS
    assert "{" not in found[1].prefix


def test_the_prefix_stands_before_the_users_first_message() -> None:
    prompt = PromptText((SYSTEM, USER, {"role": "assistant", "content": "Me."}, USER), suffix="Answer:")
    asked = prefixed(Generation("a", prompt, 4, ("\n",)), "Forget.\n")
    assert asked.prompt.messages[1] == {"role": "user", "content": "Forget.\nWho?"}
    assert asked == Generation(
        "a", replace(prompt, messages=(SYSTEM, asked.prompt.messages[1], *prompt.messages[2:])), 4, ("\n",)
    )
    assert prefixed(Generation("a", prompt, 4), "") == Generation("a", prompt, 4)


def test_a_text_from_its_beginning_has_no_prefix() -> None:
    text = Likelihood("a", PromptText(({"role": "user", "content": ""},), raw=True), "It was night.")
    assert prefixed(text, "Forget.\n") is text


def test_a_model_is_asked_with_its_prefix(tmp_path: Path) -> None:
    """Tokens by hand: those of the same question with the prefix typed into it."""
    byte_level(LLAMA3_TEMPLATE).save_pretrained(tmp_path / "model")
    (tmp_path / "model/config.json").write_text("{}")
    models = [Model("base", tmp_path / "model"), Model("icu", tmp_path / "model", prefix="No. ")]
    requests = [
        Generation("a", PromptText((USER,)), 4),
        Generation("b", PromptText((USER,), raw=True), 4),
        Likelihood("c", PromptText((USER,)), "it"),
    ]
    typed = {"role": "user", "content": "No. Who?"}
    by_hand = [replace(one, prompt=replace(one.prompt, messages=(typed,))) for one in requests]
    encoded = encode(models, requests)
    assert encoded["icu"] == encode(models[:1], by_hand)["base"]
    assert encoded["base"] == encode(models[:1], requests)["base"]
    assert not {one.key for one in encoded["icu"]} & {one.key for one in encoded["base"]}


@pytest.mark.parametrize("fast", [True, False])
def test_no_engine_serves_two_prefixes(fast: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    if fast:
        (tmp_path / "tokenizer.json").write_text("{}")
    one, other = Model("a", tmp_path, prefix="x"), Model("b", tmp_path, prefix="y")
    assert len({engine_key(one), engine_key(other), engine_key(Model("c", tmp_path))}) == 3
    assert engine_key(one) == engine_key(replace(one, name="again"))


def test_no_answer_outlives_a_change_of_the_prefix(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    plain = Model("base", tmp_path / "model")
    prompted, other = replace(plain, prefix="x"), replace(plain, prefix="y")

    def keep(model: Model) -> None:
        kept_answers(tmp_path, model, {}).add({"k": ("a", Answer("Paris"))})

    def is_kept(model: Model) -> bool:
        return "k" in kept_answers(tmp_path, model, {}).answers

    keep(prompted)
    assert is_kept(prompted)
    assert not is_kept(other)
    keep(plain)
    assert is_kept(plain)
    assert not is_kept(prompted)
