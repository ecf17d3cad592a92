"""Reading evaluation folders and judges' scores, joining them, and the mean over targets."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from recipe.rerule.reporting.evaluations import (
    mean_over_targets,
    read_benchmarks,
    read_evaluation,
    read_naturalness,
)
from recipe.rerule.reporting.results import results_section
from tests.report.made import evaluation, paired, response, texts

RESULTS = {"base": {"forget/all": 0.5}}
TEST = paired("base", "rule", "forget/all", 0.25, 0.15, 0.01, p_holm=0.03, probes=7)


def meta(probes: str, **changes) -> dict:
    return {"benchmark": "rwku", "probes": {"sha256": probes}, "rouge_l_convention": "rwku"} | changes


def test_a_folder_is_read(write_evaluation):
    one = [response("base", 0, "x"), response("base", 1, "x", side="retain", subject="Ben")]
    intervals = {"base": {"forget/all": [0.4, 0.6]}}
    read = read_evaluation(write_evaluation("e", one, meta=meta("k"), results=RESULTS, intervals=intervals))
    assert (read.benchmark, read.convention, read.target) == ("rwku", "rwku", "Ada Quill")
    assert read.numbers.to_numpy().tolist() == [["model", "base", "forget/all", 0.5, 0.4, 0.6]]
    two = [response("base", 0, "x"), response("base", 1, "x", subject="Cleo")]
    bare = write_evaluation("two", two, results=RESULTS)
    for path in (bare, bare / "results.json"):  # results alone are of the world, and two subjects no target
        read = read_evaluation(path)
        assert (read.benchmark, read.results, read.target) == ("world", RESULTS, "two")


def test_a_metric_is_held_to_the_bounds_of_its_own_benchmark(write_evaluation):
    """RWKU's metrics of this name are fractions; a benchmark of one's own may have counts."""
    results = {"base": {"forget/fb/words": 12.5}}
    assert read_evaluation(write_evaluation("world", results=results)).results == results
    with pytest.raises(ValueError, match=r"forget/fb/words of base is 12\.5, outside 0 to 1"):
        read_evaluation(write_evaluation("rwku", meta=meta("k"), results=results))


def test_folders_are_joined_by_model_over_the_same_probes_and_by_target_over_others(write_evaluation):
    """Folders that do not compare are in tests/refused."""
    first = write_evaluation("first", meta=meta("k"), results=RESULTS, comparisons=[TEST])
    bare = meta("k", benchmark_settings={"prompts": "bare", "retain_log": None, "max_tokens": 200})
    more = RESULTS | {"rule": {"forget/all": 0.25}}
    second = write_evaluation("second", meta=bare, results=more, comparisons=[TEST])
    ((joined,),) = (benchmark.targets for benchmark in read_benchmarks([first, second]))
    assert (joined.results, joined.folders, len(joined.tests)) == (more, (first, second), 1)
    assert joined.convention == "rwku; of base, rule: rwku; prompts: bare; max tokens: 200"
    # The pair in the other order, and after another correction, is the same test.
    turned = paired("rule", "base", "forget/all", -0.25, 0.15, 0.01, p_holm=0.01, probes=7)
    third = write_evaluation("third", meta=meta("k"), results=more, comparisons=[turned])
    ((joined,),) = (benchmark.targets for benchmark in read_benchmarks([first, third]))
    assert list(joined.tests["p_holm"]) == [0.01]
    # Each of two folders has a test of its own, which Holm's correction joins.
    others = [paired("base", name, "forget/all", 0.25, 0.15, 0.03, p_holm=0.03) for name in ("x", "y")]
    folders = [
        write_evaluation(one["b"], meta=meta("h"), results=RESULTS, comparisons=[one]) for one in others
    ]
    ((joined,),) = (benchmark.targets for benchmark in read_benchmarks(folders))
    assert list(joined.tests["p_holm"]) == [0.06, 0.06]
    ends = [(one, write_evaluation(one, meta=meta(one), results=more, comparisons=[of]))
            for one, of in (("t", TEST), ("u", turned))]  # fmt: skip
    mean = mean_over_targets([read_evaluation(folder) for _, folder in ends])
    assert [(one.a, one.difference) for one in mean.tests.itertuples()] == [("base", 0.25)]
    other = write_evaluation("other", meta=meta("l"), results=RESULTS)
    tofu = write_evaluation("tofu", meta=meta("t", benchmark="tofu"), results={"x": {"model_utility": 0.5}})
    read = read_benchmarks([first, other, tofu])
    assert [(benchmark.name, len(benchmark.targets)) for benchmark in read] == [("rwku", 2), ("tofu", 1)]


# The mean over targets.

FIRST = evaluation(
    results={"base": {"forget/all": 0.5, "odd": 1.0, "forget/all_pooled": 0.5}, "rule": {"forget/all": 0.25}},
    anchors={"refuses": {"forget/all": 0.0}},
    intervals={"base": {"forget/all": (0.47, 0.53)}, "rule": {"forget/all": (0.2, 0.3)}},
    tests=[paired("base", "rule", "forget/all", 0.25, 0.03, 0.01, facts=4)],
)
SECOND = evaluation(
    target="Ben",
    results={"base": {"forget/all": 1.0, "forget/all_pooled": 1.0}, "rule": {"forget/all": 0.75}},
    anchors={"refuses": {"forget/all": 0.5}},
    intervals={"base": {"forget/all": (0.96, 1.0)}},
    tests=[paired("base", "rule", "forget/all", 0.35, 0.04, 0.02)],
)


def test_targets_weigh_the_same_and_half_widths_add_in_squares():
    """A metric that one target lacks, or that is pooled over the probes of all, is no mean over targets."""
    mean = mean_over_targets([FIRST, SECOND])
    assert mean_over_targets([FIRST]) is FIRST
    assert mean.results == {"base": {"forget/all": 0.75}, "rule": {"forget/all": 0.5}}
    assert mean.anchors == {"refuses": {"forget/all": 0.25}}
    # below: sqrt(.03^2 + .04^2) / 2 = .025; above: sqrt(.03^2 + 0^2) / 2 = .015
    base, rule, refuses = mean.numbers[["low", "high"]].to_numpy()
    assert base.tolist() == pytest.approx([0.725, 0.765])
    assert all(value != value for value in [*rule, *refuses])  # one of the targets has no interval
    (test,) = mean.tests.to_dict("records")
    # half-width sqrt(.03^2 + .04^2) / 2 = .025
    assert (test["difference"], test["low"], test["high"]) == pytest.approx((0.3, 0.275, 0.325))
    standard_error = 0.025 / stats.norm.ppf(0.975)
    assert test["p_value"] == pytest.approx(2 * stats.norm.sf(0.3 / standard_error), rel=1e-9)
    assert (test["probes"], test["facts"]) == (20, pytest.approx(float("nan"), nan_ok=True))


def test_mean_tests_are_corrected_for_their_number():
    """x and y differ by as much as their half-width; u and v have no spread: u does not differ, v does."""
    tests = [paired("base", "rule", name, 0.05, 0.05, 0.5, facts=3) for name in ("x", "y")]
    tests += [paired("base", "rule", name, by, 0.0, 0.5, facts=3) for name, by in (("u", 0.0), ("v", 0.1))]
    mean = mean_over_targets([evaluation(tests=tests), evaluation(tests=[*tests, TEST | {"metric": "z"}])])
    p = 2 * stats.norm.sf(stats.norm.ppf(0.975) * 2**0.5)
    assert dict(zip(mean.tests["metric"], mean.tests["p_value"], strict=True)) == pytest.approx(
        {"x": p, "y": p, "u": 1.0, "v": 0.0}
    )
    assert mean.tests["p_holm"].tolist() == pytest.approx([3 * p, 3 * p, 1.0, 0.0])
    assert mean.tests["facts"].tolist() == [6] * 4


# Scores of a judge.


def write_scores(folder: Path, of: Path, name: str = "base", **changes: Any) -> Path:
    """What a judge says of the responses of an evaluation."""
    folder.mkdir()
    counts = {"forget": {"responses": 10, "scored": 8, "missing": 2, "empty": 0}}
    more = {"retain": {"responses": 5, "scored": 5, "missing": 0, "empty": 0}}
    summary = {
        "results": {name: {"forget/readability": 87.5, "forget/all": 62.5}},
        "counts": {name: counts | more},
        "judge": {"model": "some-judge"},
        "responses_sha256": hashlib.sha256((of / "responses.parquet").read_bytes()).hexdigest(),
    } | changes
    (folder / "naturalness.json").write_text(json.dumps(summary))
    return folder


def test_scores_of_models_evaluated_one_by_one_stand_in_one_table(write_evaluation, tmp_path):
    answers = {"base": [response("base", 0, "x")], "rule": [response("rule", 0, "y")]}
    folders = {
        name: write_evaluation(name, of, meta=meta("k"), results={name: {"forget/all": 0.5}})
        for name, of in answers.items()
    }
    known = read_benchmarks(list(folders.values()))
    scores = [write_scores(tmp_path / f"of {name}", of, name) for name, of in folders.items()]
    (judged,) = read_naturalness(scores, known)
    missing, table = results_section(judged, [], None).parts[1:]
    assert missing.endswith(": 2 of 15 of base, 2 of 15 of rule.")
    assert texts(table) == {"base": ["87.5", "62.5"], "rule": ["87.5", "62.5"]}
    for changes, told in (
        ({"judge": {"model": "another-judge"}}, "different judges or rubrics"),
        ({"results": {"rule": {"forget/all": 101.0}}}, "forget/all of rule is 101, outside 0 to 100"),
        ({"responses_sha256": "0" * 64}, "scores of responses that no --results folder holds"),
    ):
        other = write_scores(tmp_path / told.split()[-1], folders["rule"], "rule", **changes)
        with pytest.raises(ValueError, match=told):
            read_naturalness([scores[0], other], known)
