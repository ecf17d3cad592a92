"""Each finished run of custom_cases.py is warned of as its case says."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipe.rerule.training import learning
from tests.made_runs import stage1_run, stage2_run
from tests.refused.custom_cases import CASES, STAGE1, RunCase


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_finished_run(case: RunCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if case.group == STAGE1:
        learning.after_stage1(stage1_run(tmp_path, case.losses))
    else:
        learning.after_stage2(stage2_run(tmp_path, case.forget, **case.changes))
    found = capsys.readouterr().err.splitlines()
    assert len(found) == (case.outcome == "warned")
    assert all(line.startswith("warning: ") and case.warning in line for line in found)
