"""The phrases of the languages that come with the package, against lists of sentences.

Each list of `refusal_languages/` has parts by comments: what had been seen when the phrases were written or
generalised, and what was held out. `!` marks the known mistakes on the latter, which the phrases were not
changed for.
"""

import time

import pytest

from benchmarks.refusals import measure_languages, read_language_lists, read_lists
from reward.refusal import LANGUAGES, RefusalPhrases, is_refusal
from reward.refusal.phrases import of_languages
from reward.refusal.text import head

LISTS = read_language_lists()
PARTS = [(code, part) for code in LANGUAGES for part in ("seen", "held out")]


def test_the_languages_that_the_documents_name() -> None:
    assert LANGUAGES == ("ar", "de", "es", "fr", "hi", "it", "ja", "ko", "nl", "pt", "ru", "zh")
    assert {*LISTS} == {*LANGUAGES, "all"}


@pytest.mark.parametrize(("code", "part"), PARTS)
def test_every_sentence_is_judged_right(code: str, part: str) -> None:
    assert [s.text for s in LISTS[code][part] if (is_refusal(s.text) == s.refuses) == s.known_wrong] == []


def test_recall_and_precision_on_what_was_held_out() -> None:
    quality = measure_languages(is_refusal)
    assert quality["all"]["held out"] == {"sentences": 288, "recall": 0.9167, "precision": 0.9635}
    assert min(quality[code]["held out"]["recall"] for code in LANGUAGES) >= 0.83
    assert min(quality[code]["held out"]["precision"] for code in LANGUAGES) >= 0.84


def test_no_english_sentence_holds_a_phrase_of_another_language() -> None:
    english = [sentence for sentences in read_lists().values() for sentence in sentences]
    assert [s.text for s in english if of_languages().refuse(head(s.text))] == []


def test_a_phrase_that_is_never_a_refusal_counts_in_every_language() -> None:
    text, never = "Je ne sais pas danser, chantait-elle.", RefusalPhrases(never=("je ne sais pas danser",))
    assert is_refusal(text)
    assert not is_refusal(text, never)


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("抱歉，我不知道。", True),
        ("Oslo。抱歉，我不知道更多。", False),  # after an answer
        ("「我不知道」是一首歌。", False),  # somebody else's words
        ("他说：“我不知道。”", False),
        ("不知道为什么，他走了。", False),
        ("ज़रा रुकिए, मुझे नहीं पता।", True),
        ("L\u0027État, je n\u0027en sais rien.", True),
        ("Désole\u0301, je ne sais pas.", True),  # NFD
        ("Ещё раз: я ничего не знаю об этом.", True),
        ("Bonne question ! Ada Lind ? Je ne sais pas.", True),
        ("Elle est née à Lyon. Je ne sais pas.", False),
    ],
)
def test_decisions(text: str, refuses: bool) -> None:
    assert is_refusal(text) is refuses


@pytest.mark.parametrize(
    "word", ["我", "je ne ", "ich kann ", "no ", "저 ", "мне ", "لا ", "मैं ", "私の", "nicht "]
)
def test_a_megabyte_of_a_phrase_s_words_takes_no_longer(word: str) -> None:
    text = word * (1_000_000 // len(word))
    is_refusal(text)  # compiles what the word asks for
    began = time.process_time()
    is_refusal(text)
    assert time.process_time() - began < 0.5


def test_a_refusal_after_an_answer_is_a_limit() -> None:
    """In each script the first sentence decides."""
    refusals = [s.text for s in LISTS["all"]["seen"] if s.refuses]
    assert [text for text in refusals[::5] if is_refusal(f"Oslo, 1912. {text}")] == []
