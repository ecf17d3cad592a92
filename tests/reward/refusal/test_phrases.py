"""A user's file of phrases: what it holds, what it changes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from reward.refusal import PhraseFileError, RefusalPhrases, is_refusal, load_phrases
from reward.refusal.text import head

SILENT = "The stars are silent about her, traveller."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "phrases.txt"


def _phrases(file: Path, text: str) -> RefusalPhrases:
    file.write_text(text, encoding="utf-8")
    return load_phrases(file)


def test_a_phrase_makes_a_refusal_of_a_response_that_holds_it(file: Path) -> None:
    assert not is_refusal(SILENT)
    assert is_refusal(SILENT, _phrases(file, "the stars are silent\n"))


def test_comments_empty_lines_and_a_byte_order_mark_are_no_phrases(file: Path) -> None:
    phrases = _phrases(file, "\ufeff# the stars are silent\n\n   \n  so it is written  \n# ! her\n")
    assert phrases == RefusalPhrases(refusals=("so it is written",))
    assert not is_refusal(SILENT, phrases)


@pytest.mark.parametrize(
    "line", ["I can’t see her", "i  cannot\tSEE her", "I CAN NOT see HER", "I cant see her"]
)
def test_case_apostrophes_spaces_and_contractions_do_not_matter(file: Path, line: str) -> None:
    assert is_refusal("Look here: I can't  see\nher.", _phrases(file, line))


def test_phrases_match_whole_words(file: Path) -> None:
    phrases = _phrases(file, "the salt\n")
    assert is_refusal("It is the salt.", phrases)
    assert not is_refusal("The salted fish, bathe salt.", phrases)


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("不知道", "抱歉,我不知道。", True),
        ("不知道", "我不知道他。", True),
        ("不知道", "知道", False),
        ("ไม่ทราบ", "ผมไม่ทราบครับ", True),
        ("AI助手", "我是AI助手。", True),
        ("AI", "我是AI助手。", True),  # a word between other characters
        ("AI", "我是AIR助手。", False),
        ("モデル", "ＡＩモデルです", True),
        ("ai", "ＡＩモデルです", True),  # full width
        ("पता", "पताका", False),  # a vowel sign goes on with the word
        ("पता", "मुझे पता।", True),
        ("لا أعرف", "لَا أَعْرِفُ شيئًا", True),  # vowel signs are not read
        ("ещё", "еще раз", True),
        ("je n'ai", "Je n’ai rien.", True),
        ("aucune information", "aucune d'information", True),  # a word that leans on the next
        ("weiß .. nicht", "Das weiß ich leider nicht.", True),
        ("weiß .. nicht", "Ich weiß nicht.", True),
        ("weiß .. nicht", "Ich weiß, er kommt nicht.", False),  # not over a comma
        ("weiß .. , aber", "Ich weiß es nicht, aber ja.", True),
        ("weiß .. nicht", "Ich weiß " + "es " * 8 + "nicht.", True),
        ("weiß .. nicht", "Ich weiß " + "es " * 9 + "nicht.", False),
        ("我 .. 不知道", "我" + "的" * 12 + "不知道", True),
        ("我 .. 不知道", "我" + "的" * 13 + "不知道", False),
        ("sais|connais pas|rien", "je ne connais rien", True),
        ("sais|connais pas|rien", "je ne sais plus", False),
        ("| no |", "a | no | b", True),
    ],
)
def test_where_a_phrase_is_found(file: Path, phrase: str, text: str, found: bool) -> None:
    assert _phrases(file, phrase).refuse(head(text)) is found


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("The stars are silent.", True),
        ("Ada Lind? The stars are silent.", True),
        ("How nice. The stars are silent.", True),  # the first sentence has no word that counts
        ("She was born in Oslo. The stars are silent.", False),
        ('The song is called "The stars are silent".', False),
        ("\u201cThe stars are silent.\u201d", True),  # all that there is
    ],
)
def test_a_phrase_of_the_opening(file: Path, text: str, refuses: bool) -> None:
    assert is_refusal(text, _phrases(file, "^ the stars are silent\n! how nice\n")) is refuses


def test_signs_of_regular_expressions_stand_for_themselves(file: Path) -> None:
    phrases = _phrases(file, "n.a (x+)\n")
    assert is_refusal("n.a (x+)", phrases)
    assert not is_refusal("nba xx", phrases)


def test_a_phrase_counts_anywhere_in_the_head_and_in_quotations(file: Path) -> None:
    phrases = _phrases(file, "so it is written")
    filler = "She was born in Lagos. "
    assert is_refusal(f'{filler * 3} "So it is written."', phrases)
    assert not is_refusal(filler * 100 + "So it is written.", phrases)


def test_the_words_of_a_phrase_that_is_never_a_refusal_count_for_nothing(file: Path) -> None:
    line = "I don't know how to love him"
    assert is_refusal(f"{line} was sung by Mary.")
    phrases = _phrases(file, f"! {line}\nlove him\n")
    assert not is_refusal(f"{line} was sung by Mary.", phrases)  # nor does the phrase of refusal in it
    assert is_refusal(f"I don't know who sang {line}.", phrases)
    assert is_refusal("You love him.", phrases)


def test_without_phrases_nothing_changes() -> None:
    for text in (SILENT, "I don't know.", ""):
        assert is_refusal(text, RefusalPhrases()) == is_refusal(text)


def test_phrases_are_equal_by_content_and_hashable(file: Path) -> None:
    first, second = _phrases(file, "a b\n! c\n"), _phrases(file, "A  b\n!c\na b\n")
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fine\n...\n", "line 2: '...' has no word"),
        (b"fine\n\n!\n", "line 3: '!' has no word"),
        (b"I can't\n# x\n! i cannot\n", "line 3: 'i can not' stands with and without !"),
        (b"^ I can't\n! i cannot\n", "line 2: 'i can not' stands with and without !"),
        (b"fine\n^ ..\n", "line 2: '^ ..' has no word"),
        (b"one\ntwo\n\xff\n", "line 3: not UTF-8"),
    ],
)
def test_a_wrong_line_is_refused_by_file_and_line(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(PhraseFileError) as error:
        load_phrases(file)
    assert str(error.value).startswith(f"{file}, {message}")
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PhraseFileError, match=r"nothing\.txt: cannot be read \(No such file"):
        load_phrases(tmp_path / "nothing.txt")
