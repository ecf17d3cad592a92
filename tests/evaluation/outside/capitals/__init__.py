"""A benchmark of another package: the capitals of one country are to be forgotten.

An answer is right where it contains the capital.
"""

from __future__ import annotations

import argparse

from capitals.answers import LEGEND, evaluator, fact
from recipe.rerule.evaluation.columns import PERCENT, Column
from recipe.rerule.evaluation.options import Option
from recipe.rerule.evaluation.published import Published, PublishedFigures
from recipe.rerule.evaluation.registry import Benchmark
from recipe.rerule.evaluation.scoring import RecordMetrics, RecordScorer


def _metrics() -> RecordMetrics:
    from capitals import answers

    return answers


def _evaluator(options: argparse.Namespace):
    return evaluator(options.capitals_case or "any")


BENCHMARK = Benchmark(
    name="capitals",
    title="Capitals",
    columns=(
        Column("known/forget", "forget", "known", "low", *PERCENT),
        Column("known/retain", "retain", "known", "high", *PERCENT),
    ),
    legend=LEGEND,
    evaluator=_evaluator,
    options=(
        Option("capitals_case", "whether the case of letters counts (100 %)", choices=("any", "exact")),
    ),
    scorer=RecordScorer("capitals", "Capitals", _metrics),
    constant_baselines={"always Paris": "Paris."},
    fact=fact,
    pair=("known/forget", "known/retain"),
    published=PublishedFigures(results=(Published("guessing", "an atlas", {"known/forget": 0.005}),)),
    fractions=r"known/.*",
    score_example="  python -m recipe.rerule.evaluate score --benchmark capitals --log responses.jsonl\n",
)
