"""The benchmarks' run scripts with SMOKE=1: from real files to the report, on the real stack."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_prep.contract import read_rows
from recipe.rerule.runs.history import read_metrics
from reward.score import compute_score
from tests.data_prep.real_data import put_real_muse
from tests.e2e.run_checks import assert_records_are_complete
from tests.e2e.stack import ROOT, run_script

DATA = ROOT.parent / "shared" / "data"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not DATA.is_dir(), reason=f"benchmark data not found at {DATA}"),
]


METRICS = {
    "tofu": ("forget_Q_A_ROUGE", "forget_Q_A_Prob", "forget_truth_ratio", "retain_Truth_Ratio"),
    "muse_books": ("knowmem_f", "knowmem_r", "forget_knowmem_ROUGE", "privleak"),
}
"""What every model must have a number for, even of the few probes of a try."""


@pytest.mark.parametrize(
    ("benchmark", "arms"),
    [
        ("muse_books", "rule"),  # raw prompts and stop strings
        pytest.param("tofu", "rerule npo_gdr", marks=pytest.mark.full),
    ],
)
def test_a_script_goes_from_files_to_report(benchmark: str, arms: str, tmp_path: Path) -> None:
    out, muse, names = tmp_path / "out", benchmark == "muse_books", arms.split()
    # The real files of MUSE-Books as a whole are not at hand.
    data = put_real_muse(tmp_path / "raw") if muse else DATA / benchmark
    settings = {"SMOKE": "1", "DATA": str(data), "OUT": str(out), "ARMS": arms}
    if muse:
        settings["EVALUATE_OPTIONS"] = f"--texts {made_texts(tmp_path / 'privleak')}"
    run_script(f"run_{benchmark}.sh", **settings)
    joined = "-".join(names)
    metrics = read_metrics(out / names[0])
    assert sorted(metrics) == [1, 2, 3]
    assert metrics[3].get("replay/updates") == (1 if names[0] == "rerule" else None)
    assert bool(list((out / names[0]).glob("global_step_*/replay"))) == (names[0] == "rerule")
    rows = next((out / "data").rglob("train.parquet"))
    assert {row["extra_info"]["raw"] for row in read_rows(rows)} == {muse}
    assert_records_are_complete(out / names[0], rows, 3, reward_of(out / names[0]))

    evaluation = out / f"evaluation_{joined}"
    results = json.loads((evaluation / "results.json").read_text())
    assert list(results) == ["base", "stage1", *names]
    assert {metric for row in results.values() for metric in METRICS[benchmark] if metric not in row} == set()
    pairs = {(test["a"], test["b"]) for test in json.loads((evaluation / "comparisons.json").read_text())}
    assert len(pairs) == len(results) * (len(results) - 1) // 2
    assert names[-1] in (out / f"report_{joined}.html").read_text()


def reward_of(run: Path) -> Any:
    """The reward with the settings of a run."""
    settings = yaml.safe_load((run / "config.yaml").read_text())["reward"]["custom_reward_function"]
    return partial(compute_score, **(settings["reward_kwargs"] or {}))


def made_texts(folder: Path) -> Path:
    """Texts in the form of MUSE's folder privleak, for membership inference."""
    folder.mkdir()
    for part in ("forget", "holdout"):
        texts = [f"The {part} text {number} tells of a castle." for number in range(4)]
        (folder / f"{part}.json").write_text(json.dumps(texts))
    return folder
