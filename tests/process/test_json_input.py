"""JSON that others wrote is read, or refused with a reason that names what is wrong and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe.rerule.process.json_input import MOST_LEVELS, is_finite, parse, read_json, read_lines


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ('{"a": [1, 2', "is not complete JSON: it is cut off in line 1"),
        ('{"a": 1,\n"b": "x', "is not complete JSON: it is cut off in line 2"),
        ('{"a": 0.', "is not complete JSON: it is cut off in line 1"),
        ('{"a": tru', "is not complete JSON: it is cut off in line 1"),
        ("hello", "is not JSON: expecting value in line 1"),
        ("{} x", "is not JSON: extra data in line 1"),
        ('{"a" 1}', "is not JSON: expecting ':' delimiter in line 1"),
        ("[1] [2]", "is not JSON: extra data in line 1"),
        ("[" * 10_000, "is nested too deeply"),
        ("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), "is nested too deeply"),
        ('{"a": ' * (MOST_LEVELS + 1) + "1" + "}" * (MOST_LEVELS + 1), "is nested too deeply"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "has the key 'c' twice in one object"),
        ("[NaN]", "holds NaN, which is no number of JSON"),
        ("[-Infinity]", "holds -Infinity, which is no number of JSON"),
        ("1" * 5000, "holds a number of too many digits"),
        (b"[\xff]", "is not text in UTF-8 (byte 2)"),
        ('["\\ud800"]', "holds half of a surrogate pair, which is no character"),
    ],
)
def test_what_is_wrong_is_said(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse(text)
    assert str(refused.value) == reason


def test_what_is_right_is_read() -> None:
    deep = "[" * MOST_LEVELS + "]" * MOST_LEVELS
    assert json.dumps(parse(deep)) == deep
    assert parse(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
    assert parse("[NaN]", nan=True)[0] != parse("[NaN]", nan=True)[0]


def test_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for content, reason in ((None, "does not exist"), ("{", "is not complete JSON: it is cut off in line 1")):
        if content is not None:
            file.write_text(content)
        with pytest.raises(ValueError, match=r".") as refused:
            read_json(file)
        assert str(refused.value) == f"{file} {reason}"
    with pytest.raises(ValueError, match=f"{tmp_path} is a folder, not a file"):
        read_json(tmp_path)


def test_lines_are_numbered_and_hold_any_character_but_a_line_feed(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": "x\u2028y"}\n\n[1]\n{"a": ', encoding="utf-8")
    lines = read_lines(file)
    assert next(lines) == (1, {"a": "x\u2028y"})
    assert next(lines) == (3, [1])
    with pytest.raises(ValueError, match=r".") as refused:
        next(lines)
    assert str(refused.value) == f"{file}: line 4 is not complete JSON: it is cut off"


@pytest.mark.parametrize(
    ("value", "finite"),
    [
        *((1, True), (0.5, True), (True, False), ("1", False), (None, False), (float("nan"), False)),
        *((float("inf"), False), (10**400, False), (-(10**300), True)),
    ],
)
def test_numbers_that_a_float_holds(value: object, finite: bool) -> None:
    assert is_finite(value) is finite
