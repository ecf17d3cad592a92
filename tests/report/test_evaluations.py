from __future__ import annotations

import json

import pytest

from recipe.rerule.reporting.evaluations import convention_of, read_benchmarks, read_evaluation
from tests.report.conftest import response

RESULTS = {"base": {"forget/all": 0.5}}


def meta(probes: str, **changes) -> dict:
    return {"benchmark": "rwku", "probes": {"sha256": probes}, "conventions": {"rouge_l": "rwku"}} | changes


def test_a_folder_of_today_is_read_whole(write_evaluation):
    test = {
        "a": "base", "b": "rule", "metric": "forget/all", "difference": 0.25, "low": 0.1, "high": 0.4,
        "p_value": 0.01, "p_holm": 0.03, "probes": 7, "test": "paired",
    }  # fmt: skip
    folder = write_evaluation(
        "e",
        meta=meta("k"),
        results=RESULTS,
        anchors={"refuses": {"forget/all": 0.1}},
        intervals={"base": {"forget/all": [0.4, 0.6]}},
        comparisons=[test],
    )
    read = read_evaluation(folder)
    assert (read.benchmark, read.convention, read.probes_key) == ("rwku", "rwku", "k")
    assert read.intervals == {"base": {"forget/all": (0.4, 0.6)}}
    assert (read.comparisons[0].difference, read.comparisons[0].p) == (0.25, 0.03)


def test_an_older_folder_without_benchmark_and_intervals_is_the_world(write_evaluation):
    folder = write_evaluation("old", meta={"rouge_l_convention": "recall"}, results=RESULTS)
    read = read_evaluation(folder)
    assert (read.benchmark, read.convention, read.intervals, read.comparisons) == ("world", "recall", {}, ())
    assert read_evaluation(folder / "results.json").results == RESULTS


def test_the_target_is_the_one_subject_of_the_forget_probes(write_evaluation):
    one = [response("base", 0, "x"), response("base", 1, "x", side="retain", subject="Ben")]
    assert read_evaluation(write_evaluation("one", one, results=RESULTS)).target == "Ada Quill"
    two = [response("base", 0, "x"), response("base", 1, "x", subject="Cleo")]
    assert read_evaluation(write_evaluation("two", two, results=RESULTS)).target == "two"


def test_folders_over_the_same_probes_are_joined_by_model(write_evaluation):
    first = write_evaluation("first", meta=meta("k"), results=RESULTS)
    second = write_evaluation("second", meta=meta("k"), results=RESULTS | {"rule": {"forget/all": 0.25}})
    (benchmark,) = read_benchmarks([first, second])
    (target,) = benchmark.targets
    assert list(target.results) == ["base", "rule"]
    assert target.folders == (first, second)


def test_folders_over_other_probes_are_targets_and_other_benchmarks_stand_alone(write_evaluation):
    folders = [write_evaluation(name, meta=meta(name), results=RESULTS) for name in ("a", "b")]
    tofu = write_evaluation("tofu", meta=meta("t", benchmark="tofu"), results={"x": {"model_utility": 0.5}})
    read = read_benchmarks([*folders, tofu])
    assert [(benchmark.name, len(benchmark.targets)) for benchmark in read] == [("rwku", 2), ("tofu", 1)]


def test_a_model_with_two_numbers_is_refused(write_evaluation):
    first = write_evaluation("first", meta=meta("k"), results=RESULTS)
    second = write_evaluation("second", meta=meta("k"), results={"base": {"forget/all": 0.75}})
    with pytest.raises(ValueError, match=r"model base has other numbers in .*second than in .*first"):
        read_benchmarks([first, second])


def test_targets_with_other_models_are_refused(write_evaluation):
    first = write_evaluation("first", meta=meta("a"), results=RESULTS)
    second = write_evaluation("second", meta=meta("b"), results={"rule": {"forget/all": 0.75}})
    with pytest.raises(ValueError, match=r"first evaluates base, but .*second evaluates rule"):
        read_benchmarks([first, second])


