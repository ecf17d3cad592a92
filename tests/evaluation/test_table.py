from __future__ import annotations

import pytest

from recipe.rerule.evaluation.registry import benchmarks
from recipe.rerule.evaluation.table import columns_of, format_table

RESULTS = {
    "base": {
        "forget/recall": 0.9,
        "forget/qa/recall": 0.8,
        "retain/recall": 0.95,
        "retain_unseen/recall": 1.0,
    },
    "rule": {"forget/recall": 0.1236, "forget/qa/recall": 0.0, "retain/recall": 0.875},
}
ANCHORS = {"always refuses": {"forget/recall": 0.25, "retain/recall": 0.0}}


def test_table_by_hand():
    lines = format_table(RESULTS, ANCHORS, "tofu").splitlines()
    assert lines[:7] == [
        "               forget        retain unseen",
        "model          recall     QA recall recall",
        "------------------------------------------",
        "base            0.900  0.800  0.950  1.000",
        "rule            0.124  0.000  0.875      –",
        "------------------------------------------",
        "always refuses  0.250      –  0.000      –",
    ]
    assert "ROUGE-L convention: tofu." in " ".join(lines[7:])


def test_per_cent_and_small_p_values_are_shown_as_is_customary():
    rwku = {"rule": {"forget/fb": 0.28, "forget/all": 0.2767, "retain/all": 0.737}}
    lines = format_table(rwku, {}, "rwku", "rwku").splitlines()
    assert lines[1:4] == ["model     FB    All    All", "-" * 26, "rule    28.0   27.7   73.7"]
    tofu = {"original": {"forget_quality": 4.4883e-06, "model_utility": 0.62675}}
    assert format_table(tofu, {}, "tofu", "tofu").splitlines()[1:4] == [
        "model          FQ     MU",
        "------------------------",
        "original 4.49e-06 0.6268",
    ]


@pytest.mark.parametrize("benchmark", ["world", "rwku", "muse_books", "tofu"])
def test_table_fits_in_100_columns_whatever_the_names(benchmark: str):
    full = {column.metric: 0.5 for column in benchmarks()[benchmark].columns}
    text = format_table(
        {"a very long model name " * 4: full}, {"always refuses, naming the target": full}, "x", benchmark
    )
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    if benchmark == "world":
        assert "…" in lines[3]
    assert "always refuses, naming the target" in lines[5]


def test_a_benchmark_without_columns_shows_every_metric():
    columns = columns_of("mine", {"a": {"x": 1.0}, "b": {"y": 2.0, "x": 0.0}})
    assert [(column.metric, column.aim) for column in columns] == [("x", ""), ("y", "")]
