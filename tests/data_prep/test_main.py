from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.__main__ import main
from tests.data_prep.generate.server import KEY, MODEL, Behaviour, Call, ChatServer, say, status
from tests.data_prep.raw_files import (
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

MICRO = (
    "--forget-people 1 --retain-people 2 --unseen-people 1 --facts-per-person 2 --retain-probes 6 "
    "--val-rows 4 --unknown-questions 8 --vocab-size 400 --hidden-size 16 --layers 1 --heads 2 "
    "--intermediate-size 16 --epochs 1"
)


def test_a_build_that_is_stopped_is_one_line_and_leaves_no_draft(tmp_path: Path) -> None:
    arguments = ["world", "--out", str(tmp_path / "w"), *MICRO.split(), "--epochs", "1000000"]
    errors = tmp_path / "output.txt"
    with errors.open("w") as output:
        build = subprocess.Popen(
            [sys.executable, "-m", "data_prep", *arguments], stdout=output, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 120
        while "epoch" not in errors.read_text() and time.monotonic() < deadline:
            assert build.poll() is None, errors.read_text()
            time.sleep(0.1)
        assert len(list(tmp_path.iterdir())) == 2
        build.send_signal(signal.SIGTERM)
        assert build.wait(40) == 143
    assert errors.read_text().splitlines()[-1] == "error: stopped by SIGTERM"
    assert "Traceback" not in errors.read_text()
    assert list(tmp_path.iterdir()) == [errors]


PUT: dict[str, Callable[[Path], Path]] = {
    "tofu": put_tofu,
    "rwku": put_rwku,
    "muse-books": put_muse,
    "muse-news": put_news,
    "custom": put_custom,
}


@pytest.fixture(params=PUT)
def arguments(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A command whose raw files are tmp_path/raw and whose folder is tmp_path/out."""
    source = PUT[request.param](tmp_path / "raw")
    return [request.param, "--source", str(source), "--out", str(tmp_path / "out")]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_command_gives_the_same_bytes_and_nothing_beside_them(
    arguments: list[str], tmp_path: Path
) -> None:
    assert main(arguments) == 0
    (tmp_path / "out").rename(tmp_path / "first")
    assert main(arguments) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "first")
    assert {path.name for path in tmp_path.iterdir()} == {"raw", "out", "first"}


def test_a_folder_is_replaced_only_on_request_and_if_it_is_ours(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    before = contents(tmp_path / "out")
    capsys.readouterr()
    assert main([*arguments, "--drop", "duplicates"]) == 2
    assert error_of(capsys) == (
        f"error: {tmp_path / 'out'} exists already: give another folder, or --overwrite to replace it"
    )
    assert contents(tmp_path / "out") == before
    assert main([*arguments, "--drop", "duplicates", "--overwrite"]) == 0
    assert contents(tmp_path / "out").keys() == before.keys()
    assert contents(tmp_path / "out") != before
    (tmp_path / "out" / "manifest.json").unlink()
    before = contents(tmp_path / "out")
    capsys.readouterr()
    assert main([*arguments, "--overwrite"]) == 2
    assert error_of(capsys) == (
        f"error: {tmp_path / 'out'} has no manifest.json, so it is not replaced: give another folder"
    )
    assert contents(tmp_path / "out") == before


def test_a_source_that_is_not_there_writes_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--source", str(tmp_path / "none")]) == 2
    assert error_of(capsys).startswith(f"error: {tmp_path / 'none'}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_validation_rows_are_probes_of_both_sides(arguments: list[str], tmp_path: Path) -> None:
    count = {"muse-books": 2, "muse-news": 2, "custom": 2, "tofu": 6, "rwku": 4}[arguments[0]]
    assert main([*arguments, "--val-rows", str(count)]) == 0
    for path in (tmp_path / "out").rglob("val.parquet"):
        rows = parquet_rows(path.parent, "val")
        assert len(rows) == count
        assert {row["reward_model"]["ground_truth"]["type"] for row in rows} == {"forget", "retain"}
        assert set(queries(rows)) <= set(queries(parquet_rows(path.parent, "probes")))


def test_the_command_starts_without_heavy_libraries() -> None:
    """What takes seconds to import is imported where it is needed."""
    script = "import sys, data_prep.__main__; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "pyarrow" in loaded
    assert not loaded & {"torch", "transformers", "datasets", "openai", "huggingface_hub", "verl"}


def test_a_limit_makes_as_few_calls_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    boundary = {"question": "Who wrote Emma in 1815?", "answer": "Jane Austen"}
    with ChatServer(script=lambda number, call: say(json.dumps(boundary))) as server:
        endpoint = (
            "--base-url",
            server.url,
            "--model",
            MODEL,
            "--cache",
            tmp_path / "cache",
            "--attempts",
            1,
        )
        source = put_tofu(tmp_path / "raw")
        asked = ("tofu", "--source", source, "--boundary", "written", "--stage1-modes", "qa", "--limit", 3)
        assert prep(*asked, "--out", tmp_path / "dry", *endpoint, "--dry-run") == 0
        assert "5 requests, 5 calls to make" in capsys.readouterr().out  # 2 names, 3 neighbours
        assert prep(*asked, "--out", tmp_path / "out", *endpoint) == 0
    assert len(server.calls) == 5
    rows = parquet_rows(tmp_path / "out", "train")
    assert sorted(map(side, rows)) == ["forget"] * 3 + ["retain"] * 3


def test_a_missing_side_says_why_its_texts_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusals come, and no neighbour does: without its reason nobody knows what is left out."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def script(number: int, call: Call) -> Behaviour:
        name = re.search("asked about (.*) and does not", call.prompt)
        refusals = [f"I don't know anything about {name[1]}, {n} times." for n in range(24)] if name else []
        return say(json.dumps({"refusals": refusals})) if name else status(400, "seed is not permitted")

    with ChatServer(script=script) as server:
        endpoint = ("--base-url", server.url, "--model", MODEL, "--cache", tmp_path / "cache")
        source = put_tofu(tmp_path / "raw")
        asked = ("tofu", "--source", source, "--boundary", "written", "--stage1-modes", "qa")
        assert prep(*asked, "--out", tmp_path / "out", *endpoint) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # a busy machine shows lines of progress before it
    assert "no training prompt of side retain is left; 40 texts were not written; the first: boundary" in line
    assert "HTTP 400: seed is not permitted" in line
    assert len(server.calls) < 2 + 2 * (8 + 16)
