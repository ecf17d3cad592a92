"""The numbers of a result file, as the sentences of docs/results.md write them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from benchmarks.study.arms import CHOOSING_SEEDS
from benchmarks.study.coverage import TRIALS, coverage_table
from benchmarks.study.differences import compare_arms, difference_cell
from benchmarks.study.evidence import worlds_above
from benchmarks.study.measures import OVERALL, value_of
from benchmarks.study.report import counted
from benchmarks.study.runs import StudyRun
from benchmarks.study.tables import Runs, of_arm, of_world
from recipe.rerule.reporting.document import Cell

WORLDS = ("many", "slow", "slow_other", "tofu")
NOT_SO = "NOT SO: "


class Results:
    """The runs of a result file, and their numbers as the page writes them."""

    def __init__(self, runs: Runs) -> None:
        self.every = list(runs)
        self.worlds = {world: counted(of_world(runs, world)) for world in WORLDS}
        self.choosing = [run for run in runs if run.seed >= CHOOSING_SEEDS]

    def gap(self, arm: str, base: str, world: str, measure: str = OVERALL) -> str:
        """The difference of two arms with its interval."""
        found = compare_arms(self.worlds[world], arm, base, measure)
        if found is None:
            raise ValueError(f"{world} has no two seeds of both {arm} and {base}")
        return text_of(difference_cell(found))

    def mean(self, world: str, arm: str, measure: str = OVERALL) -> float:
        """Of an arm over the seeds that count."""
        return mean_of(of_arm(self.worlds[world], arm), measure)

    def chosen(self, world: str, arm: str, measure: str = OVERALL) -> float:
        """Of an arm over the seeds for choosing."""
        return mean_of(of_arm(of_world(self.choosing, world), arm), measure)

    def above(self, arm: str, base: str, measure: str = OVERALL) -> list[str]:
        """The worlds whose interval of the difference lies above 0."""
        return worlds_above(self.worlds, (arm, base), measure)

    def below(self, arm: str, base: str, measure: str = OVERALL) -> list[str]:
        """The worlds whose interval of the difference lies below 0."""
        return worlds_above(self.worlds, (arm, base), measure, -1)

    def coverage(self) -> list[list[float]]:
        """By pair and number of seeds, as the table."""
        rows = coverage_table(counted(self.every), TRIALS).rows
        return [[cell.value or 0.0 for cell in row.cells] for row in rows]


def when(holds: bool, text: str) -> str:
    """The text if it holds."""
    return text if holds else NOT_SO + text


def text_of(cell: Cell) -> str:
    """A cell in a sentence."""
    return f"{cell.text} ({cell.interval})" if cell.interval else cell.text


def mean_of(runs: Sequence[StudyRun], measure: str) -> float:
    """Of the runs that have it."""
    return mean(value for run in runs if (value := value_of(run, measure)) is not None)


def out_of(names: Sequence[str]) -> str:
    """How many of the worlds."""
    return f"{len(names)} of {len(WORLDS)}"


def listed(names: Sequence[str]) -> str:
    """Names as code: `a`, `b` and `c`."""
    first, last = [f"`{name}`" for name in names[:-1]], f"`{names[-1]}`"
    return f"{', '.join(first)} and {last}" if first else last
