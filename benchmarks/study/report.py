"""The tables and figures of a study: python -m benchmarks.study.report FILE --out DIR.

FILE is made by `benchmarks.study.results pack`. Writes report.html (self-contained), report.md and a folder
of PNG and CSV files, as the report of a run does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from matplotlib.axes import Axes

from benchmarks.study.arms import ARMS, CHOOSING_SEEDS, COMPARED, MAIN
from benchmarks.study.comparison import FEWEST_FOR_INTERVAL, Paired, paired
from benchmarks.study.results import read_results
from benchmarks.study.runs import StudyRun
from recipe.rerule.evaluation.statistics.comparison import holm
from recipe.rerule.report import check_free, page_path, write_report
from recipe.rerule.reporting.document import (
    DASH,
    Cell,
    Figure,
    Heading,
    Report,
    Row,
    Section,
    Table,
    number_cell,
)
from recipe.rerule.reporting.figures.style import LINES, MAX_LINES, Fill, wide_and_narrow

REACHED = 0.9
"""Reward of the early-hard prompts from which on they count as solved."""


@dataclass(frozen=True)
class Measure:
    """A number a run ends with: its name among `StudyRun.final`, heading, what is better, and decimals."""

    name: str
    heading: Heading
    decimals: int = 3


OVERALL = "overall"
"""Mean of 1 - forget recall, retain recall and unseen recall. A run trades them for each other as it goes, so
that each of them varies more between seeds than their mean, by which arms are compared first."""
ON_THE_WAY = "overall_on_the_way"
"""Mean of OVERALL at all validations of a run: how soon, where it is still learning at its last step."""
SECTIONS = ("forget", "retain", "retain_unseen")
OUTCOMES = (
    Measure(OVERALL, Heading("overall", "", "high")),
    Measure(ON_THE_WAY, Heading("overall on the way", "", "high")),
    Measure("forget/recall", Heading("recall", "forget", "low")),
    Measure("forget/refused", Heading("refused", "forget", "high")),
    Measure("retain/recall", Heading("recall", "retain", "high")),
    Measure("retain/refused", Heading("refused", "retain", "low")),
    Measure("retain_unseen/recall", Heading("recall", "unseen", "high")),
    Measure("retain_unseen/refused", Heading("refused", "unseen", "low")),
)
PROCESS = (
    Measure("early_hard/retain", Heading("reward at the end", "early-hard retain", "high")),
    Measure("solved_at", Heading("step it reaches 0.9", "early-hard retain", "low"), 1),
    Measure("hard_share/all", Heading("hard", "share of groups")),
    Measure("signal_share/all", Heading("with signal", "share of groups")),
    Measure("replay/signal_share", Heading("with signal", "replayed groups")),
    Measure("replay/effective_sample_size", Heading("effective sample size", "replayed groups")),
    Measure("steps", Heading("steps", "cost"), 0),
    Measure("compute", Heading("compute, M tokens", "cost"), 2),
    Measure("seconds", Heading("seconds", "cost"), 0),
)
PRIMARY = (OVERALL, ON_THE_WAY, "retain_unseen/recall", "retain/recall", "forget/recall")
"""What arms are compared by. The first decides; the others say where a difference lies."""
CURVES = (
    ("retain_unseen/recall", "unseen: recall of greedy answers"),
    ("forget/recall", "forget: recall of greedy answers"),
    ("early_hard/retain", "early-hard retain prompts: reward"),
    ("early_hard/forget", "early-hard forget prompts: reward"),
)


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.report", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier report")
    options = parser.parse_args()
    try:
        page = page_path(options.out)
        check_free(page, options.overwrite)
        runs = read_results(options.results)
        write_report(build_report(runs, f"python {' '.join(sys.argv)}", options.results), page)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"report: {page}")


def build_report(runs: Sequence[StudyRun], command: str, path: Path) -> Report:
    """What was found in all worlds, then a section a world."""
    by_world = {
        world: [run for run in runs if run.world == world] for world in sorted({run.world for run in runs})
    }
    found = {world: compare_all(counted(of_world)) for world, of_world in by_world.items()}
    sections = [Section("All worlds", tuple(world_tables(found)))] if any(found.values()) else []
    sections += [section_of(world, of_world, found[world]) for world, of_world in by_world.items()]
    return Report("Does replay help?", sections, {"results": str(path)}, [command])


def counted(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """The runs on which nothing was chosen."""
    return [run for run in runs if run.seed < CHOOSING_SEEDS]


Pair = tuple[str, str]
Found = Mapping[str, Mapping[Pair, Paired]]
"""By primary measure and pair of arms, where both have been run on two seeds at least."""


def compare_all(runs: Sequence[StudyRun]) -> Found:
    """Every pair of COMPARED by every primary measure."""
    every = {
        measure: {pair: found for pair in COMPARED if (found := compare_arms(runs, *pair, measure))}
        for measure in PRIMARY
    }
    return {measure: found for measure, found in every.items() if found}


def world_tables(found: Mapping[str, Found]) -> Iterator[Table]:
    """A table a primary measure."""
    for measure in PRIMARY:
        by_world = {world: of_world[measure] for world, of_world in found.items() if measure in of_world}
        if by_world:
            yield world_table(measure, by_world)


def world_table(measure: str, by_world: Mapping[str, Mapping[Pair, Paired]]) -> Table:
    """The difference of each pair of arms in each world."""
    cells = {
        pair: tuple(difference_cell(pairs[pair]) if pair in pairs else DASH for pairs in by_world.values())
        for pair in COMPARED
    }
    rows = [Row(f"{arm} − {base}", row) for (arm, base), row in cells.items()]
    return Table(
        f"compared_worlds_{measure.replace('/', '_')}",
        f"Differences in {in_words(measure)}, by world",
        "arms",
        tuple(Heading(world) for world in by_world),
        tuple(rows),
        "First arm minus second on the same seeds, with its 95 % interval; the tables of each world have "
        "p-values, effect sizes and the number of seeds.",
    )


def in_words(measure: str) -> str:
    """A measure's name for a title."""
    return measure.replace("_", " ").replace("/", " ")


