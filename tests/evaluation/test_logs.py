"""open-unlearning's logs: read, checked, compared and written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from recipe.rerule.evaluation.logs import (
    Log,
    MissingError,
    check_retained,
    common,
    log_text,
    metric_entry,
    numbered_golds,
    read_log,
    rouge_entry,
    score_entry,
)
from recipe.rerule.evaluation.tasks.tofu import log_metrics, question_set
from tests.evaluation.made_tofu import TOFU, answered, made_probes


def log(entries: dict[str, Any]) -> Log:
    return Log("made.json", {"m": {"agg_value": 0.5, "value_by_index": entries}})


def test_numbers_in_the_logs_order_with_one_column_an_answer() -> None:
    values = log({"4": {"prob": [0.1, 0.2]}, "2": {"prob": [0.3, 0.4]}}).numbers("m", "prob")
    assert values.index == ("4", "2")
    assert values.array.tolist() == [[0.1, 0.2], [0.3, 0.4]]
    assert values.at(["2", "4"]).tolist() == [[0.3, 0.4], [0.1, 0.2]]
    assert values.mean() == pytest.approx([0.15, 0.35])


def test_null_samples_are_left_out_and_named() -> None:
    made = log({"0": None, "1": {"prob": None}, "2": {"prob": [0.1, None]}, "3": {"prob": 0.5}})
    values = made.numbers("m", "prob")
    assert (values.index, values.null) == (("3",), ("0", "1", "2"))
    assert made.null == {"m": "m: 3 of 4 samples are null and left out"}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "value_by_index of m is empty"),
        ({"0": {"loss": 1}}, "m, index 0 has no prob"),
        ({"0": 0.5}, "m, index 0 has no prob"),
        ({"0": {"prob": 1}, "5": {"prob": math.nan}}, "m, index 5: prob is NaN, not a finite number"),
        ({"5": {"prob": [1, -math.inf]}}, "m, index 5: prob is -Infinity, not a finite number"),
        ({"5": {"prob": "0.5"}}, 'index 5: prob is "0.5", not a finite number'),
        ({"5": {"prob": True}}, "index 5: prob is true, not a finite number"),
        ({"5": {"prob": []}}, "index 5: prob has 0 values"),
        ({"5": {"prob": 10**400}}, "index 5: prob is 1000000"),
        ({"5": {"prob": 37.5}}, r"index 5: prob is 37.5, outside \[0, 1\]"),
        ({"0": {"prob": [1, 1]}, "5": {"prob": 1}}, "index 5: prob has 1 values, where others have 2"),
        ({"0": None}, "every prob of m is null"),
    ],
)
def test_bad_values_are_named(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        log(entries).numbers("m", "prob", low=0, high=1)


def test_missing_metrics_and_parts_are_named() -> None:
    made = Log(
        "made.json", {"mia": {"forget": {"value_by_index": {"0": {"s": 1}}}}, "bare": {"agg_value": 1}}
    )
    for metric, parts, message in (
        ("other", (), "made.json: no other"),
        ("bare", (), "made.json: bare has no value_by_index"),
        ("mia", ("holdout",), "made.json: no mia/holdout"),
    ):
        with pytest.raises(MissingError, match=message):
            made.numbers(metric, "s", *parts)
    assert made.numbers("mia", "s", "forget").array.tolist() == [[1.0]]


def test_samples_in_common_exclude_null_ones_of_either() -> None:
    entries = {
        "a": {"0": {"s": 1}, "1": {"s": 1}, "2": None},
        "b": {"2": {"s": 1}, "1": {"s": 1}, "0": None},
        "c": {"0": {"s": 1}},
    }
    made = Log("made.json", {name: {"value_by_index": one} for name, one in entries.items()})
    a, b, c = (made.numbers(name, "s") for name in entries)
    assert common(made, a, b, "a and b") == ("1",)
    with pytest.raises(
        ValueError, match=r"a and c are over different samples: 2 are in one only, as index 1"
    ):
        common(made, a, c, "a and c")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "log.json does not exist"),
        (b"", "log.json is empty"),
        (b"[1]", "not a JSON object of metrics"),
        (b'{"m": {"value_by_index": {"7": {"s": 1}, "7": {"s": 2}}}}', "has the key '7' twice"),
    ],
)
def test_files_that_are_no_log(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "log.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_log(tmp_path / "log.json")


@given(st.dictionaries(st.integers(0, 999).map(str), st.floats(0, 1), min_size=1))
def test_what_is_written_is_read(scores: dict[str, float]) -> None:
    entry = metric_entry(0.5, {index: {"score": score} for index, score in scores.items()})
    values = Log("made.json", json.loads(log_text({"m": entry}))).numbers("m", "score")
    assert dict(zip(values.index, values.mean().tolist(), strict=True)) == scores
    assert log_text({"b": score_entry([0.5]), "a": entry}).startswith(
        '{\n    "a": {\n        "agg_value": 0.5'
    )
    with pytest.raises(ValueError, match="Out of range float"):
        log_text({"m": {"agg_value": math.nan}})


def test_rouge_entries_hold_what_rouge_score_gives() -> None:
    row = {"prompt": "Q?", "golds": ["the old lamps"], "response": " An old lamp\n"}
    scores = RougeScorer(["rouge1", "rougeL"], use_stemmer=True).score("the old lamps", "An old lamp")
    found = rouge_entry([row], "rougeL_recall")
    assert found["agg_value"] == found["value_by_index"]["0"]["rougeL_recall"] == pytest.approx(2 / 3)
    assert found["value_by_index"]["0"] == {
        "rouge1_recall": scores["rouge1"].recall,
        "rougeL_f1": scores["rougeL"].fmeasure,
        "rougeL_recall": scores["rougeL"].recall,
        "input": "Q?",
        "ground_truth": "the old lamps",
        "generation": "An old lamp",
    }


def test_questions_are_compared_by_the_right_answers_that_both_carry() -> None:
    probes = made_probes()  # the forget ones are 7, then 3
    golds = numbered_golds(probes, question_set)
    assert golds["forget"] == {"0": "Answer 3.", "1": "Answer 7."}
    made = Log("ours", log_metrics(TOFU.records(probes, answered(probes), Path())))
    assert made.texts("forget_Q_A_ROUGE", "ground_truth") == golds["forget"]
    check_retained(
        made, {"forget_Q_A_ROUGE": {"0": "Answer 3.", "5": "not in the log"}, "absent": {"0": "a"}}
    )
    with pytest.raises(
        ValueError, match=f"at index 1 of forget_Q_A_ROUGE the right answer is '{'x' * 60}…' in"
    ):
        check_retained(made, {"forget_Q_A_ROUGE": {"0": "Answer 3.", "1": "x" * 70}})
    some = log({"0": None, "1": {"rougeL_recall": 1.0}, "2": {"ground_truth": "Rome"}})
    check_retained(some, {"m": {"0": "a", "1": "b", "2": "Rome"}})
    with pytest.raises(ValueError, match="at index 2 of m "):
        check_retained(some, {"m": {"2": "Oslo"}})
