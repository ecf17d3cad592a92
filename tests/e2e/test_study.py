"""The study's commands as a reader gives them: short form, result file, report, and an arm through verl."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.study.results import read_results
from benchmarks.study.runs import read_run, run_file, write_run
from tests.e2e.stack import Command

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
ARMS = ("rule", "rerule")


def run(command: Callable[..., Command], *arguments: object) -> str:
    started = command("-m", *arguments)
    assert started.wait() == 0, started.output[-3000:]
    return started.output


def short_form(command: Callable[..., Command], out: Path) -> str:
    return run(command, "benchmarks.study", "--arms", *ARMS, "--seeds", 2, "--world", "micro", "--out", out)


def test_two_arms_on_two_seeds_from_the_command_to_the_report(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    first = short_form(command, tmp_path / "out")
    assert first.count("seed") == 4
    assert "rerule - rule" in first
    again = short_form(command, tmp_path / "out")
    assert "seed" not in again
    assert again.splitlines()[-3:] == first.splitlines()[-3:]

    file = tmp_path / "results.parquet"
    assert "4 runs" in run(command, "benchmarks.study.results", "pack", tmp_path / "out", file)
    runs = {(each.arm, each.seed): each for each in read_results(file)}
    assert set(runs) == {(arm, seed) for arm in ARMS for seed in (1, 2)}
    for seed in (1, 2):
        rule, rerule = (runs[arm, seed].curves for arm in ARMS)
        # The same prompts and responses until replay starts, after step 2.
        assert rule["reward/retain"][:3] == rerule["reward/retain"][:3]
        assert rule["compute"][:2] == rerule["compute"][:2]
        assert rerule["compute"][-1] > rule["compute"][-1]

    run(command, "benchmarks.study.report", file, "--out", tmp_path / "report")
    rows = list(csv.DictReader((tmp_path / "report" / "report" / "outcomes_micro.csv").open()))
    mean = sum(runs["rule", seed].final["forget/recall"] for seed in (1, 2)) / 2
    assert float(next(row["forget recall"] for row in rows if row["arm"] == "rule")) == pytest.approx(mean)


@pytest.mark.full
def test_an_arm_goes_through_verl(command: Callable[..., Command], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--arms", "rerule", "--seeds", 1, "--world", "micro", "--out", out)
    assert "through verl" in run(command, "benchmarks.study.verl_path", *arguments)
    assert run(command, "benchmarks.study.verl_path", *arguments).strip() == ""
    # The same responses and draws through the loop. The first groups have no signal here, and Adam makes a
    # full step of the rounding that is their gradient; where there is signal the two stay within 1e-6.
    again = run(command, "benchmarks.study.agreement", "--world", "micro", "--out", out)
    assert {"actor/grad_norm", "replay/grad_norm"} < set(again.split())
    assert float(again.split()[-1]) < 1e-2
    run(command, "benchmarks.study.results", "pack", out, tmp_path / "results.parquet")
    (made,) = read_results(tmp_path / "results.parquet")
    assert (made.world, made.arm, made.seed) == ("micro-verl", "rerule", 1)
    assert made.final["steps"] == 12
    assert len(made.curves["reward/retain"]) == 12
    assert {"forget/recall", "retain/recall", "retain_unseen/recall"} <= set(made.final)
    assert all(0 <= made.final[f"{section}/refused"] <= 1 for section in ("forget", "retain"))

    kept = read_run(run_file(out, "micro-verl", "rerule", 1))
    assert kept.model
    write_run(replace(kept, model="of another"), out)
    refused = command("-m", "benchmarks.study.verl_path", *arguments[:1], "rule", *arguments[2:])
    assert refused.wait() == 1
    assert "rerule-1.json started from another stage-1 model" in refused.output
