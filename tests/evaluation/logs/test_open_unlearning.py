from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from recipe.rerule.evaluation.logs.open_unlearning import (
    Log,
    LogError,
    MissingError,
    common,
    log_text,
    metric_entry,
    read_log,
    rouge_entry,
    write_log,
)
from tests.evaluation.made_logs import write_json


def log(entries: dict[str, Any]) -> Log:
    return Log("made.json", {"m": {"agg_value": 0.5, "value_by_index": entries}})


def test_numbers_in_the_logs_order_with_one_column_an_answer():
    values = log({"4": {"prob": [0.1, 0.2]}, "2": {"prob": [0.3, 0.4]}}).numbers("m", "prob")
    assert values.index == ("4", "2")
    assert values.array.tolist() == [[0.1, 0.2], [0.3, 0.4]]
    assert values.at(["2", "4"]).tolist() == [[0.3, 0.4], [0.1, 0.2]]
    assert values.mean() == pytest.approx([0.15, 0.35])


def test_null_samples_are_left_out_and_named():
    values = log({"0": None, "1": {"prob": None}, "2": {"prob": [0.1, None]}, "3": {"prob": 0.5}}).numbers(
        "m", "prob"
    )
    assert (values.index, values.null) == (("3",), ("0", "1", "2"))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "value_by_index of m is empty"),
        ({"0": {"loss": 1}}, "m, index 0 has no prob"),
        ({"0": 0.5}, "m, index 0 has no prob"),
        ({"0": {"prob": 1}, "5": {"prob": math.nan}}, "m, index 5: prob is nan"),
        ({"5": {"prob": [1, -math.inf]}}, "m, index 5: prob is -inf"),
        ({"5": {"prob": "0.5"}}, 'index 5: prob is "0.5", not a number'),
        ({"5": {"prob": True}}, "index 5: prob is true, not a number"),
        ({"5": {"prob": {}}}, "index 5: prob is {}, not a number"),
        ({"5": {"prob": []}}, "index 5: prob is an empty list"),
        ({"5": {"prob": 10**400}}, "index 5: prob is 1000000"),
        ({"5": {"prob": 37.5}}, r"index 5: prob is 37.5, outside \[0, 1\]"),
        ({"5": {"prob": -0.1}}, r"index 5: prob is -0.1, outside \[0, 1\]"),
        ({"0": {"prob": [1, 1]}, "5": {"prob": [1]}}, "index 5: prob has 1 values, where others have 2"),
        ({"5": {"prob": None}}, "every prob of m is null"),
    ],
)
def test_values_that_cannot_be_scored_are_named(entries: dict[str, Any], message: str):
    with pytest.raises(LogError, match=f"made.json: .*{message}"):
        log(entries).numbers("m", "prob", low=0, high=1)


def test_rounding_beyond_a_bound_is_let_pass():
    assert log({"0": {"prob": 1 + 5e-7}}).numbers("m", "prob", high=1).array.item() > 1


def test_a_missing_metric_or_part_is_missing_rather_than_wrong():
    made = Log("made.json", {"m": {"agg_value": 1}, "mia": {"forget": {"value_by_index": {"0": {"s": 1}}}}})
    for metric, parts, message in (
        ("x", (), "made.json: no x"),
        ("m", (), "made.json: m has no value_by_index"),
        ("mia", ("holdout",), "made.json: no mia/holdout"),
    ):
        with pytest.raises(MissingError, match=message):
            made.numbers(metric, "s", *parts)
    assert made.numbers("mia", "s", "forget").array.tolist() == [[1.0]]


