"""Tables and figures of evaluations: results next to published figures, paired tests, checkpoints."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from recipe.rerule.evaluation.registry import CAUTION, RETAINED, Column, Published, benchmarks, published
from recipe.rerule.evaluation.summary import LEAST_FACTS
from recipe.rerule.evaluation.table import JUDGED, all_columns, columns_of, legend, unchanged
from recipe.rerule.reporting.document import ARROWS, Figure, Part, Row, Section, Table, mark_of, plain_columns
from recipe.rerule.reporting.evaluations import Benchmark, Evaluation
from recipe.rerule.reporting.style import LINES, error_bar, figure, mark_starts
from recipe.rerule.runs.history import Run, replay_starts

_MARKERS = "osD^vPX*<>hp"
_ANCHOR_NOTE = (
    "Rows in italics are no models: they give the same answer whatever is asked. A model that merely refuses "
    "everything scores like them, so read a low forget number beside the retain columns."
)


def results_section(benchmark: Benchmark, runs: Sequence[Run], base: str | None) -> Section:
    """The results of a benchmark, or of a judge's scores of its responses.

    `base` is the model that paired tests are shown against; the first one by default.
    Raises ValueError where there is no model `base`.
    """
    mean, name = benchmark.mean, benchmark.name
    base = base_of(mean, base)
    judged = name.startswith(JUDGED)
    parts: list[Part | None] = [mean.convention, missing_note(benchmark)] if judged else []
    parts.append(results_table(mean, base))
    if len(benchmark.targets) > 1:
        parts.append(
            f"Numbers are means over {len(benchmark.targets)} targets, each weighing the same: "
            + ", ".join(target.target for target in benchmark.targets)
            + ". Intervals and tests take the targets as fixed and their facts as independent."
        )
        parts.append(targets_table(benchmark.targets, base))
    if len(mean.tests):
        parts.append(tests_table(mean))
    if not judged:
        parts += [all_metrics_table(mean), scatter_figure(mean), progress_figure(mean, runs)]
    return Section(benchmark.title, [part for part in parts if part is not None])


def missing_note(judged: Benchmark) -> str:
    """How many responses of each model have no score of the judge."""
    frame = pd.DataFrame(
        [{"name": name} | dict(counts) for one in judged.targets for name, counts in one.models.items()],
        columns=["name", "missing", "responses"],
    )
    of_models = frame.groupby("name", sort=False).sum().itertuples()
    told = ", ".join(f"{missing:,} of {responses:,} of {name}" for name, missing, responses in of_models)
    return f"Responses without a readable score, which are left out of the means: {told or 'not stated'}."


def base_of(evaluation: Evaluation, base: str | None) -> str:
    """`base`, by default the first model that was asked. Raises ValueError where it is none of the models."""
    if base is not None and base not in evaluation.results:
        raise ValueError(f"--base {base} is none of the models {', '.join(evaluation.results)}")
    asked = [name for name in evaluation.results if name != RETAINED]  # that has no answers to compare
    return base or next(iter(asked or evaluation.results))


def warnings_of(benchmarks: Sequence[Benchmark], base: str | None) -> Iterator[str]:
    """A line for each model that is as `base` in every number, and for sections of too few facts."""
    for benchmark in benchmarks:
        lines = [
            few_facts_note(benchmark.mean),
            *unchanged(benchmark.mean.results, base_of(benchmark.mean, base)),
        ]
        yield from (f"{benchmark.title}: {line}" for line in lines if line)


def results_table(evaluation: Evaluation, base: str) -> Table:
    """Models, constant answers and published rows, with intervals, and tests against `base` as marks."""
    columns = columns_of(evaluation.benchmark, {**evaluation.results, **evaluation.anchors})
    of_name = published(evaluation.benchmark.removeprefix(JUDGED))
    known = of_name.naturalness if evaluation.benchmark.startswith(JUDGED) else of_name.results
    figures = [row for row in known if any(column.metric in row.values for column in columns)]
    marks = marks_of(evaluation.tests, base)
    caption = [legend(evaluation.benchmark, evaluation.convention), "Arrows say which way is better."]
    if evaluation.numbers["low"].notna().any():
        caption.append(
            "Small numbers: 95 % bootstrap interval over facts, where it is not the number itself."
        )
    if marks:
        caption.append(
            f"* p < 0.05, ** p < 0.01: differs from {base} on the same probes (paired test over facts, "
            "corrected for the number of comparisons where the evaluation says so)."
        )
    if note := few_facts_note(evaluation):
        caption.append(f"{note[0].upper()}{note[1:]}.")
    if evaluation.anchors:
        caption.append(_ANCHOR_NOTE)
    return Table(
        f"results_{evaluation.benchmark}",
        "Results",
        "model",
        columns,
        [*rows_of(evaluation, marks, (base,)), *published_rows(figures)],
        " ".join([*caption, published_notes(figures)]).strip(),
    )


def rows_of(
    evaluation: Evaluation, marks: dict[tuple[str, str], str] | None = None, keep: Collection[str] = ()
) -> list[Row]:
    """Models (of a run's checkpoints the last) and constant answers, with intervals and marks of tests.

    `keep`: earlier checkpoints that have a row too.
    """
    found = []
    for kind, name, of in _newest(evaluation, keep):
        cells: dict[Any, Any] = {}
        for one in of.reset_index().itertuples():
            cells |= {one.metric: one.value, (one.metric, "low"): one.low, (one.metric, "high"): one.high}
            cells[one.metric, "mark"] = (marks or {}).get((name, one.metric), "")
        found.append(Row(name, cells, kind))
    return found


def _newest(evaluation: Evaluation, keep: Collection[str] = ()) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Kind, name, and the numbers by metric of each row, without the other earlier checkpoints of a run."""
    earlier = {
        row for steps in checkpoints_of(evaluation.results).values() for row in list(steps.values())[:-1]
    }
    for (kind, name), of in evaluation.numbers.groupby(["kind", "name"], sort=False):
        if name not in earlier or name in keep:
            yield kind, name, of.set_index("metric")


def checkpoints_of(names: Iterable[str], least: int = 2) -> dict[str, dict[int, str]]:
    """{run: {step: row}} of the rows that `evaluate` names RUN@STEP, of runs with `least` or more."""
    found: dict[str, dict[int, str]] = {}
    for name in names:
        if match := re.fullmatch(r"(.+)@(\d+)", name):
            found.setdefault(match[1], {})[int(match[2])] = name
    return {run: dict(sorted(steps.items())) for run, steps in found.items() if len(steps) >= least}


def marks_of(tests: pd.DataFrame, base: str) -> dict[tuple[str, str], str]:
    """{(model, metric): "*" or "**"} of the paired tests against `base`, by p-value corrected where given."""
    marks = {}
    for test in tests[(tests["a"] == base) | (tests["b"] == base)].itertuples():
        p = test.p_value if pd.isna(test.p_holm) else test.p_holm
        other = test.b if test.a == base else test.a
        marks[other, test.metric] = mark_of(p)
    return marks


def published_rows(figures: Iterable[Published]) -> list[Row]:
    """A row for each, with its source; a dagger says that a note belongs to it."""
    return [
        Row(f"{row.name}{' †' if row.note else ''} ({row.source}, single run)", row.values, "published")
        for row in figures
    ]


def published_notes(figures: Sequence[Published]) -> str:
    """The caution on published rows, and what is to be known of single ones; "" where there are none."""
    names: dict[str, list[str]] = {}
    for row in figures:
        if row.note:
            names.setdefault(row.note, []).append(row.name)
    notes = [f"† {', '.join(of_note)}: {note}" for note, of_note in names.items()]
    return " ".join([CAUTION, *notes]) if figures else ""


def few_facts_note(evaluation: Evaluation) -> str:
    """Which sections have too few facts for intervals and tests; "" where none, or where it is not said."""
    counts = evaluation.meta.get("probes", {}).get("facts", {})
    few = [f"{name} ({count})" for name, count in counts.items() if "/" not in name and count < LEAST_FACTS]
    few_facts = f"too few facts for intervals and tests, which need {LEAST_FACTS}: {', '.join(few)}"
    return few_facts if few else ""


def targets_table(targets: Sequence[Evaluation], base: str) -> Table:
    """Each target's own rows, folded away."""
    first = targets[0]
    return Table(
        f"targets_{first.benchmark}",
        "Single targets",
        "target: model",
        columns_of(first.benchmark, {**first.results, **first.anchors}),
        [
            row._replace(name=f"{target.target}: {row.name}")
            for target in targets
            for row in rows_of(target, marks_of(target.tests, base))
        ],
        legend(first.benchmark, first.convention),
        folded=True,
    )


def tests_table(evaluation: Evaluation) -> Table:
    """Every paired test, folded away."""
    known = {column.metric: column for column in all_columns(evaluation.benchmark)}
    plain = Column("", "", "", "", 1.0, ".4f")
    named = evaluation.tests.rename(columns={"p_value": "p", "p_holm": "p, corrected"})
    rows = []
    for test in named.to_dict("records"):
        ends = {("difference", part): test[part] for part in ("low", "high")}
        form = {("difference", "as"): known.get(test["metric"], plain)}
        rows.append(Row(f"{test['a']} − {test['b']}", test | ends | form))
    specs = {
        "metric": "",
        "difference": "",
        "p": ".3g",
        "p, corrected": ".3g",
        "probes": ".0f",
        "facts": ".0f",
    }
    return Table(
        f"comparisons_{evaluation.benchmark}",
        "Paired tests",
        "models",
        plain_columns(specs),
        rows,
        "Difference of the first model's number less the second's, with its 95 % interval. Test: "
        f"{' / '.join(evaluation.tests['test'].unique())}. What is resampled and exchanged is the fact.",
        folded=True,
    )


def all_metrics_table(evaluation: Evaluation) -> Table:
    """Every metric of every row, one a line, folded away."""
    cells: dict[str, dict[str, float]] = {}
    for one in evaluation.numbers.itertuples():
        cells.setdefault(str(one.metric), {})[str(one.name)] = float(one.value)
    declared, present = benchmarks().get(evaluation.benchmark), {metric.split("/")[0] for metric in cells}
    units = [text for metric, text in declared.units.items() if metric in present] if declared else []
    return Table(
        f"all_metrics_{evaluation.benchmark}",
        "All metrics",
        "metric",
        plain_columns(dict.fromkeys(evaluation.numbers["name"].unique(), ".4g")),
        [Row(metric, of_metric) for metric, of_metric in cells.items()],
        " ".join(["As in results.json: fractions of 1.", *units]),
        folded=True,
    )


def scatter_figure(evaluation: Evaluation) -> Figure | None:
    """Models and constant answers by what they forget and keep; None where the benchmark has no such pair."""
    declared = benchmarks().get(evaluation.benchmark)
    if declared is None or declared.pair is None:
        return None
    columns = {column.metric: column for column in declared.columns}
    x, y = (columns[metric] for metric in declared.pair)
    points = [
        (kind, name, of.loc[x.metric, ENDS] * x.scale, of.loc[y.metric, ENDS] * y.scale)
        for kind, name, of in _newest(evaluation)
        if {x.metric, y.metric} <= set(of.index)
    ]
    if not points:
        return None

    def fill(axes: Axes, points: Sequence[Any]) -> None:
        for place, (kind, name, across, up) in enumerate(points):
            colour = "#666666" if kind == "anchor" else LINES[place % len(LINES)]["color"]
            axes.errorbar(
                across["value"], up["value"], xerr=error_bar(*across), yerr=error_bar(*up), label=name,
                marker=_MARKERS[place % len(_MARKERS)], color=colour, linestyle="none", markersize=7,
                markerfacecolor="white" if kind == "anchor" else colour, elinewidth=1,
            )  # fmt: skip
        axes.set_ylabel(axis_label(y))
        axes.margins(0.08)

    return figure(
        f"forget_retain_{evaluation.benchmark}",
        "Forgetting against keeping",
        "Better is further to the left and further up. Crosses are 95 % intervals where there are any. "
        "Hollow marks are constant answers, no models: a model that comes to lie beside them may be doing "
        "no more than refusing.",
        f"Scatter plot of {axis_label(y)} against {axis_label(x)}. The table of results has the numbers.",
        [points],
        fill,
        axis_label(x),
    )


ENDS = ["value", "low", "high"]
"""Columns of `Evaluation.numbers`: a number and the ends of its interval."""


def axis_label(column: Column) -> str:
    """A column as an axis or a title names it, with its unit and which way is better."""
    unit = " (%)" if column.scale == 100 else ""
    return f"{column.group} {column.label}{unit} {ARROWS[column.aim]}"


def progress_figure(evaluation: Evaluation, runs: Sequence[Run]) -> Figure | None:
    """The benchmark's metrics over the checkpoints of each run; None where no run has several."""
    checkpoints = checkpoints_of(evaluation.results)
    of_name = {name: of.set_index("metric")[ENDS] for name, of in evaluation.numbers.groupby("name")}
    present = {
        metric for steps in checkpoints.values() for row in steps.values() for metric in of_name[row].index
    }
    columns = [column for column in all_columns(evaluation.benchmark) if column.metric in present]
    if not columns:
        return None
    starts = {run: start for run, start in replay_starts(runs).items() if run in checkpoints}

    def fill(axes: Axes, column: Column) -> None:
        axes.set_title(axis_label(column))
        for (run, steps), line in zip(checkpoints.items(), itertools.cycle(LINES), strict=False):
            shown = {step: of_name[row].loc[column.metric] for step, row in steps.items()
                     if column.metric in of_name[row].index}  # fmt: skip
            if shown:
                of = pd.DataFrame(shown).T * column.scale
                errors = [(of["value"] - of["low"]).clip(0), (of["high"] - of["value"]).clip(0)]
                axes.errorbar(
                    of.index, of["value"], yerr=None if of.isna().any(axis=None) else errors, label=run,
                    capsize=2, elinewidth=0.8, **line,
                )  # fmt: skip
        mark_starts(axes, starts)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        axes.set_xlim(left=0)

    return figure(
        f"progress_{evaluation.benchmark}",
        "Metrics over training",
        "Each checkpoint evaluated on the same probes; bars are 95 % intervals where there are any. A "
        "vertical line marks the first replay update of a run.",
        f"Line charts over training steps of {', '.join(f'{one.group} {one.label}' for one in columns)} for "
        f"{' and '.join(checkpoints)}.",
        columns,
        fill,
        "training step",
    )
