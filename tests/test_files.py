"""A file is whole or absent at any moment, and a torn line of JSON lines is cut off."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from recipe.rerule import files


def fail_half_way(file: Path) -> None:
    with files.replacing(file) as draft:
        draft.write_bytes(b"half of the n")
        raise OSError("the disk is full")


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    files.write(file, b"old")
    with pytest.raises(OSError, match="full"):
        fail_half_way(file)
    assert file.read_bytes() == b"old"
    files.write(file, b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"state.json": b"new"}


def test_the_new_content_is_on_the_disk_before_it_takes_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.json"
    happened: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        happened.append(f"flush {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        happened.append(f"{source.name} becomes {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", replaced)
    files.write(file, b"new")
    assert happened == [
        "flush state.json.tmp",
        "state.json.tmp becomes state.json",
        f"flush {tmp_path.name}",
    ]


def test_lines_are_json_of_any_character(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    records = [{"text": "Zo\u00eb\u2028\n"}, {"number": 0.1}]
    for record in records:
        files.append_line(file, record)
    assert file.read_text("utf-8") == files.json_lines(records)
    assert [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] == records


def test_no_number_is_written_where_it_is_allowed_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.json_lines([{"number": float("nan")}])
    files.append_line(tmp_path / "records.jsonl", {"number": float("nan")})
    assert (tmp_path / "records.jsonl").read_text() == '{"number": NaN}\n'


@pytest.mark.parametrize(
    ("content", "kept"),
    [(b"", b""), (b"{}\n", b"{}\n"), (b"{}\n{}", b"{}\n"), (b'{"a', b""), (b"{}\n\n", b"{}\n\n")],
)
def test_a_torn_line_is_cut_off(tmp_path: Path, content: bytes, kept: bytes) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(content)
    files.drop_torn_line(file)
    assert file.read_bytes() == kept
    files.drop_torn_line(tmp_path / "missing.jsonl")
    assert not (tmp_path / "missing.jsonl").exists()