def test_samples_in_common_exclude_null_ones_of_either():
    made = Log(
        "made.json",
        {
            "a": {"value_by_index": {"0": {"s": 1}, "1": {"s": 1}, "2": None}},
            "b": {"value_by_index": {"2": {"s": 1}, "1": {"s": 1}, "0": None}},
            "c": {"value_by_index": {"0": {"s": 1}}},
        },
    )
    a, b, c = (made.numbers(name, "s") for name in "abc")
    assert common(made, a, b, "a and b") == ("1",)
    with pytest.raises(LogError, match=r"a and c are over different samples: 2 are in one only, as index 1"):
        common(made, a, c, "a and c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "log.json is empty"),
        ("[1]", "not a JSON object of metrics"),
        (
            '{"m": {"value_by_index": {"7": {"s": 1}, "8": {"s": 1}, "7": {"s": 2}}}}',
            "m/value_by_index/7 occurs twice",
        ),
        ('{"m": {"a": 1}, "m": {"a": 2}}', "m occurs twice"),
        ('{"m": {"value_by_index": {"7": {"s": 1, "s": 2}}}}', "m/value_by_index/7/s occurs twice"),
    ],
)
def test_files_that_are_no_log(tmp_path: Path, text: str, message: str):
    path = tmp_path / "log.json"
    path.write_text(text)
    with pytest.raises(LogError, match=message):
        read_log(path)


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(LogError, match="no such file"):
        read_log(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(LogError, match=r"is not text in UTF-8"):
        read_log(tmp_path / "bytes.json")


def test_deep_nesting_is_an_error_and_no_crash(tmp_path: Path):
    path = tmp_path / "deep.json"
    for text, reason in (
        ("[" * 100_000, "is nested too deeply"),
        ("9" * 5_000, "holds a number of too many"),
    ):
        path.write_text(text)
        with pytest.raises(LogError, match=rf"deep\.json {reason}"):
            read_log(path)


@given(st.dictionaries(st.integers(0, 999).map(str), st.floats(0, 1), min_size=1))
def test_what_is_written_is_read(scores: dict[str, float]):
    entry = metric_entry(0.5, {index: {"score": score} for index, score in scores.items()})
    values = Log("made.json", json.loads(log_text({"m": entry}))).numbers("m", "score")
    assert dict(zip(values.index, values.mean().tolist(), strict=True)) == scores


def test_written_metrics_are_sorted_and_indented_by_four(tmp_path: Path):
    write_log(tmp_path / "TOFU_EVAL.json", {"b": {"agg_value": 1.0}, "a": {"agg_value": 0.5}})
    text = (tmp_path / "TOFU_EVAL.json").read_text()
    assert text.startswith('{\n    "a": {\n        "agg_value": 0.5')
    assert read_log(tmp_path / "TOFU_EVAL.json").metrics == {"a": {"agg_value": 0.5}, "b": {"agg_value": 1.0}}


def test_nan_is_not_written(tmp_path: Path):
    with pytest.raises(ValueError, match="Out of range float"):
        write_log(tmp_path / "log.json", {"m": {"agg_value": math.nan}})
    assert not (tmp_path / "log.json").exists()


def test_rouge_entries_hold_what_rouge_score_gives():
    entry = rouge_entry("Q?", "the old lamps", "An old lamp")
    scores = RougeScorer(["rouge1", "rougeL"], use_stemmer=True).score("the old lamps", "An old lamp")
    assert entry == {
        "rouge1_recall": scores["rouge1"].recall,
        "rougeL_f1": scores["rougeL"].fmeasure,
        "rougeL_recall": scores["rougeL"].recall,
        "input": "Q?",
        "ground_truth": "the old lamps",
        "generation": "An old lamp",
    }
    assert entry["rougeL_recall"] == pytest.approx(2 / 3)


def test_texts_are_given_only_where_every_sample_has_one(tmp_path: Path):
    path = write_json(tmp_path / "l.json", {"m": {"value_by_index": {"0": {"t": "a"}, "1": {"t": ""}}}})
    assert read_log(path).texts("m", "t") == {"0": "a", "1": ""}
    assert log({"0": {"t": "a"}, "1": {"u": "b"}}).texts("m", "t") is None


def test_values_are_float64():
    assert log({"0": {"prob": 1}}).numbers("m", "prob").array.dtype == np.float64
