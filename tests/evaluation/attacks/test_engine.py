"""The command with vLLM gives what it gives with the stand-in of the golden files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule import evaluate
from tests.evaluation.attacks.conftest import ENGINE, words

ATTACKS = (
    *("prefill", "gold_prefill", "samples", "memorisation", "probability", "choice", "quantise_4"),
    "relearn_retain",
)
MEASURED = ("probability", "choice/without_name", "choice")
"""What is computed from log-probabilities, which the two engines round in their own ways."""
SAME = ("before", "excess", "gain", "refusal", "retain", "facts")


@pytest.mark.e2e
@pytest.mark.usefixtures("unchanged_environment")
@pytest.mark.timeout(600)
def test_vllm_and_its_stand_in_agree(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One engine answers for three models and nine changed ones; samples are drawn otherwise."""
    assert evaluate.main([*words(world, tmp_path / "out"), "--attacks", *ATTACKS]) == 0
    assert capfd.readouterr().err.count("starting vLLM for") == 1
    by_vllm = results(tmp_path / "out")
    monkeypatch.setenv("PYTHONPATH", ENGINE)
    assert evaluate.main([*words(world, tmp_path / "other"), "--attacks", *ATTACKS]) == 0
    by_stand_in = results(tmp_path / "other")
    assert list(by_vllm) == list(by_stand_in)
    for name, rows in by_vllm.items():
        drawn = name.startswith("samples/")
        measured = name.startswith(MEASURED)
        for model, row in rows.items():
            other = by_stand_in[name][model]
            # Of 16 answers each to 16 probes.
            near = 0.15 if drawn else 1e-4 if measured else 1e-9
            assert row["after"] == pytest.approx(other["after"], abs=near), (name, model)
            for field in SAME if measured else ():
                assert row[field] == pytest.approx(other[field], abs=1e-4), (name, model, field)
            exact = not (drawn or measured)
            assert not exact or row == other | {"p_holm": row["p_holm"]}, name
    assert by_vllm["prefill/affirmative"]["refusing"]["excess"] == 1


def results(folder: Path) -> Any:
    return json.loads((folder / "attacks.json").read_text())