def section_of(world: str, runs: Sequence[StudyRun], found: Found) -> Section:
    """Tables and figure of one world: of the runs that count, then of those that ours was chosen on."""
    fresh = counted(runs)
    chosen_on = [run for run in runs if run.seed >= CHOOSING_SEEDS]
    parts: list[Table] = []
    if fresh:
        parts.append(arm_table(f"outcomes_{world}", "Arms: outcomes", fresh, OUTCOMES))
        parts += [comparison_table(world, measure, pairs) for measure, pairs in found.items()]
        parts.append(arm_table(f"process_{world}", "Arms: process", fresh, PROCESS))
    if chosen_on:
        title = f"Seeds from {CHOOSING_SEEDS} on, for choosing: "
        parts.append(arm_table(f"choosing_outcomes_{world}", title + "outcomes", chosen_on, OUTCOMES))
        parts.append(arm_table(f"choosing_process_{world}", title + "process", chosen_on, PROCESS))
    drawn = [arm for arm in DRAWN if any(run.arm == arm for run in fresh)]
    validated = any(run.curves.get("validated_at") for run in fresh)
    figures = [curve_figure(world, fresh, drawn)] if drawn and validated else []
    return Section(f"World: {world}", (*parts, *figures))


DRAWN = MAIN[:MAX_LINES]


def arm_table(name: str, title: str, runs: Sequence[StudyRun], measures: Sequence[Measure]) -> Table:
    """Mean and standard deviation over the seeds, an arm a row."""
    arms = [arm for arm in ARMS if any(run.arm == arm for run in runs)]
    return Table(
        name,
        title,
        "arm",
        (Heading("seeds"), *(measure.heading for measure in measures)),
        tuple(arm_row(arm, [run for run in runs if run.arm == arm], measures) for arm in arms),
        "Mean over the seeds ± standard deviation between them. "
        + "; ".join(f"{arm}: {ARMS[arm].meaning}" for arm in arms)
        + ".",
    )


def arm_row(arm: str, runs: Sequence[StudyRun], measures: Sequence[Measure]) -> Row:
    """One arm's values."""
    return Row(arm, (number_cell(len(runs), "d"), *(mean_cell(runs, measure) for measure in measures)))


def mean_cell(runs: Sequence[StudyRun], measure: Measure) -> Cell:
    """Mean ± standard deviation of a measure, a dash where no run has it."""
    values = [value for run in runs if (value := value_of(run, measure.name)) is not None]
    if not values:
        return DASH
    spread = f" ± {stdev(values):.{measure.decimals}f}" if len(values) > 1 else ""
    return Cell(f"{mean(values):.{measure.decimals}f}{spread}", mean(values))


def value_of(run: StudyRun, name: str) -> float | None:
    """A measure of a run, None where it has none; compute in millions."""
    if name == "solved_at":
        return solved_at(run)
    if name == OVERALL:
        return overall(run.final)
    if name == ON_THE_WAY:
        return on_the_way(run)
    value = run.final.get(name)
    return value / 1e6 if value is not None and name == "compute" else value


def overall(measured: Mapping[str, float]) -> float | None:
    """OVERALL, where its parts were measured."""
    parts = [measured[name] for section in SECTIONS if (name := f"{section}/recall") in measured]
    return (1 - parts[0] + sum(parts[1:])) / 3 if len(parts) == len(SECTIONS) else None


