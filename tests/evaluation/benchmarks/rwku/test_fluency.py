from __future__ import annotations

import math
from collections import Counter

import nltk
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from recipe.rerule.evaluation.benchmarks.rwku.fluency import (
    STATISTICS,
    n_gram_entropy,
    records,
    requests,
    samples,
    words,
)
from recipe.rerule.evaluation.engine.requests import Answer, Generation
from recipe.rerule.evaluation.statistics.samples import metrics


def has_punkt() -> bool:
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        return False
    return True


def test_entropy_by_hand():
    # Pairs: ab, ba, ab, bc: 1/2, 1/4, 1/4, which is 1.5 bits. Triples: aba, bab, abc: log2 3.
    assert n_gram_entropy("a b a b c") == pytest.approx((2 / 3 * 1.5 + 4 / 3 * math.log2(3)) / 2)


@pytest.mark.parametrize("text", ["", " \n", "word"])
def test_texts_without_pairs_have_none(text: str):
    assert n_gram_entropy(text) == 0.0


def test_repetition_has_none():
    assert n_gram_entropy("no no no no no no") == 0.0


@given(st.lists(st.sampled_from("abcd"), min_size=3, max_size=30))
def test_entropy_is_scipys(letters: list[str]):
    def bits(n: int) -> float:
        grams = Counter(zip(*(letters[i:] for i in range(n)), strict=False))
        return float(entropy(list(grams.values()), base=2))

    expected = (2 / 3 * bits(2) + 4 / 3 * bits(3)) / 2
    assert n_gram_entropy(" ".join(letters)) == pytest.approx(expected, abs=1e-9)


def test_words_are_treebanks():
    assert words("She didn't go. He left!\nIt's 3.5 km, e.g. far.") == (
        ["She", "did", "n't", "go", ".", "He", "left", "!", "It", "'s", "3.5", "km", ",", "e.g.", "far", "."]
    )


def test_unknown_splitters_are_named():
    with pytest.raises(ValueError, match=r"'lines'; choose one of rules, punkt"):
        words("a", "lines")


@pytest.mark.skipif(has_punkt(), reason="NLTK's punkt data are installed")
def test_missing_punkt_data_is_one_clear_line():
    with pytest.raises(ValueError, match=r"^NLTK's punkt data are not installed: .*$"):
        words("a b", "punkt")


def test_instructions_are_asked_as_in_rwku():
    first, second = requests(["Tell me a tale.", "Sing."])
    assert isinstance(first, Generation)
    assert (first.id, second.id) == ("fluency/0", "fluency/1")
    assert (first.max_tokens, first.stop, first.prompt.suffix, first.prompt.double_bos) == (256, (), "", True)
    assert [message["content"] for message in first.prompt.messages] == ["Instruction: Tell me a tale.\n"]


def test_the_mean_is_over_texts():
    answers = {"fluency/0": Answer("a b a b c"), "fluency/1": Answer("no no no")}
    found = records(["Sing.", "Say no."], answers)
    assert found[1] == {"index": 1, "prompt": "Say no.", "response": "no no no", "entropy": 0.0}
    assert metrics(samples(found), STATISTICS)["fluency"] == pytest.approx(n_gram_entropy("a b a b c") / 2)
    with pytest.raises(ValueError, match="no answer to instruction 2"):
        records(["Sing.", "Say no.", "Go."], answers)
