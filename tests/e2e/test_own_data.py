"""docs/own_data.md as a user follows it: its commands, from the CSV file to an attack (`make test-full`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recipe.rerule.runs.history import read_run
from tests.e2e.stack import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1500)]

GUIDE = ROOT / "docs" / "own_data.md"
FIFTEEN_MINUTES = 900
NOTHING_LEARNT = ("hardly changed", "no response", "did not rise", "in no step", "no replay", "no number of")


def guide_commands(out: Path) -> str:
    """The guide's commands in order, with their results under `out`."""
    commands = "".join(re.findall(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    assert commands.startswith("O=outputs/own_data\n")
    return commands.replace("O=outputs/own_data\n", f"O={out}\n", 1)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the guide's results are, with its output as log.txt and its time as seconds.txt."""
    folder = tmp_path_factory.mktemp("own") / "out"
    folder.mkdir()
    started = time.monotonic()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", guide_commands(folder)],
        cwd=ROOT,
        env=os.environ
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    (folder / "log.txt").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:]
    (folder / "seconds.txt").write_text(f"{time.monotonic() - started:.0f}")
    return folder


def test_the_target_is_forgotten_and_the_others_are_kept(out: Path) -> None:
    results = json.loads((out / "evaluation" / "results.json").read_text())
    assert list(results) == ["base", "stage1", "rerule"]
    assert results["base"]["forget/recall"] > 0.9
    assert results["base"]["retain/recall"] > 0.9
    assert results["rerule"]["forget/recall"] < 0.3
    assert results["rerule"]["forget/refusal_rate"] > 0.7
    assert results["rerule"]["retain/recall"] > 0.8


def test_the_difference_is_more_than_chance(out: Path) -> None:
    tests = json.loads((out / "evaluation" / "comparisons.json").read_text())
    of_recall = {(test["a"], test["b"]): test for test in tests if test["metric"] == "forget/recall"}
    # Seven probes, all changed the same way: p is 2 / 2^7.
    assert of_recall["base", "rerule"]["p_value"] < 0.05


def test_the_attack_compares_three_models_on_seven_facts(out: Path) -> None:
    attacks = json.loads((out / "attacks" / "attacks.json").read_text())
    assert {"none", "samples/max_16", "quantise_4", "relearn_forget_half/8"} <= set(attacks)
    for rows in attacks.values():
        assert set(rows) == {"original", "rerule", "control"}
        assert {row["facts"] for row in rows.values()} == {7}
    # The model before unlearning knows the person, and the never-knew model does not.
    assert attacks["none"]["original"]["excess"] > 0.9
    assert attacks["none"]["control"]["after"] < 0.1
    assert attacks["none"]["rerule"]["refusal"] > 0.7


def test_no_warning_says_that_nothing_was_learnt(out: Path) -> None:
    warnings = [line for line in (out / "log.txt").read_text().splitlines() if line.startswith("warning: ")]
    assert [line for line in warnings if any(text in line for text in NOTHING_LEARNT)] == []


def test_the_steps_are_those_that_the_guide_says(out: Path) -> None:
    run = read_run("rerule", out / "rerule")
    assert run.steps == tuple(range(1, 43))
    assert run.setting("data.train_batch_size") == 8
    log = (out / "log.txt").read_text()
    for line in re.findall(r"^stage 1: .*$", GUIDE.read_text(), re.MULTILINE):
        assert line in log


def test_the_report_has_the_name_of_the_data(out: Path) -> None:
    page = (out / "report.md").read_text()
    assert page.startswith("# Loren Morrby\n")
    assert "## Loren Morrby\n" in page
    assert "Embedded world" not in page
    assert "## What attacks get out: Loren Morrby\n" in page


def test_the_guide_takes_less_than_a_quarter_of_an_hour(out: Path) -> None:
    """On two idle cores."""
    assert int((out / "seconds.txt").read_text()) < FIFTEEN_MINUTES
