"""Errors in one line, JSON that others wrote, atomic writes, and a full disk that is named."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import safetensors.torch
import torch
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from recipe.rerule import io
from recipe.rerule.io import MOST_LEVELS, RepeatedKeyError, is_finite, parse_json, read_json
from tests.small_disk import mounted

# ---- errors and warnings ----


def test_the_named_kinds_become_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_, io.one_line(ValueError, code=2):
        raise ValueError("first\n  second")
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "error: first second\n"
    with pytest.raises(KeyError), io.one_line(ValueError, code=2):
        raise KeyError("x")
    io.warn("replay.warmup_steps is 15,\n  but the run has 3 steps")
    assert capsys.readouterr().err == "warning: replay.warmup_steps is 15, but the run has 3 steps\n"


@pytest.mark.parametrize("override", ["replay.tau=0.5", "experiment=nowhere", "platform=tpu"])
def test_a_wrong_override_is_one_line_that_names_it(override: str) -> None:
    with (
        pytest.raises((HydraException, OmegaConfBaseException)) as raised,
        initialize_config_module("recipe.rerule.config", version_base=None),
    ):
        compose("rerule_trainer", [override])
    line = io.describe(raised.value)
    assert "\n" not in line
    assert override.split("=")[-1] in line or override.split("=")[0] in line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "a/b.csv"), "a/b.csv: no such file or directory"),
        (PermissionError(13, "Permission denied"), "permission denied"),
        (RuntimeError("died", "died"), "RuntimeError: died"),  # as Ray rebuilds it
        (
            ray.exceptions.RayTaskError("run", "a long traceback", RuntimeError("engine 0 is dead")),
            "RuntimeError: engine 0 is dead",
        ),
        (
            ray.exceptions.RayTaskError("run", "trace", io.DiskFullError("the disk is full: run needs 1")),
            "the disk is full: run needs 1",
        ),
        (
            OSError(18, "Invalid cross-device link", "a/.mine.draft-01ab23cd/draft", None, "a/mine"),
            "a/mine and a/mine: invalid cross-device link",
        ),
        (ValueError("a/.mine.draft-01ab23cd/draft/train.parquet: row 3"), "a/mine/train.parquet: row 3"),
        (ValueError("'.mine.draft-01ab23cd/draft' is bad"), "'mine' is bad"),
        (ValueError("a/.mine.draft/b: row 3"), "a/.mine.draft/b: row 3"),
    ],
)
def test_an_error_in_one_line(error: Exception, line: str) -> None:
    assert io.describe(error) == line


# ---- JSON ----


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
        parse_json(text)
    assert str(refused.value) == reason


def test_what_is_right_is_read() -> None:
    deep = "[" * MOST_LEVELS + "]" * MOST_LEVELS
    assert json.dumps(parse_json(deep)) == deep
    assert parse_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
    assert parse_json("[NaN]", nan=True)[0] != parse_json("[NaN]", nan=True)[0]


def test_a_key_that_is_there_twice_is_named() -> None:
    assert io.unique_keys([("a", 1), ("b", 2)]) == {"a": 1, "b": 2}
    with pytest.raises(RepeatedKeyError) as refused:
        io.unique_keys([("a", 1), ("b", 2), ("b", 2)])
    assert refused.value.key == "b"


@pytest.mark.parametrize(
    ("value", "finite"),
    [
        *((1, True), (0.5, True), (True, False), ("1", False), (None, False), (float("nan"), False)),
        *((float("inf"), False), (10**400, False), (-(10**300), True)),
    ],
)
def test_numbers_that_a_float_holds(value: object, finite: bool) -> None:
    assert is_finite(value) is finite


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


# ---- files ----


def fail_half_way(file: Path) -> None:
    with io.replacing(file) as draft:
        draft.write_bytes(b"half of the n")
        raise OSError("the disk is full")


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    io.write(file, b"old")
    with pytest.raises(OSError, match="full"):
        fail_half_way(file)
    assert file.read_bytes() == b"old"
    io.write(file, b"new")
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
    io.write(file, b"new")
    assert happened == [
        "flush state.json.tmp",
        "state.json.tmp becomes state.json",
        f"flush {tmp_path.name}",
    ]


def test_lines_are_json_of_any_character(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    records = [{"text": "Zo\u00eb\u2028\n"}, {"number": 0.1}]
    for record in records:
        io.append_line(file, record)
    assert file.read_text("utf-8") == io.json_lines(records)
    assert [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] == records


def test_no_number_is_written_where_it_is_allowed_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        io.json_lines([{"number": float("nan")}])
    io.append_line(tmp_path / "records.jsonl", {"number": float("nan")})
    assert (tmp_path / "records.jsonl").read_text() == '{"number": NaN}\n'


@pytest.mark.parametrize(
    ("content", "kept"),
    [(b"", b""), (b"{}\n", b"{}\n"), (b"{}\n{}", b"{}\n"), (b'{"a', b""), (b"{}\n\n", b"{}\n\n")],
)
def test_a_torn_line_is_cut_off(tmp_path: Path, content: bytes, kept: bytes) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(content)
    io.drop_torn_line(file)
    assert file.read_bytes() == kept
    io.drop_torn_line(tmp_path / "missing.jsonl")
    assert not (tmp_path / "missing.jsonl").exists()


# ---- a full disk ----

ROOM = 512 * 1024
LARGE = torch.zeros(2 * ROOM // 4)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", ROOM // 1024) as folder:
        yield folder


def plain(path: Path) -> None:
    path.write_bytes(bytes(2 * ROOM))


def parquet(path: Path) -> None:
    values = torch.randint(2**62, (ROOM,)).numpy()
    pq.write_table(pa.table({"x": values}), path)


WRITERS: dict[str, Callable[[Path], None]] = {
    "plain": plain,
    "torch": lambda path: torch.save(LARGE, path),
    "safetensors": lambda path: safetensors.torch.save_file({"x": LARGE}, path),
    "parquet": parquet,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_of_ours_names_a_full_disk(small: Path, writer: str) -> None:
    path = small / "part"
    with pytest.raises(io.DiskFullError) as raised, io.naming_full_disk(path, needed=lambda: 2 * ROOM):
        WRITERS[writer](path)
    found = re.fullmatch(
        r"the disk is full: (\S+) needs 1,048,576 bytes, and there was room for ([\d,]+)", str(raised.value)
    )
    assert found is not None, raised.value
    assert found[1] == str(path)
    assert int(found[2].replace(",", "")) == pytest.approx(ROOM, rel=0.05)


def test_without_knowing_what_is_needed_it_is_more_than_was_written(small: Path) -> None:
    needed = r"needs more than [\d,]+ bytes, and there was room for"
    with pytest.raises(io.DiskFullError, match=needed), io.naming_full_disk(small / "part"):
        plain(small / "part")


def test_a_draft_is_removed_and_its_target_named(small: Path) -> None:
    line = re.escape(f"the disk is full: {small / 'rows'} needs more")
    with pytest.raises(io.DiskFullError, match=line), io.new_folder(small / "rows", overwrite=False) as draft:
        plain(draft / "train.parquet")
    assert list(small.iterdir()) == []


def test_torchs_words_with_room_left_are_no_full_disk(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unexpected pos"), io.naming_full_disk(tmp_path):
        raise RuntimeError("unexpected pos 64 vs 0")


def test_a_workers_full_disk_is_seen_through_ray(tmp_path: Path) -> None:
    cause = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(io.DiskFullError), io.naming_full_disk(tmp_path):
        raise ray.exceptions.RayTaskError("save_checkpoint", "a long traceback", cause)


@pytest.mark.parametrize("writer", ["plain", "torch"])
def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path, writer: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        limit = r"larger than this process may write \(ulimit -f\)"
        with pytest.raises(io.DiskFullError, match=limit), io.naming_full_disk(tmp_path / "part"):
            WRITERS[writer](tmp_path / "part")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("error", [ValueError("bad row"), PermissionError(errno.EACCES, "denied")])
def test_other_failures_pass(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, io.naming_full_disk(tmp_path):
        raise error
    assert raised.value is error
