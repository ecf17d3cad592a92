"""A user's file of phrases: what it holds, what it changes, and what is refused."""

import re
from pathlib import Path

import pytest

from reward.refusal import RefusalPhrases, is_refusal, load_phrases
from reward.refusal.text import head

SILENT = "The stars are silent about her, traveller."
FILLER = "She was born in Lagos. "


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "phrases.txt"


def _phrases(file: Path, text: str) -> RefusalPhrases:
    file.write_text(text, encoding="utf-8")
    return load_phrases(file)


def test_comments_empty_lines_and_a_byte_order_mark_are_no_phrases(file: Path) -> None:
    phrases = _phrases(file, "\ufeff# the stars are silent\n\n   \n  so it is written  \n# ! her\n")
    assert phrases == RefusalPhrases(refusals=("so it is written",))
    assert not is_refusal(SILENT, phrases)


HER, HIM = "Look here: I can't  see\nher.", "I don't know how to love him"
NEVER = f"! {HIM}\nlove him\n"  # nor does the phrase of refusal in it count
OPENING = "^ the stars are silent\n! how nice\n"


@pytest.mark.parametrize(
    ("lines", "text", "refuses"),
    [
        ("", SILENT, False),
        ("the stars are silent\n", SILENT, True),
        # case, apostrophes, spaces and contractions do not matter
        *((line, HER, True) for line in ("I can’t see her", "i  cannot\tSEE her", "I CAN NOT see HER")),
        ("I cant see her", HER, True),
        # whole words
        ("the salt\n", "It is the salt.", True),
        ("the salt\n", "The salted fish, bathe salt.", False),
        # signs of regular expressions stand for themselves
        ("n.a (x+)\n", "n.a (x+)", True),
        ("n.a (x+)\n", "nba xx", False),
        # anywhere in the head, and in quotations
        ("so it is written", f'{FILLER * 3} "So it is written."', True),
        ("so it is written", f"{FILLER * 100}So it is written.", False),
        # the words of a phrase that is never a refusal count for nothing
        ("", f"{HIM} was sung by Mary.", True),
        (NEVER, f"{HIM} was sung by Mary.", False),
        (NEVER, f"I don't know who sang {HIM}.", True),
        (NEVER, "You love him.", True),
        # a phrase of the opening
        (OPENING, "The stars are silent.", True),
        (OPENING, "Ada Lind? The stars are silent.", True),
        (OPENING, "How nice. The stars are silent.", True),  # the first sentence has no word that counts
        (OPENING, "She was born in Oslo. The stars are silent.", False),
        (OPENING, 'The song is called "The stars are silent".', False),
        (OPENING, "\u201cThe stars are silent.\u201d", True),  # all that there is
    ],
)
def test_which_responses_a_file_makes_refusals(file: Path, lines: str, text: str, refuses: bool) -> None:
    assert is_refusal(text, _phrases(file, lines)) is refuses


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
    with pytest.raises(ValueError, match=rf"^{re.escape(f'{file}, {message}')}[^\n]*$"):
        load_phrases(file)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.txt: cannot be read \(No such file"):
        load_phrases(tmp_path / "nothing.txt")
