"""The tables and figures of a study: python -m benchmarks.study.report FILE --out DIR.

FILE is made by `benchmarks.study.results pack`. Writes report.html (self-contained), report.md and a folder
of PNG and CSV files, as the report of a run does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmarks.study.arms import ARMS, CHOOSING_SEEDS, MAIN
from benchmarks.study.differences import (
    Found,
    compare_all,
    comparison_table,
    take_off_table,
    world_tables,
)
from benchmarks.study.measures import OUTCOMES, PROCESS, Measure, value_of
from benchmarks.study.results import read_results
from benchmarks.study.runs import StudyRun
from data_prep.apart import check_apart
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
from recipe.rerule.reporting.output import check_free, page_path, write_report

CURVES = (
    ("retain/recall", "retain: recall of greedy answers"),
    ("retain_unseen/recall", "unseen: recall of greedy answers"),
    ("forget/recall", "forget: recall of greedy answers"),
    ("early_hard/retain", "early-hard retain prompts: reward"),
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
        check_apart(page, ("FILE", options.results))
        check_free(page, options.overwrite)
        runs = read_results(options.results)
        report = build_report(runs, f"python {' '.join(sys.argv)}", options.results)
        write_report(report, page, options.overwrite)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"report: {page}")


def build_report(runs: Sequence[StudyRun], command: str, path: Path) -> Report:
    """What was found in all worlds, then a section a world."""
    by_world = {
        world: [run for run in runs if run.world == world] for world in sorted({run.world for run in runs})
    }
    found = {world: compare_all(counted(of_world)) for world, of_world in by_world.items()}
    overview = (*world_tables(found), *take_off_table([counted(of_world) for of_world in by_world.values()]))
    sections = [Section("All worlds", overview)] if overview else []
    sections += [section_of(world, of_world, found[world]) for world, of_world in by_world.items()]
    return Report("Does replay help?", sections, {"results": str(path)}, [command])


def counted(runs: Sequence[StudyRun]) -> list[StudyRun]:
    """The runs on which nothing was chosen."""
    return [run for run in runs if run.seed < CHOOSING_SEEDS]


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
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

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
