"""Requests as token ids, on tokenizers whose tokens are known by hand, and what is wrong with a request."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.engine.encoding import Encoded, RequestError, encode
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import (
    Generation,
    Likelihood,
    PromptText,
    Request,
)
from tests.made_tokenizers import ALTERNATING_TEMPLATE, LLAMA3_TEMPLATE, byte_level, sentencepiece

WHO = ({"role": "user", "content": "Who"},)
LLAMA3 = byte_level(LLAMA3_TEMPLATE)


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Model]:
    """model(tokenizer, **config): a folder with that tokenizer and config.json."""

    def make(tokenizer: Any, **config: Any) -> Model:
        tokenizer.save_pretrained(tmp_path / "model")
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        return Model("base", tmp_path / "model")

    return make


def tokens(model: Model, request: Request) -> tuple[list[str], list[str]]:
    """Tokens of the prompt, and of the answer to measure."""
    from transformers import AutoTokenizer

    (one,) = encode([model], [request])["base"]
    prompt = len(one.ids) if one.answer_start is None else one.answer_start
    written = AutoTokenizer.from_pretrained(model.path).convert_ids_to_tokens(one.ids)
    return written[:prompt], written[prompt:]


def test_a_chat_prompt_and_its_answer_up_to_the_end_of_the_turn(model):
    user = ["<|begin|>", "<|head|>", "u", "s", "e", "r", "<|body|>", "ĊĊ", "Who", "<|eot|>"]
    assistant = ["<|head|>", *"assistant", "<|body|>", "ĊĊ"]
    written = tokens(model(LLAMA3), Likelihood("a", PromptText(WHO), "wrote it"))
    assert written == ([*user, *assistant], ["wrote", "Ġit", "<|eot|>"])


def test_a_suffix_and_two_beginnings_of_text(model):
    prompt = PromptText(WHO, suffix="it", double_bos=True)
    asked, answer = tokens(model(LLAMA3), Likelihood("a", prompt, " wrote"))
    assert asked[:3] == ["<|begin|>", "<|begin|>", "<|head|>"]
    assert asked[-3:] == ["<|body|>", "ĊĊ", "it"]
    assert answer == ["Ġwrote", "<|eot|>"]
    assert tokens(model(LLAMA3), Generation("a", prompt, 4)) == (asked, [])
    once = replace(prompt, double_bos=False)
    assert tokens(model(LLAMA3), Generation("a", once, 4)) == (asked[1:], [])


def test_a_raw_prompt_and_its_answer_and_a_text_from_its_beginning(model):
    """A text begins as its tokenizer lets it begin, here with sentencepiece's space."""
    written = tokens(model(sentencepiece()), Likelihood("a", PromptText(WHO, raw=True), "it"))
    assert written == (["<s>", "▁Who"], ["it", "</s>"])
    start = PromptText(({"role": "user", "content": ""},), raw=True)
    written = tokens(model(sentencepiece()), Likelihood("a", start, "Who wrote"))
    assert written == (["<s>"], ["▁Who", "▁wrote", "</s>"])


def test_a_key_changes_with_all_that_an_answer_depends_on():
    one = Encoded([1, 2, 3], None, 4, ("\n",))
    changes = [{"ids": [1, 2]}, {"answer_start": 2}, {"max_tokens": 5}, {"stop": ()}]
    others = [replace(one, **change) for change in [*changes, {"samples": 2}, {"samples": 3}]]
    assert one.key == Encoded([1, 2, 3], None, 4, ("\n",)).key
    assert len({one.key, *(other.key for other in others)}) == 7


def test_prompts_share_no_random_numbers_and_models_and_counts_share_them():
    one = Encoded([1, 2, 3], None, 4, (), 8)
    assert one.engine_seed == replace(one, samples=64, max_tokens=9).engine_seed
    seeds = [replace(one, ids=[1, 2, last]).engine_seed for last in range(100)]
    assert min(high - low for low, high in pairwise(sorted(seeds))) > 1 << 14
    assert all(0 <= seed < 1 << 62 for seed in seeds)


GENERATION = Generation("q7", PromptText(WHO, raw=True), 4)
LIKELIHOOD = Likelihood("q7", PromptText(WHO, raw=True), "it")


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "no requests"),
        ([GENERATION, LIKELIHOOD], "request q7: 2 requests have this id"),
        ([replace(LIKELIHOOD, answer="")], "request q7: the answer to measure is empty"),
        ([replace(GENERATION, max_tokens=0)], "request q7: max_tokens is 0"),
        (
            [replace(GENERATION, prompt=PromptText(({"role": "user", "content": ""},), raw=True))],
            "request q7: the prompt is empty",
        ),
        ([replace(LIKELIHOOD, answer="\nWho")], "request q7: the answer '\\\\nWho' has no tokens of its own"),
        (
            [replace(GENERATION, max_tokens=16)],
            "request q7: 1 tokens and 16 new ones do not fit into the context of model base, 16 tokens",
        ),
        ([replace(GENERATION, prompt=PromptText(WHO))], "has no chat template"),
    ],
)
def test_a_request_that_cannot_be_asked_is_named(model, requests, message):
    with pytest.raises(ValueError, match=message):
        encode([model(byte_level(adds_bos=False), max_position_embeddings=16)], requests)


def test_a_request_that_just_fits_is_asked_and_a_template_that_refuses_it_is_an_error(model):
    short = model(byte_level(adds_bos=False), max_position_embeddings=16)
    encode([short], [replace(GENERATION, max_tokens=15)])
    assistant = PromptText(({"role": "assistant", "content": "it"},))
    with pytest.raises(RequestError, match="request q7: user and assistant must take turns"):
        encode([model(sentencepiece(template=ALTERNATING_TEMPLATE))], [replace(GENERATION, prompt=assistant)])


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": "{}"}, {"tokenizer.json": "no"}])
def test_a_model_without_a_readable_tokenizer_is_one_line(model_folder, files):
    folder = model_folder("base", **{"config.json": '{"model_type": "llama"}'}, **files)
    with pytest.raises(ValueError, match="base") as raised:
        encode([Model("base", folder)], [LIKELIHOOD])
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)
