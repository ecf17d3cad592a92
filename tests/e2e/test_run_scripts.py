"""The benchmarks' run scripts with SMOKE=1: from real files to the report, on the real stack."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest

from data_prep.contract import read_rows
from recipe.rerule.runs.history import read_metrics
from tests.data_prep.raw_files import put_news
from tests.data_prep.real_data import put_real_muse
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
    ("benchmark", "folder"),
    [
        pytest.param("tofu", ".", marks=pytest.mark.full),
        pytest.param("rwku", "3_Bruce_Lee", marks=pytest.mark.full),
        ("muse_books", "."),  # the one with raw prompts and stop strings
        pytest.param("muse_news", ".", marks=pytest.mark.full),
    ],
)
def test_a_script_goes_from_files_to_report(benchmark: str, folder: str, tmp_path: Path) -> None:
    out, muse = tmp_path / "out", benchmark.startswith("muse")
    # The real files of MUSE-News, and those of MUSE-Books as a whole, are not at hand.
    put = {"muse_news": partial(put_news, count=16), "muse_books": put_real_muse}.get(benchmark)
    data = put(tmp_path / "raw") if put else DATA / benchmark
    settings = {"SMOKE": "1", "DATA": str(data), "OUT": str(out), "TARGETS": "Bruce Lee"}
    if muse:
        settings["EVALUATE_OPTIONS"] = f"--texts {made_texts(tmp_path / 'privleak')}"
    run_script(f"run_{benchmark}.sh", **settings)
    run = out / folder
    metrics = read_metrics(run / "rerule")
    assert sorted(metrics) == [1, 2, 3]
    assert metrics[3]["replay/updates"] == 1
    results = json.loads((run / "evaluation_rerule" / "results.json").read_text())
    assert list(results) == ["base", "stage1", "rerule"]
    assert {metric for row in results.values() for metric in METRICS[benchmark] if metric not in row} == set()
    assert (run / "report_rerule.html").is_file()
    assert (out / "report_rerule.html").is_file()
    rows = read_rows(next((out / "data").rglob("train.parquet")))
    assert {row["extra_info"]["raw"] for row in rows} == {muse}
    # A second run finds everything done.
    assert run_script(f"run_{benchmark}.sh", **settings) < 5


@pytest.mark.full
def test_several_arms_share_stage_1_and_have_one_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = {"SMOKE": "1", "DATA": str(DATA / "tofu"), "OUT": str(out), "ARMS": "rule npo_gdr"}
    run_script("run_tofu.sh", **settings)
    assert sorted(read_metrics(out / "rule")) == [1, 2, 3]
    lines = [json.loads(line) for line in (out / "npo_gdr/records/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["data"]["loss/forget"] == pytest.approx(
        20 * 0.6931471805599453, rel=1e-5
    )  # (2 / beta) ln 2
    evaluation = out / "evaluation_rule-npo_gdr"
    results = json.loads((evaluation / "results.json").read_text())
    assert list(results) == ["base", "stage1", "rule", "npo_gdr"]
    assert all(metric in row for row in results.values() for metric in METRICS["tofu"])
    pairs = {(test["a"], test["b"]) for test in json.loads((evaluation / "comparisons.json").read_text())}
    assert len(pairs) == 6
    assert {"rule", "npo_gdr"} in map(set, pairs)
    assert "npo_gdr" in (out / "report_rule-npo_gdr.html").read_text()
    # A second run finds everything done, and one of the arms alone is evaluated as it stands.
    assert run_script("run_tofu.sh", **settings) < 5
    trained = {
        path: path.stat().st_mtime_ns for name in ("stage1", "rule") for path in (out / name).rglob("*")
    }
    run_script("run_tofu.sh", **(settings | {"ARMS": "rule"}))
    assert (out / "report_rule.html").is_file()
    assert {path: path.stat().st_mtime_ns for path in trained} == trained


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
            "error: ARM is best; choose rule, rerule, random or recommended, or a method of python -m recipe",
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
