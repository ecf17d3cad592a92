"""The plan's runs: python -m benchmarks.study.planned ideas|tuning|counted|confirm --out DIR [--tofu FOLDER]

Each run is kept in DIR/runs as it ends; started again, the command makes what is missing. To go on from the
committed runs, on whatever machine:

    python -m benchmarks.study.planned.results unpack benchmarks/study/planned.parquet DIR
    python -m benchmarks.study.planned tuning --out DIR --tofu FOLDER
    python -m benchmarks.study.planned.results pack DIR benchmarks/study/planned.parquet

FOLDER has TOFU's files. It is needed for the world `tofu`, which tuning, counted and confirm use.

Several processes or machines can share a stage: each takes other worlds or bases. Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.study.planned.choice import CONFIRMED_IN, chosen_rate, ranked_ideas
from benchmarks.study.planned.plan import (
    CONTROLS,
    COUNTED,
    COUNTED_BASES,
    COUNTED_SEEDS,
    EXTRAS,
    IDEAS,
    OURS,
    PLANNED,
    RATES,
    SECOND_LOOK,
    TUNING_BASES,
    TUNING_SEEDS,
    WORLDS,
)
from benchmarks.study.planned.runs import Study, Wanted
from benchmarks.study.runs import StudyError


@dataclass(frozen=True)
class Part:
    """The worlds and bases that a process makes runs of; without any named, all of them."""

    worlds: Sequence[str] = WORLDS
    bases: Sequence[int] = (*TUNING_BASES, *COUNTED_BASES)

    def of(self, bases: Sequence[int]) -> list[int]:
        """Those of some bases."""
        return [base for base in bases if base in self.bases]


EVERYTHING = Part()


def ideas(study: Study, part: Part = EVERYTHING) -> None:
    """RULE at each rate, the ideas and controls at RULE's, and the best ideas at the others."""
    if CONFIRMED_IN not in part.worlds:
        raise StudyError(f"ideas are tried in {CONFIRMED_IN} alone; leave out --worlds")
    of_rule = [Wanted("rule", rate, seed) for rate in RATES for seed in TUNING_SEEDS]
    _on_tuning_models(study, part, CONFIRMED_IN, of_rule)
    rate = rate_of(study, CONFIRMED_IN, "rule")
    tried = [Wanted(arm, rate, seed, rate) for arm in (*IDEAS, *CONTROLS) for seed in TUNING_SEEDS]
    _on_tuning_models(study, part, CONFIRMED_IN, [*of_rule, *tried])
    ranked = [arm for arm, at, _ in ranked_ideas(study.every()) if at == rate][:SECOND_LOOK]
    again = [Wanted(arm, other, seed, rate) for arm in ranked for other in RATES for seed in TUNING_SEEDS]
    _on_tuning_models(study, part, CONFIRMED_IN, [*of_rule, *again])


def tuning(study: Study, part: Part = EVERYTHING) -> None:
    """Every arm that counts at each rate, and the other ways to spend compute at that of equal compute."""
    for world in part.worlds:
        arms = [
            _with_rate(arm, rate, rate, seed) for rate in RATES for arm in COUNTED for seed in TUNING_SEEDS
        ]
        _on_tuning_models(study, part, world, arms)
        rate = rate_of(study, world, "equal_compute")
        others = [Wanted(arm, rate, seed, rate) for arm in EXTRAS for seed in TUNING_SEEDS]
        budgets = [Wanted(OURS, rate, seed) for seed in TUNING_SEEDS]
        _on_tuning_models(study, part, world, [*budgets, *others])


def counted(study: Study, part: Part = EVERYTHING) -> None:
    """Every arm at its own rate, on the models that count."""
    rates = {(world, arm): rate_of(study, world, arm) for world in part.worlds for arm in COUNTED}
    for base in part.of(COUNTED_BASES):
        for world in part.worlds:
            own = rates[world, OURS]
            arms = [
                _with_rate(arm, rates[world, arm], own, seed) for seed in COUNTED_SEEDS for arm in COUNTED
            ]
            study.runs_of(world, base, arms)


def confirm(study: Study, part: Part = EVERYTHING) -> None:
    """The best idea against RULE, on the models that count."""
    ranked = ranked_ideas(study.every())
    if not ranked:
        raise StudyError("no idea was run on both tuning models; run `ideas` first")
    arm, rate, _ = ranked[0]
    rates = {world: rate_of(study, world, "rule") for world in part.worlds}
    for base in part.of(COUNTED_BASES):
        for world, of_rule in rates.items():
            pairs = [
                each
                for seed in COUNTED_SEEDS
                for each in (Wanted("rule", of_rule, seed), Wanted(arm, rate, seed, of_rule))
            ]
            study.runs_of(world, base, pairs)


STAGES: dict[str, Callable[[Study, Part], None]] = {
    "ideas": ideas,
    "tuning": tuning,
    "counted": counted,
    "confirm": confirm,
}


def rate_of(study: Study, world: str, arm: str) -> float:
    """The arm's chosen rate. Raises StudyError while runs that choose it are missing."""
    rate = chosen_rate(study.every(), world, arm)
    if rate is None:
        raise StudyError(
            f"the rate of {arm} in {world} is not chosen yet; run `tuning` on both of its bases first"
        )
    return rate


def _with_rate(arm: str, rate: float, of_rate: float, seed: int) -> Wanted:
    return Wanted(arm, rate, seed, of_rate if PLANNED[arm].until == "compute" else 0.0)


def _on_tuning_models(study: Study, part: Part, world: str, wanted: Sequence[Wanted]) -> None:
    for base in part.of(TUNING_BASES):
        study.runs_of(world, base, wanted)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is missing of a stage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.planned", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--tofu", type=Path, metavar="FOLDER", help="TOFU's files, for its world")
    parser.add_argument(
        "--worlds", nargs="+", choices=WORLDS, default=WORLDS, help="of the plan's only these"
    )
    parser.add_argument(
        "--bases",
        type=int,
        nargs="+",
        choices=Part.bases,
        default=Part.bases,
        help="of the plan's only these",
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        STAGES[options.stage](Study(options.out, options.tofu), Part(options.worlds, options.bases))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
