"""What golden tables do not show: names that are too long, and benchmarks without columns."""

from __future__ import annotations

from recipe.rerule.evaluation.table import columns_of, format_table


def test_long_names_are_cut_to_fit_in_100_columns_and_missing_numbers_are_dashes() -> None:
    results = {"a long name " * 9: {"forget/recall": 0.1236}, "rule": {"retain/recall": 0.875}}
    lines = format_table(results, {}, "tofu").splitlines()
    assert [line.split() for line in lines[:2]] == [["forget", "retain"], ["model", "recall", "recall"]]
    assert max(map(len, lines)) == len(lines[3]) == 100
    assert lines[3].endswith(" a…  0.124      –")
    assert lines[4].split() == ["rule", "–", "0.875"]


def test_a_benchmark_without_columns_shows_every_metric() -> None:
    columns = columns_of("mine", {"a": {"x": 1.0}, "b": {"y": 2.0, "x": 0.0}})
    assert [(column.metric, column.aim) for column in columns] == [("x", ""), ("y", "")]
