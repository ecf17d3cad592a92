"""The plumbing of the speed measurement, on a few rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import data_prep as benchmark
from data_prep.contract import read_rows


@pytest.mark.parametrize(
    ("rows", "targets"), [(8, {"1_Mira_Okonjo": 8}), (1208, {"1_Mira_Okonjo": 1200, "2_Mira_Okonjo": 8})]
)
def test_all_rows_are_built(tmp_path: Path, rows: int, targets: dict[str, int]) -> None:
    benchmark.put_targets(tmp_path / "raw", rows)
    figures = benchmark.measure(tmp_path / "raw", tmp_path / "out", rows)
    built = {name: read_rows(tmp_path / "out" / name / "train.parquet") for name in targets}
    assert {name: len(found) for name, found in built.items()} == targets
    sides = [row["reward_model"]["ground_truth"]["type"] for found in built.values() for row in found]
    assert sides.count("forget") == sides.count("retain") == rows / 2
    assert {row["extra_info"]["mode"] for row in built["1_Mira_Okonjo"]} == {"qa", "fb"}
    assert figures["rows"] == rows
    assert figures["rows_per_second"] == pytest.approx(rows / figures["seconds"], rel=0.1)


def test_the_last_line_is_json() -> None:
    command = [sys.executable, "-m", "benchmarks.data_prep", "--rows", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() == {"rows", "seconds", "rows_per_second"}
    assert figures["rows"] == 40


def test_a_build_that_fails_ends_the_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as caught:
        benchmark.measure(tmp_path / "empty", tmp_path / "out", 8)
    assert caught.value.code == 1
    assert "holds no target folder" in capsys.readouterr().err
