"""Tables of evaluations: results beside published figures, every metric, single targets, paired tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from recipe.rerule.evaluation.registry import CAUTION, Column, Published, find, published
from recipe.rerule.evaluation.summary import LEAST_FACTS, Metrics
from recipe.rerule.evaluation.table import JUDGED, all_columns, columns_of, legend, shown
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell
from recipe.rerule.reporting.evaluations import Comparison, Evaluation
from recipe.rerule.reporting.figures.benchmark import newest_rows

_LEVELS = ((0.01, "**"), (0.05, "*"))
_ANCHOR_NOTE = (
    "Rows in italics are no models: they give the same answer whatever is asked. A model that merely refuses "
    "everything scores like them, so read a low forget number beside the retain columns."
)


def results_table(evaluation: Evaluation, base: str) -> Table:
    """Models, constant answers and published rows, with intervals, and tests against `base` as marks."""
    columns = columns_of(evaluation.benchmark, {**evaluation.results, **evaluation.anchors})
    shown_metrics = {column.metric for column in columns}
    known = published_results(evaluation.benchmark)
    beside = [row for row in known if not shown_metrics.isdisjoint(row.values)]
    rows = [
        *evaluation_rows(evaluation, newest_rows(evaluation.results), columns, base),
        *evaluation_rows(evaluation, evaluation.anchors, columns, base, "anchor"),
        *published_rows(beside, columns),
    ]
    return Table(
        f"results_{evaluation.benchmark}",
        "Results",
        "model",
        tuple(map(heading, columns)),
        tuple(rows),
        " ".join(_caption(evaluation, base, beside)),
    )


def published_results(benchmark: str) -> tuple[Published, ...]:
    """What is published of a benchmark, or of a judge's scores of its responses."""
    if benchmark.startswith(JUDGED):
        return published(benchmark.removeprefix(JUDGED)).naturalness
    return published(benchmark).results


def heading(column: Column) -> Heading:
    return Heading(column.label, column.group, column.aim)


def value_cell(value: float | None, column: Column) -> Cell:
    """The number as its column shows it; the cell keeps it unrounded."""
    return DASH if value is None else Cell(shown(value, column), value)


def value_cells(metrics: Mapping[str, float], columns: Sequence[Column]) -> tuple[Cell, ...]:
    """A cell a column."""
    return tuple(value_cell(metrics.get(column.metric), column) for column in columns)


def published_rows(figures: Sequence[Published], columns: Sequence[Column]) -> list[Row]:
    """Rows of published figures that have any of the columns; ones with a note end in a dagger."""
    return [
        Row(published_name(row), value_cells(row.values, columns), "published")
        for row in figures
        if any(column.metric in row.values for column in columns)
    ]


def published_name(row: Published) -> str:
    """The row's name with its source; a dagger says that a note belongs to it."""
    return f"{row.name}{' †' if row.note else ''} ({row.source}, single run)"


def published_notes(figures: Sequence[Published]) -> str:
    """The caution on published rows, and what is to be known of single ones; "" where there are none."""
    names: dict[str, list[str]] = {}
    for row in figures:
        if row.note:
            names.setdefault(row.note, []).append(row.name)
    notes = [f"† {', '.join(of_note)}: {note}" for note, of_note in names.items()]
    return " ".join([CAUTION, *notes]) if figures else ""


def evaluation_rows(
    evaluation: Evaluation,
    rows: Mapping[str, Metrics],
    columns: Sequence[Column],
    base: str,
    kind: str = "model",
) -> Iterator[Row]:
    """A row for each of `rows`, with intervals, and tests against `base` as marks."""
    marks = marks_of(evaluation.comparisons, base)
    for name, metrics in rows.items():
        intervals = evaluation.intervals.get(name, {})
        yield Row(
            name,
            tuple(
                _cell(metrics.get(c.metric), c, intervals.get(c.metric), marks.get((name, c.metric), ""))
                for c in columns
            ),
            kind,
        )


def _cell(value: float | None, column: Column, bounds: tuple[float, float] | None, mark: str) -> Cell:
    if value is None:
        return DASH
    number = shown(value, column)
    ends = [shown(bound, column) for bound in bounds or ()]
    # Where no resample differs, as of constant answers, the interval says nothing that the number does not.
    interval = "" if set(ends) <= {number} else "–".join(map(_compact, ends))
    return Cell(number, value, interval, bounds, mark)


def _compact(number: str) -> str:
    """Without the zero before the point, as intervals of fractions are customarily printed."""
    return re.sub(r"^(-?)0\.", r"\1.", number)


