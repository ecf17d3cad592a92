import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rouge import Rouge

from reward.rouge import CONVENTIONS, rouge_l

# Few words, so that long common subsequences are frequent; and any text at all.
WORDS = st.lists(
    st.sampled_from(
        ["the", "a", "The", "cat", "cats", "running", "runs", "sat", ".", ". ", "  ", "e.g.", "né", "\n"]
    ),
    max_size=24,
).map(" ".join)
TEXTS = WORDS | st.text(max_size=60)
TOLERANCE = 1e-12


def _package_recall(prediction: str, reference: str) -> float:
    try:
        return Rouge(metrics=["rouge-l"]).get_scores(prediction, reference)[0]["rouge-l"]["r"]
    except ValueError:  # what it raises for a text without a sentence
        return 0.0


@given(prediction=TEXTS, reference=TEXTS)
@example(prediction="", reference="x")
@example(prediction="x", reference="")
@example(prediction=".", reference=".")
@example(prediction="...", reference="x")
@example(prediction=" ", reference=" ")
@example(prediction=" .a", reference="a. ")
@example(prediction="a b. b a", reference="b a. a b")
@example(prediction="b a. b", reference="a b")
@example(prediction="b a. a", reference="a b")
@settings(max_examples=400)
def test_rwku_agrees_with_the_rouge_package(prediction: str, reference: str) -> None:
    assert rouge_l(prediction, reference, "rwku") == pytest.approx(
        _package_recall(prediction, reference), abs=TOLERANCE
    )


BY_HAND = {
    "rwku": [
        ("carrie", "Carrie", 0.0),  # case counts
        ("It is Carrie, a novel.", "Carrie", 0.0),  # so does a comma
        ("The Golden Snitch", "the Golden Snitch", 2 / 3),
        ("Golden Snitch.", "Golden Snitch", 1.0),  # a full stop does not
        ("", "Carrie", 0.0),
        (".", "Carrie", 0.0),
        ("Carrie", "...", 0.0),
        # ref "a b c d e": LCS "a b" with the first sentence, "c e" with the second; union 4 of 5
        ("a b x. c y e", "a b c d e", 4 / 5),
        # of the two longest common subsequences of "a b" and "b a", the package takes "b"
        ("b a. b", "a b", 1 / 2),
        ("b a. a", "a b", 1.0),
        ("no", "no no no yes", 1 / 2),  # a repeated word counts once
        ("The cats sat down", "the cat sat", 1 / 3),  # sat
    ],
    "unicode": [
        ("The cats sat down", "the cat sat", 2 / 3),  # as recall
        ("中国的首都是北京。", "北京", 1.0),
        ("南京", "北京", 1 / 2),  # a character is a word
        ("東京タワー", "タワー", 1.0),
        ("กรุงเทพมหานคร", "กรุงเทพ", 1.0),
        ("か", "が", 0.0),  # voiced: another letter, not an accent
        ("Москва — столица", "москва", 1.0),
        ("서울은", "서울", 0.0),  # Korean writes spaces
        ("सेब और आम", "आम", 1.0),
        ("मन", "मान", 0.0),  # a vowel sign
        ("Zurich", "Zürich", 1.0),
        ("Zuerich", "Zürich", 0.0),
        ("STRASSE", "Straße", 1.0),
        ("Jose\u0301", "José", 1.0),
        ("\ufb01ve", "five", 1.0),
        ("القُدس", "القدس", 1.0),
        ("a_b", "b", 1.0),
        ("🙂!", "🙂", 0.0),
    ],
    "recall": [
        ("The cats sat down", "the cat sat", 2 / 3),  # the, sat
        ("one two three four", "one two", 1.0),
        ("one two", "one two three four", 0.5),
    ],
    # 4 tokens against 3
    "muse": [("The cats sat down", "the cat sat", 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))],
    "tofu": [("The cats sat down", "the cat sat", 1.0)],  # cats -> cat
    "muse-open-unlearning": [("The cats sat down", "the cat sat", 2 * (3 / 4) * 1 / (3 / 4 + 1))],
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_by_hand(convention: str) -> None:
    """Of prediction and reference."""
    found = [rouge_l(prediction, reference, convention) for prediction, reference, _ in BY_HAND[convention]]
    assert found == pytest.approx([expected for *_, expected in BY_HAND[convention]], abs=TOLERANCE)


def test_rwku_scores_texts_longer_than_the_recursion_limit() -> None:
    words = " ".join(str(i) for i in range(1500))
    assert math.isclose(rouge_l(words, words + " more", "rwku"), 1500 / 1501)


@given(prediction=TEXTS, reference=TEXTS)
def test_unicode_is_recall_where_letters_are_a_to_z(prediction: str, reference: str) -> None:
    texts = [text.encode("ascii", "ignore").decode() for text in (prediction, reference)]
    assert rouge_l(*texts, "unicode") == rouge_l(*texts, "recall")


def test_unknown_convention_is_named_with_the_valid_ones() -> None:
    with pytest.raises(
        ValueError, match=r"'rouge-l'.*tofu, recall, muse, muse-open-unlearning, rwku, unicode"
    ) as error:
        rouge_l("a", "a", "rouge-l")
    assert "\n" not in str(error.value)
