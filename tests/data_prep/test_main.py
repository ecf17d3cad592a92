"""The command: the same bytes each time, nothing lost, and one line for what is wrong."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data_prep.generate.server import MODEL, Behaviour, Call, ChatServer, say, status
from tests.data_prep.raw_files import (
    contents,
    error_of,
    parquet_rows,
    prep,
    put_custom,
    put_muse,
    put_news,
    put_rwku,
    put_tofu,
    queries,
    side,
)

STOPPED = """
import os, signal, sys
from data_prep import __main__, build
def stop(*_):
    print(len(os.listdir(sys.argv[2])))
    signal.raise_signal(signal.SIGTERM)
build.write_sft_rows = stop
sys.exit(__main__.main(["custom", "--source", sys.argv[1], "--out", sys.argv[2] + "/made"]))
"""


def test_a_build_that_is_stopped_is_one_line_and_leaves_no_draft(tmp_path: Path) -> None:
    """SIGTERM comes when some of the files are written."""
    source, out = put_custom(tmp_path / "raw"), tmp_path / "out"
    out.mkdir()
    script = [sys.executable, "-c", STOPPED, str(source), str(out)]
    done = subprocess.run(script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "error: stopped by SIGTERM\n")
    assert int(done.stdout) > 0  # the draft
    assert list(out.iterdir()) == []


BENCHMARKS: dict[str, tuple[Callable[[Path], Path], int]] = {
    "tofu": (put_tofu, 6),
    "rwku": (put_rwku, 4),
    "muse-books": (put_muse, 2),
    "muse-news": (put_news, 2),
    "custom": (put_custom, 2),
}
"""What makes the raw files of a benchmark, and rows of validation."""


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_command_gives_the_same_bytes_and_loses_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/refused tries folders of somebody else."""
    (put, val_rows), out = BENCHMARKS[name], tmp_path / "out"
    arguments = (name, "--source", put(tmp_path / "raw"), "--out", out, "--val-rows", val_rows)
    assert prep(*arguments, "--source", tmp_path / "none") == 2
    assert error_of(capsys).startswith(f"error: {tmp_path / 'none'}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
    assert prep(*arguments) == 0
    before = contents(out)
    capsys.readouterr()
    assert prep(*arguments, "--drop", "duplicates") == 2
    assert error_of(capsys) == (
        f"error: {out} exists already: give another folder, or --overwrite to replace it"
    )
    assert contents(out) == before
    assert prep(*arguments, "--drop", "duplicates", "--overwrite") == 0
    assert contents(out).keys() == before.keys()
    assert contents(out) != before
    assert prep(*arguments, "--overwrite") == 0
    assert contents(out) == before
    assert len(list(tmp_path.iterdir())) == 2
    for path in out.rglob("val.parquet"):
        rows = parquet_rows(path.parent, "val")
        assert len(rows) == val_rows
        assert {side(row) for row in rows} == {"forget", "retain"}
        assert set(queries(rows)) <= set(queries(parquet_rows(path.parent, "probes")))


def test_a_missing_side_says_why_its_texts_are_missing(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusals come, and no neighbour does: without its reason nobody knows what is left out."""

    def script(number: int, call: Call) -> Behaviour:
        name = re.search("asked about (.*) and does not", call.prompt)
        refusals = [f"I don't know anything about {name[1]}, {n} times." for n in range(24)] if name else []
        return say(json.dumps({"refusals": refusals})) if name else status(400, "seed is not permitted")

    server.script = script
    endpoint = ("--base-url", server.url, "--model", MODEL, "--cache", tmp_path / "cache")
    source = put_tofu(tmp_path / "raw")
    asked = ("tofu", "--source", source, "--boundary", "written", "--stage1-modes", "qa")
    assert prep(*asked, "--out", tmp_path / "out", *endpoint) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # a busy machine shows lines of progress before it
    assert "no training prompt of side retain is left; 40 texts were not written; the first: boundary" in line
    assert "HTTP 400: seed is not permitted" in line
    assert len(server.calls) < 2 + 2 * (8 + 16)
