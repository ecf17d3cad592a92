"""Requests as token ids, on tokenizers whose tokens are known by hand, and what is wrong with a request.

Prompts and answers of whole families are in tests/families.
"""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.engine.encoding import Encoded, RequestError, encode, warnings
from recipe.rerule.evaluation.engine.models import Model, with_template
from recipe.rerule.evaluation.engine.requests import Generation, Likelihood, PromptText, Request
from tests.families import templates
from tests.made_tokenizers import ALTERNATING_TEMPLATE, LLAMA3_TEMPLATE, byte_level, sentencepiece

USER = {"role": "user", "content": "Who"}
WHO, RAW = PromptText((USER,)), PromptText((USER,), raw=True)
START = PromptText(({"role": "user", "content": ""},), raw=True)
TEMPLATE = "{{ messages[0].content }}{% if thinks is true %} wrote{% endif %}{{ date_string }}"
GENERATION, LIKELIHOOD = Generation("q7", RAW, 4), Likelihood("q7", RAW, "it")


@pytest.fixture
def model(tmp_path: Path):
    """model(tokenizer, name, **config): a folder with that tokenizer and config.json."""

    def make(tokenizer: Any, name: str = "base", **config: Any) -> Model:
        tokenizer.save_pretrained(tmp_path / name)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        return Model(name, tmp_path / name)

    return make


def tokens(model: Model, request: Request) -> tuple[list[str], list[str]]:
    """Tokens of the prompt, and of the answer to measure."""
    from transformers import AutoTokenizer

    (one,) = encode([model], [request])[model.name]
    prompt = len(one.ids) if one.answer_start is None else one.answer_start
    written = AutoTokenizer.from_pretrained(model.path).convert_ids_to_tokens(one.ids)
    return written[:prompt], written[prompt:]


def test_a_suffix_and_two_beginnings_of_text(model):
    llama = model(byte_level(LLAMA3_TEMPLATE))
    prompt = replace(WHO, suffix="it", double_bos=True)
    asked, answer = tokens(llama, Likelihood("a", prompt, " wrote"))
    user = ["<|begin|>", "<|begin|>", "<|head|>", *"user", "<|body|>", "ĊĊ", "Who", "<|eot|>"]
    assert asked == [*user, "<|head|>", *"assistant", "<|body|>", "ĊĊ", "it"]
    assert answer == ["Ġwrote", "<|eot|>"]  # the template trims an answer, but not behind a suffix
    assert tokens(llama, Likelihood("a", WHO, " wrote"))[1] == ["wrote", "<|eot|>"]
    assert tokens(llama, Generation("a", prompt, 4)) == (asked, [])
    assert tokens(llama, Generation("a", replace(prompt, double_bos=False), 4)) == (asked[1:], [])
    ends = model(sentencepiece(template=ALTERNATING_TEMPLATE, ends_with_eos=True), "ends")
    (first, second, *_, last), _ = tokens(ends, Generation("a", replace(WHO, double_bos=True), 4))
    assert (first, second, last) == ("<s>", "<s>", "]")


def test_a_raw_prompt_and_its_answer_and_a_text_from_its_beginning(model):
    """A text begins as its tokenizer lets it begin, here with sentencepiece's space."""
    made = model(sentencepiece())
    assert tokens(made, LIKELIHOOD) == (["<s>", "▁Who"], ["it", "</s>"])
    assert tokens(made, Likelihood("a", START, "Who wrote")) == (["<s>"], ["▁Who", "▁wrote", "</s>"])


def test_a_model_is_asked_with_its_prefix(model):
    """As the same question with the prefix typed into it; a text from its beginning has none."""
    base = model(byte_level(LLAMA3_TEMPLATE))
    models = [base, replace(base, name="icu", prefix="No. ")]
    turns = ({"role": "assistant", "content": "it"}, USER)
    text = Likelihood("d", START, "It was night.")

    def asked(user: dict[str, str]) -> list[Request]:
        talk = PromptText(({"role": "system", "content": "Be brief."}, user, *turns))
        raw, chat = PromptText((user,), raw=True), PromptText((user,))
        return [Generation("a", talk, 4), Generation("b", raw, 4), Likelihood("c", chat, "it"), text]

    encoded = encode(models, asked(USER))
    assert encoded["icu"] == encode([base], asked(USER | {"content": "No. Who"}))["base"]
    keys = [{one.key for one in encoded[name]} for name in ("icu", "base")]
    assert keys[0] & keys[1] == {encoded["base"][3].key}