def test_models_asked_in_different_ways_are_told_apart(write_evaluation):
    first = write_evaluation("first", meta=meta("k"), results=RESULTS)
    bare = meta("k", benchmark_settings={"prompts": "bare"})
    second = write_evaluation("second", meta=bare, results={"rule": {"forget/all": 0.25}})
    ((target,),) = (benchmark.targets for benchmark in read_benchmarks([first, second]))
    assert target.convention == "rwku; of rule: rwku; prompts: bare"


def test_targets_asked_in_different_ways_are_refused(write_evaluation):
    first = write_evaluation("first", meta=meta("a"), results=RESULTS)
    bare = meta("b", benchmark_settings={"prompts": "bare"})
    second = write_evaluation("second", meta=bare, results=RESULTS)
    with pytest.raises(ValueError, match="one way of asking and scoring"):
        read_benchmarks([first, second])


def test_one_target_over_two_sets_of_probes_is_refused(write_evaluation):
    folders = [
        write_evaluation(name, [response("base", 0, "x")], meta=meta(name), results=RESULTS)
        for name in ("all", "some")
    ]
    with pytest.raises(ValueError, match=r"all and .*some are both on Ada Quill, over different probes"):
        read_benchmarks(folders)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"results": {"base": {"x": "high"}}},
            "results.json is not as .*: base/x: Input should be a valid number",
        ),
        ({"results": {"base": {"x": True}}}, "base/x: Input should be a valid number"),
        ({"results": {}}, "has no rows"),
        (
            {"results": RESULTS, "meta": {"benchmark": "../x"}},
            "meta.json is not as .*: benchmark: String should",
        ),
        ({"results": RESULTS, "meta": []}, "meta.json is not as recipe.rerule.evaluate writes it"),
        ({"results": RESULTS, "meta": {"probes": "x.parquet"}}, "meta.json is not as"),
        ({"results": RESULTS, "meta": {"models": {"base": "models/base"}}}, "meta.json is not as"),
        (
            {"results": RESULTS, "intervals": {"base": {"x": [0.5]}}},
            "intervals.json is not as .*: base/x: List should have at least 2 items",
        ),
        (
            {"results": RESULTS, "comparisons": [{"a": "base"}]},
            "comparisons.json is not as .*: 0/b: Field required",
        ),
        ({"results": {"base": {"forget/recall": 57.0}}}, "forget/recall of base is 57, outside 0 to 1"),
        ({"results": RESULTS, "intervals": {"base": {"x": [0.5, 0.4]}}}, "ends before it begins"),
    ],
)
def test_a_malformed_file_is_named(write_evaluation, files, message):
    with pytest.raises(ValueError, match=message):
        read_evaluation(write_evaluation("e", **files))


def test_not_a_number_is_refused(write_evaluation):
    folder = write_evaluation("e", results=RESULTS)
    (folder / "results.json").write_text(json.dumps({"base": {"x": float("nan")}}))
    with pytest.raises(ValueError, match=r"results\.json holds NaN, which is no number of JSON"):
        read_evaluation(folder)


def test_a_damaged_table_is_named(write_evaluation):
    folder = write_evaluation("e", [response("base", 0, "x")], results=RESULTS)
    (folder / "responses.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"responses\.parquet cannot be read as parquet"):
        read_evaluation(folder)


def test_the_convention_comes_with_how_the_benchmark_asked():
    meta = {
        "rouge_l_convention": "tofu",
        "benchmark_settings": {"prompts": "chat", "retain_log": None, "max_tokens": 200},
    }
    assert convention_of(meta) == "tofu; prompts: chat; max tokens: 200"
    assert convention_of({"conventions": {"rouge_l": "rwku"}}) == "rwku"
    assert convention_of({}) == "not stated"