def marks_of(comparisons: Sequence[Comparison], base: str) -> dict[tuple[str, str], str]:
    """{(model, metric): "*" or "**"} of the paired tests against `base`, by p-value corrected where given."""
    marks = {}
    for test in comparisons:
        if base in (test.a, test.b):
            other = test.b if test.a == base else test.a
            marks[other, test.metric] = next((m for level, m in _LEVELS if test.p < level), "")
    return marks


def _caption(evaluation: Evaluation, base: str, figures: Sequence[Published]) -> Iterator[str]:
    yield legend(evaluation.benchmark, evaluation.convention)
    yield "Arrows say which way is better."
    if evaluation.intervals:
        yield "Small numbers: 95 % bootstrap interval over facts, where it is not the number itself."
    if marks_of(evaluation.comparisons, base):
        yield (
            f"* p < 0.05, ** p < 0.01: differs from {base} on the same probes (paired test over facts, "
            "corrected for the number of comparisons where the evaluation says so)."
        )
    if note := few_facts_note(evaluation):
        yield f"{note[0].upper()}{note[1:]}."
    if evaluation.anchors:
        yield _ANCHOR_NOTE
    if figures:
        yield published_notes(figures)


def few_facts_note(evaluation: Evaluation) -> str:
    """Which sections have too few facts for intervals and tests; "" where none, or where it is not said."""
    counts = evaluation.meta.get("probes", {}).get("facts", {})
    few = [f"{name} ({count})" for name, count in counts.items() if "/" not in name and count < LEAST_FACTS]
    if not few:
        return ""
    return f"too few facts for intervals and tests, which need {LEAST_FACTS}: {', '.join(few)}"


def all_metrics_table(evaluation: Evaluation) -> Table:
    """Every metric of every row, one a line, folded away."""
    rows = {**evaluation.results, **evaluation.anchors}
    metrics = dict.fromkeys(metric for row in rows.values() for metric in row)
    plain = {metric: Column(metric, "", metric, "", 1.0, ".4g") for metric in metrics}
    return Table(
        f"all_metrics_{evaluation.benchmark}",
        "All metrics",
        "metric",
        tuple(Heading(name) for name in rows),
        tuple(
            Row(metric, tuple(value_cell(row.get(metric), plain[metric]) for row in rows.values()))
            for metric in metrics
        ),
        " ".join(["As in results.json: fractions of 1.", *_other_units(evaluation.benchmark, metrics)]),
        folded=True,
    )


def _other_units(benchmark: str, metrics: Iterable[str]) -> list[str]:
    """What of `metrics` is no fraction of 1."""
    declared = find(benchmark)
    present = {metric.split("/")[0] for metric in metrics}
    return [text for metric, text in declared.units.items() if metric in present] if declared else []


def targets_table(targets: Sequence[Evaluation], base: str) -> Table:
    """Each target's own rows, folded away."""
    columns = columns_of(targets[0].benchmark, {**targets[0].results, **targets[0].anchors})
    rows = [
        Row(f"{target.target}: {row.name}", row.cells, row.kind)
        for target in targets
        for row in [
            *evaluation_rows(target, newest_rows(target.results), columns, base),
            *evaluation_rows(target, target.anchors, columns, base, "anchor"),
        ]
    ]
    return Table(
        f"targets_{targets[0].benchmark}",
        "Single targets",
        "target: model",
        tuple(map(heading, columns)),
        tuple(rows),
        legend(targets[0].benchmark, targets[0].convention),
        folded=True,
    )


def comparisons_table(evaluation: Evaluation) -> Table:
    """Every paired test, folded away."""
    known = {column.metric: column for column in all_columns(evaluation.benchmark)}
    rows = []
    for test in evaluation.comparisons:
        column = known.get(test.metric, Column(test.metric, "", test.metric, "", 1.0, ".4f"))
        cells = (
            Cell(test.metric),
            _cell(test.difference, column, (test.low, test.high), ""),
            number_cell(test.p_value, ".3g"),
            number_cell(test.p_holm, ".3g"),
            number_cell(test.probes, "d"),
            number_cell(test.facts, "d"),
        )
        rows.append(Row(f"{test.a} − {test.b}", cells))
    tests = " / ".join(dict.fromkeys(test.test for test in evaluation.comparisons))
    return Table(
        f"comparisons_{evaluation.benchmark}",
        "Paired tests",
        "models",
        tuple(Heading(text) for text in ("metric", "difference", "p", "p, corrected", "probes", "facts")),
        tuple(rows),
        f"Difference of the first model's number less the second's, with its 95 % interval. Test: {tests}. "
        "What is resampled and exchanged is the fact.",
        folded=True,
    )
