"""The command with vLLM gives what it gives with transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.attack_command import checked
from recipe.rerule.evaluation.engine import run
from tests.evaluation.attack_command import made

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
def test_vllm_and_transformers_agree(
    attack_with_vllm: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One engine answers for three models and nine changed ones; samples are drawn otherwise."""
    assert attack_with_vllm("--attacks", *ATTACKS) == 0
    assert capfd.readouterr().err.count("starting vLLM for") == 1
    by_vllm = results(tmp_path / "out")
    monkeypatch.setattr(run, "run_worker", made.run_worker)
    monkeypatch.setattr(checked, "select", lambda name: None)
    assert attack_with_vllm("--attacks", *ATTACKS, "--out", f"{tmp_path / 'other'}") == 0
    by_transformers = results(tmp_path / "other")
    assert list(by_vllm) == list(by_transformers)
    for name, rows in by_vllm.items():
        drawn = name.startswith("samples/")
        measured = name.startswith(MEASURED)
        for model, row in rows.items():
            other = by_transformers[name][model]
            # Of 16 answers each to 16 probes.
            near = 0.15 if drawn else 1e-4 if measured else 1e-9
            assert row["after"] == pytest.approx(other["after"], abs=near), (name, model)
            for field in SAME if measured else ():
                assert row[field] == pytest.approx(other[field], abs=1e-4), (name, model, field)
            exact = not (drawn or measured)
            assert not exact or row == other | {"seconds": row["seconds"], "p_holm": row["p_holm"]}, name
    assert by_vllm["prefill/affirmative"]["refusing"]["excess"] == 1
    # By its first token the model refuses: behind an affirmative beginning the right answers are likely.
    refusing, knowing = (by_vllm["probability/prefilled"][name]["after"] for name in ("refusing", "original"))
    assert by_vllm["probability"]["refusing"]["after"] < 0.1 < refusing
    assert refusing == pytest.approx(knowing, abs=1e-3)
    assert by_vllm["choice"]["refusing"]["after"] == by_vllm["choice"]["original"]["after"] > 0.9


def results(folder: Path) -> Any:
    return json.loads((folder / "attacks.json").read_text())
