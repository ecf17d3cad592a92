"""A benchmark of another package: the capitals of one country are to be forgotten.

An answer is right where it contains the capital.
"""

import argparse
from collections.abc import Hashable, Mapping
from typing import Any

from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.registry import PERCENT, Benchmark, Column, Option, Published, PublishedFigures
from recipe.rerule.evaluation.summary import Samples, Statistic, mean_of


class Capitals(Benchmark):
    """Every question asks for the capital of a country, which is its fact."""

    name = "capitals"
    title = "Capitals"
    columns = (
        Column("known/forget", "forget", "known", "low", *PERCENT),
        Column("known/retain", "retain", "known", "high", *PERCENT),
    )
    legend = "known: share of the answers that contain the capital, in per cent."
    options = (Option("capitals_case", "whether case counts (100 %)", choices=("any", "exact")),)
    constant_baselines: Mapping[str, str] = {"always Paris": "Paris."}
    pair = ("known/forget", "known/retain")
    published = PublishedFigures(results=(Published("guessing", "an atlas", {"known/forget": 0.005}),))
    fractions = r"known/.*"
    score_example = "  python -m recipe.rerule.evaluate score --benchmark capitals --log responses.parquet\n"
    max_tokens = 8

    def choose(self, options: argparse.Namespace) -> None:
        self.settings = {"case": options.capitals_case}

    def scores(self, response: str, probe: Probe) -> dict[str, Any]:
        exact = self.settings["case"] == "exact"
        fold = str if exact else str.casefold
        return {"known": any(fold(gold) in fold(response) for gold in probe.golds), "refused": False}

    def fact(self, row: Mapping[str, Any]) -> Hashable:
        return row["subject"]

    def statistics(self, samples: Samples) -> dict[str, Statistic]:
        return {f"known/{section}": mean_of("known", [section]) for section in samples}


BENCHMARK = Capitals()
