"""examples/run_real.sh with SMOKE=1, on the real model (`make test-full`).

RERULE_REAL_MODEL names a folder that examples/real_model.py made; without it the model is fetched.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.rerule.runs.history import read_metrics
from tests.e2e.stack import ROOT, run_script

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(3600)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The real model; the test is skipped where it cannot be had."""
    if given := os.environ.get("RERULE_REAL_MODEL"):
        return Path(given)
    folder = tmp_path / "model"
    command = [sys.executable, "examples/real_model.py", "--out", str(folder)]
    online = os.environ | {"HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=online, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the model cannot be had: {done.stderr[-300:]}")
    return folder


def test_from_the_rows_to_the_report(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = {"SMOKE": "1", "MODEL": str(model), "OUT": str(out)}
    run_script("run_real.sh", **settings)
    for arm in ("rule", "rerule"):
        assert sorted(read_metrics(out / arm)) == [1, 2]
    assert read_metrics(out / "rerule")[2]["replay/updates"] == 1
    results = json.loads((out / "evaluation" / "results.json").read_text())
    assert list(results) == ["base", "stage1", "rule", "rerule", "po"]
    attacks = json.loads((out / "attacks" / "attacks.json").read_text())
    assert set(attacks["none"]) == {"original", "rule", "rerule", "po"}
    assert (out / "report.html").is_file()
    # A second run finds everything done.
    assert run_script("run_real.sh", **settings) < 30