def on_the_way(run: StudyRun) -> float | None:
    """ON_THE_WAY of a run that was validated."""
    return overall({name: mean(values) for name, values in run.curves.items() if values})


def solved_at(run: StudyRun) -> float | None:
    """First validated step where the early-hard retain prompts reach REACHED; the run's length if never."""
    rewards, steps = run.curves.get("early_hard/retain"), run.curves.get("validated_at", [])
    if not rewards:
        return None
    # Those before the prompts were chosen have no reward.
    known = zip(steps[-len(rewards) :], rewards, strict=True)
    return next((step for step, reward in known if reward >= REACHED), run.final["steps"])


def compare_arms(runs: Sequence[StudyRun], arm: str, base: str, measure: str) -> Paired | None:
    """Over the seeds that both have; None with fewer than two."""
    values = {
        name: {
            run.seed: value
            for run in runs
            if run.arm == name and (value := value_of(run, measure)) is not None
        }
        for name in (arm, base)
    }
    seeds = sorted(set(values[arm]) & set(values[base]))
    if len(seeds) < 2:
        return None
    return paired([values[arm][seed] for seed in seeds], [values[base][seed] for seed in seeds])


def comparison_table(world: str, measure: str, pairs: Mapping[Pair, Paired]) -> Table:
    """The pairs of arms by one measure, a row a pair; Holm over them."""
    corrected = holm([found.p_value for found in pairs.values()])
    rows = [
        comparison_row(*pair, found, p_value)
        for (pair, found), p_value in zip(pairs.items(), corrected, strict=True)
    ]
    return Table(
        f"compared_{world}_{measure.replace('/', '_')}",
        f"Differences in {in_words(measure)}",
        "arms",
        (Heading("difference"), Heading("effect, d"), Heading("p"), Heading("p, Holm"), Heading("seeds")),
        tuple(rows),
        "First arm minus second on the same seeds, with its 95 % bootstrap interval over seeds (percentiles "
        "moved out for few seeds; none below five); d: the mean difference in standard deviations of the "
        "differences; p: exact permutation test; Holm: corrected for all pairs of this table.",
    )


def comparison_row(arm: str, base: str, found: Paired, corrected: float) -> Row:
    """One pair."""
    effect = DASH if np.isnan(found.effect) else number_cell(found.effect, "+.2f")
    rest = (number_cell(found.p_value, ".4f"), number_cell(corrected, ".4f"), number_cell(found.seeds, "d"))
    return Row(f"{arm} − {base}", (difference_cell(found), effect, *rest))


def difference_cell(found: Paired) -> Cell:
    """The mean difference, with its interval where there are seeds enough."""
    if found.seeds < FEWEST_FOR_INTERVAL:
        return number_cell(found.difference, "+.3f")
    interval = f"{found.low:+.3f} to {found.high:+.3f}"
    return Cell(f"{found.difference:+.3f}", found.difference, interval, (found.low, found.high))


def curve_figure(world: str, runs: Sequence[StudyRun], arms: Sequence[str]) -> Figure:
    """Means over the seeds at each validation."""
    images = wide_and_narrow(CURVES, curve_filler(runs, arms), "training step")
    return Figure(
        f"curves_{world}",
        "Held-out measures over steps",
        "Mean over the seeds at each greedy validation. The early-hard prompts of a run are those whose "
        "group was hard in the world's first steps; they are followed from then on.",
        f"Line charts over training steps for {', '.join(arms)}.",
        *images,
    )


def curve_filler(runs: Sequence[StudyRun], arms: Sequence[str]) -> Fill:
    """Fills a panel with a line an arm."""

    def fill(axes: Axes, panel: tuple[str, str]) -> None:
        name, title = panel
        axes.set_title(title)
        for arm, line in zip(arms, LINES, strict=False):
            steps, values = mean_curve([run for run in runs if run.arm == arm], name)
            axes.plot(steps, values, label=arm, **line)
        axes.set_ylim(-0.04, 1.04)

    return fill


def mean_curve(runs: Sequence[StudyRun], name: str) -> tuple[list[float], list[float]]:
    """Steps and the mean of a validated curve, as far as all runs go."""
    curves = [run.curves.get(name, []) for run in runs]
    length = min(map(len, curves), default=0)
    if not length:
        return [], []
    # A curve that starts late, as the early-hard prompts' does, ends with the last validation.
    steps = runs[0].curves["validated_at"][-len(curves[0]) :][:length]
    return steps, [mean(values) for values in zip(*(curve[:length] for curve in curves), strict=True)]


if __name__ == "__main__":
    main()
