from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.reporting.evaluations import read_benchmarks
from recipe.rerule.reporting.naturalness import judged_table, read_naturalness
from recipe.rerule.reporting.result_tables import results_table
from tests.report.conftest import response


def counts(responses: int, missing: int) -> dict:
    return {"forget": {"responses": responses, "scored": responses - missing, "missing": missing, "empty": 0}}


@pytest.fixture
def evaluation(write_evaluation) -> Path:
    meta = {"benchmark": "rwku", "probes": {"sha256": "k"}}
    return write_evaluation("e", [response("base", 0, "x")], meta=meta, results={"base": {"forget/all": 0.5}})


def write_scores(folder: Path, sha256: str, **changes: Any) -> Path:
    folder.mkdir()
    summary = {
        "results": {"base": {"forget/readability": 87.5, "forget/all": 62.5}},
        "anchors": {"refuses": {"forget/readability": 100.0}},
        "intervals": {"base": {"forget/all": [50.0, 75.0]}},
        "comparisons": [],
        "counts": {"base": counts(10, 2), "refuses": counts(1, 0)},
        "note": "Our own rubric.",
        "rubric": {"version": 1, "scale": "1 to 5 as 0 to 100"},
        "judge": {"model": "some-judge", "temperature": 0.0},
        "responses_sha256": sha256,
    } | changes
    (folder / "naturalness.json").write_text(json.dumps(summary))
    return folder


def sha256_of(folder: Path) -> str:
    return hashlib.sha256((folder / "responses.parquet").read_bytes()).hexdigest()


def test_scores_are_shown_with_the_rubric_judge_and_what_is_missing(evaluation, tmp_path):
    scores = write_scores(tmp_path / "scores", sha256_of(evaluation))
    (judged,) = read_naturalness([scores], read_benchmarks([evaluation]))
    assert judged.note == (
        "Our own rubric. Judge: some-judge, temperature 0.0; rubric version 1, 1 to 5 as 0 to 100."
    )
    table = results_table(judged.targets[0], "base")
    assert [cell.text for cell in table.rows[0].cells] == ["87.5", "62.5"]
    assert table.rows[0].cells[1].interval == "50.0–75.0"
    assert "cannot be compared with ours" in table.caption
    missing = {row.name: [cell.value for cell in row.cells] for row in judged_table(judged).rows}
    assert missing == {"base, forget": [10, 8, 2, 0], "refuses, forget": [1, 1, 0, 0]}


def test_scores_of_models_evaluated_one_by_one_stand_in_one_table(evaluation, write_evaluation, tmp_path):
    meta = {"benchmark": "rwku", "probes": {"sha256": "k"}}
    other = write_evaluation(
        "o", [response("rule", 0, "y")], meta=meta, results={"rule": {"forget/all": 0.25}}
    )
    rule = {"results": {"rule": {"forget/all": 25.0}}, "counts": {"rule": counts(5, 1)}, "intervals": {}}
    scores = [
        write_scores(tmp_path / "first", sha256_of(evaluation)),
        write_scores(tmp_path / "second", sha256_of(other), **rule),
    ]
    benchmarks = read_benchmarks([evaluation, other])
    (judged,) = read_naturalness(scores, benchmarks)
    (target,) = judged.targets
    assert list(target.results) == ["base", "rule"]
    assert [row.name for row in judged_table(judged).rows] == [
        "base, forget",
        "refuses, forget",
        "rule, forget",
    ]
    third = write_scores(tmp_path / "third", sha256_of(other), **rule, judge={"model": "another-judge"})
    with pytest.raises(ValueError, match="different judges or rubrics"):
        read_naturalness([scores[0], third], benchmarks)


def test_scores_of_other_responses_are_refused(evaluation, tmp_path):
    scores = write_scores(tmp_path / "scores", "0" * 64)
    with pytest.raises(ValueError, match="scores of responses that no --results folder holds"):
        read_naturalness([scores], read_benchmarks([evaluation]))


def test_a_folder_without_scores_is_named(evaluation, tmp_path):
    with pytest.raises(ValueError, match=r"naturalness\.json does not exist"):
        read_naturalness([tmp_path], read_benchmarks([evaluation]))
