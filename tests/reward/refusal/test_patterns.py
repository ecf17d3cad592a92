"""The notation of the grammar, word by word."""

from __future__ import annotations

import re

import pytest

from reward.refusal.patterns import expand, phrases, verbs, words


def _full(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


@pytest.mark.parametrize(
    ("table", "found", "not_found"),
    [
        ("help", ["help", "helps", "helped", "helping"], ["helper", "elp"]),
        ("share", ["share", "shares", "shared", "sharing"], ["sharer", "shar"]),
        ("deny", ["deny", "denies", "denied", "denying"], ["denys"]),
        ("say/said", ["say", "says", "saying", "said"], ["saids"]),
        ("stay away", ["stay away", "stayed away"], ["stay", "away"]),
        ("go/went (into|there)", ["go into", "going there", "went into"], ["went", "go in"]),
        ("tell/told, be sure", ["told", "telling", "be sure"], ["tell be sure"]),
    ],
)
def test_verbs_have_their_forms(table: str, found: list[str], not_found: list[str]) -> None:
    pattern = verbs(table)
    assert [form for form in found if not _full(pattern, form)] == []
    assert [form for form in not_found if _full(pattern, form)] == []


def test_phrases_are_parted_by_a_comma_and_white_space() -> None:
    pattern = phrases("details?, (at|on) hand,\n    a{1,2}b")
    assert [t for t in ("detail", "details", "at hand", "on hand", "aab") if not _full(pattern, t)] == []
    assert not _full(pattern, "b")


def test_tables_match_whole_words() -> None:
    assert re.search(phrases("info"), "the info.")
    assert not re.search(phrases("info"), "information")
    assert not re.search(phrases("info"), "disinfo")


def test_groups_capture_nothing_and_parentheses_can_be_escaped() -> None:
    pattern = re.compile(expand(r"(a|b)(?:c)(?P<kept>d)\(e"))
    assert pattern.groups == 1
    assert pattern.fullmatch("bcd(e")


def test_names_stand_for_tables() -> None:
    assert _full(expand("i <know> <it>", {"know": "(?:know|see)", "it": "it"}), "i see it")
    with pytest.raises(KeyError):
        expand("<nothing>")


@pytest.mark.parametrize(("words_between", "matches"), [(0, True), (6, True), (7, False)])
def test_two_dots_leave_room_for_six_words(words_between: int, matches: bool) -> None:
    assert _full(expand("keep .. secret"), "keep " + "it " * words_between + "secret") is matches


def test_dollar_is_the_end_of_a_clause_whatever_ends_it() -> None:
    pattern = re.compile(expand("i pass $"))
    assert pattern.match("i pass")
    assert pattern.match("i pass!?")
    assert not pattern.match("i pass it")


def test_line_breaks_and_the_spaces_after_them_count_for_nothing() -> None:
    assert _full(expand("(a\n      |b) c"), "b c")


def test_words_do_not_go_on() -> None:
    assert re.search(words("a|b"), "x b y")
    assert not re.search(words("a|b"), "xb by")
