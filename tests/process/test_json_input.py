"""Files of JSON that others wrote are read, or refused with a reason that names the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe.rerule.process.json_input import read_json, read_lines


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