def test_arguments_of_the_template_reach_prompts_and_answers(model):
    """This template writes no answer, so that an answer is its end alone."""
    plain = model(byte_level(TEMPLATE, adds_bos=False))
    (thinking,) = with_template([plain], ["thinks=true"])
    for one, asked in (plain, ["Who"]), (thinking, ["Who", "Ġwrote"]):
        assert tokens(one, Generation("a", WHO, 1)) == (asked, [])
        assert tokens(one, Likelihood("b", WHO, "it")) == (asked, ["<|end|>"])


def test_what_templates_write_unasked_is_named(model, tmp_path):
    plain, qwen, llama = (
        model(byte_level(template), name)
        for name, template in (("base", TEMPLATE), ("q", templates.QWEN_3), ("l", templates.LLAMA_3_2))
    )
    lines = list(warnings([qwen, llama]))
    assert len(lines) == 2
    assert f"{qwen.path} has a switch for thinking" in lines[0]
    assert f"{llama.path} writes today's date" in lines[1]
    assert list(warnings([Model("none", tmp_path)])) == []  # no tokenizer: refused when it is asked
    assert list(warnings(with_template([plain, qwen], ["enable_thinking=false"]))) == []


def test_a_key_changes_with_all_that_an_answer_depends_on():
    one = Encoded([1, 2, 3], None, 4, ("\n",))
    changes = [{"ids": [1, 2]}, {"answer_start": 2}, {"max_tokens": 5}, {"stop": ()}, {"samples": 2}]
    changes += [{"temperature": 0.5}]
    assert one.key == replace(one).key
    assert len({one.key, *(replace(one, **change).key for change in changes)}) == 7


def test_prompts_share_no_random_numbers_and_models_and_counts_share_them():
    one = Encoded([1, 2, 3], None, 4, (), 8)
    assert one.engine_seed == replace(one, samples=64, max_tokens=9).engine_seed
    seeds = [replace(one, ids=[1, 2, last]).engine_seed for last in range(100)]
    assert min(high - low for low, high in pairwise(sorted(seeds))) > 1 << 14
    assert all(0 <= seed < 1 << 62 for seed in seeds)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "no requests"),
        ([replace(LIKELIHOOD, answer="")], "request q7: the answer to measure is empty"),
        ([replace(GENERATION, max_tokens=0)], "request q7: max_tokens is 0"),
        ([replace(GENERATION, prompt=START)], "request q7: the prompt is empty"),
        ([replace(LIKELIHOOD, answer="\nWho")], "request q7: the answer '\\\\nWho' has no tokens of its own"),
        ([replace(GENERATION, max_tokens=15)], None),
        (
            [replace(GENERATION, max_tokens=16)],
            "request q7: 1 tokens and 16 new ones do not fit into the context of model base, 16 tokens",
        ),
        ([replace(GENERATION, prompt=WHO)], "has no chat template"),
    ],
)
def test_a_request_that_cannot_be_asked_is_named(model, requests, message):
    asked = [model(byte_level(adds_bos=False), max_position_embeddings=16)], requests
    if message is None:
        assert len(encode(*asked)["base"]) == 1
        return
    with pytest.raises(ValueError, match=message):
        encode(*asked)


def test_a_template_that_refuses_a_request_is_an_error(model):
    alternating = model(sentencepiece(template=ALTERNATING_TEMPLATE))
    assistant = PromptText(({"role": "assistant", "content": "it"},))
    with pytest.raises(RequestError, match="request q7: user and assistant must take turns"):
        encode([alternating], [replace(GENERATION, prompt=assistant)])


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": "{}"}, {"tokenizer.json": "no"}])
def test_a_model_without_a_readable_tokenizer_is_one_line(model_folder, files):
    folder = model_folder("base", **{"config.json": '{"model_type": "llama"}'}, **files)
    with pytest.raises(ValueError, match=rf"^[^\n]*{folder}[^\n]*$"):
        encode([Model("base", folder)], [LIKELIHOOD])
