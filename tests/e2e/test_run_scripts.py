"""The benchmarks' run scripts with SMOKE=1: from real files to the report, on the real stack."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from data_prep.contract import read_rows
from recipe.rerule.runs.history import read_metrics
from reward.score import compute_score
from tests.data_prep.raw_files import put_news
from tests.data_prep.real_data import put_real_muse
from tests.e2e.run_checks import assert_records_are_complete
from tests.e2e.stack import ROOT, run_script

DATA = ROOT.parent / "shared" / "data"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not DATA.is_dir(), reason=f"benchmark data not found at {DATA}"),
]


MUSE = ("knowmem_f", "knowmem_r", "forget_knowmem_ROUGE", "privleak")
METRICS = {
    "tofu": ("forget_Q_A_ROUGE", "forget_Q_A_Prob", "forget_truth_ratio", "retain_Truth_Ratio"),
    "rwku": ("forget/fb", "forget/qa", "forget/aa", "forget/all", "retain/all", "forget/qa/refusal_rate"),
    "muse_books": MUSE,
    "muse_news": (*MUSE, "verbmem_f"),
}
"""What every model must have a number for, even of the few probes of a try."""


@pytest.mark.parametrize(
    ("benchmark", "folder", "arms"),
    [
        ("muse_books", ".", "rule"),  # raw prompts and stop strings
        pytest.param("muse_news", ".", "rerule", marks=pytest.mark.full),
        pytest.param("rwku", "3_Bruce_Lee", "rerule", marks=pytest.mark.full),
        pytest.param("tofu", ".", "rerule npo_gdr", marks=pytest.mark.full),
    ],
)
def test_a_script_goes_from_files_to_report(benchmark: str, folder: str, arms: str, tmp_path: Path) -> None:
    out, muse, names = tmp_path / "out", benchmark.startswith("muse"), arms.split()
    # The real files of MUSE-News, and those of MUSE-Books as a whole, are not at hand.
    put = {"muse_news": partial(put_news, count=16), "muse_books": put_real_muse}.get(benchmark)
    data = put(tmp_path / "raw") if put else DATA / benchmark
    settings = {"SMOKE": "1", "DATA": str(data), "OUT": str(out), "TARGETS": "Bruce Lee", "ARMS": arms}
    if muse:
        settings["EVALUATE_OPTIONS"] = f"--texts {made_texts(tmp_path / 'privleak')}"
    run_script(f"run_{benchmark}.sh", **settings)
    run, joined = out / folder, "-".join(names)
    metrics = read_metrics(run / names[0])
    assert sorted(metrics) == [1, 2, 3]
    assert metrics[3].get("replay/updates") == (1 if names[0] == "rerule" else None)
    assert bool(list((run / names[0]).glob("global_step_*/replay"))) == (names[0] == "rerule")
    rows = next((out / "data").rglob("train.parquet"))
    assert {row["extra_info"]["raw"] for row in read_rows(rows)} == {muse}
    assert_records_are_complete(run / names[0], rows, 3, reward_of(run / names[0]))

    evaluation = run / f"evaluation_{joined}"
    results = json.loads((evaluation / "results.json").read_text())
    assert list(results) == ["base", "stage1", *names]
    assert {metric for row in results.values() for metric in METRICS[benchmark] if metric not in row} == set()
    pairs = {(test["a"], test["b"]) for test in json.loads((evaluation / "comparisons.json").read_text())}
    assert len(pairs) == len(results) * (len(results) - 1) // 2
    assert names[-1] in (run / f"report_{joined}.html").read_text()
    assert (out / f"report_{joined}.html").is_file()
    if "npo_gdr" in names:
        first = json.loads((out / "npo_gdr/records/metrics.jsonl").read_text().splitlines()[0])
        # (2 / beta) ln 2
        assert first["data"]["loss/forget"] == pytest.approx(20 * 0.6931471805599453, rel=1e-5)
    # A second run finds everything done.
    assert run_script(f"run_{benchmark}.sh", **settings) < 5


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


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"ARM": "best", "DATA": "x", "MODEL": "y"},
            "error: ARM is best; choose rule, rerule, random, recommended, tau_X, rule_ppo or",
        ),
        ({"DATA": "x"}, "error: MODEL is not set: give the model that is to forget, or SMOKE=1"),
        ({"MODEL": "x"}, "error: DATA is not set: give the folder of the benchmark's files"),
    ],
)
@pytest.mark.parametrize("benchmark", ["tofu", "rwku", "muse_books", "muse_news"])
def test_a_missing_setting_is_one_line(benchmark: str, settings: dict[str, str], line: str) -> None:
    done = subprocess.run(
        ["bash", f"examples/run_{benchmark}.sh"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"} | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.strip().startswith(line)
    assert "\n" not in done.stderr.strip()
