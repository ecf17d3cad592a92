"""The tables of results: the columns of each benchmark, and their form on a terminal.

The report draws the same columns.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from recipe.rerule.evaluation.registry import UNSTATED, Column, benchmarks
from recipe.rerule.evaluation.summary import Metrics

_CELL = 7
_NAME = 12
_WIDTH = 100

JUDGED = "naturalness_"
"""What the name of a benchmark begins with where a judge's scores of its responses are meant."""

# Scores of 0 to 100.
NATURALNESS = tuple(
    Column(f"{section}/{metric}", group, label, "high", 1.0, ".1f")
    for section, group in (("forget", "forget"), ("retain", "retain"), ("retain_unseen", "unseen"))
    for metric, label in (
        ("readability", "Read"),
        ("helpfulness", "Help"),
        ("truthfulness", "Truth"),
        ("all", "All"),
    )
)
_NATURALNESS_LEGEND = (
    "Scores of a judge model from 0 to 100, means over responses. Read, Help, Truth: readability, "
    "helpfulness, truthfulness; All: their unweighted mean."
)


def title_of(benchmark: str) -> str:
    """The benchmark's name for a heading; of data of one's own "Your data"."""
    declared = benchmarks().get(benchmark)
    return benchmark if declared is None else declared.title


def unchanged(results: Mapping[str, Metrics], base: str) -> list[str]:
    """One line for each model whose every number is that of `base`."""
    return [
        f"no number of {name} differs from {base}: if that is the model before, nothing was forgotten"
        for name, metrics in results.items()
        if name != base and metrics == results[base]
    ]


def legend(benchmark: str, convention: str) -> str:
    """What the benchmark's columns mean, and which ROUGE-L `convention` they follow."""
    if benchmark.startswith(JUDGED):
        return _NATURALNESS_LEGEND
    declared = benchmarks().get(benchmark)
    return f"{'' if declared is None else declared.legend} ROUGE-L convention: {convention}.".strip()


def columns_of(benchmark: str, rows: Mapping[str, Metrics]) -> list[Column]:
    """The benchmark's columns for which any of `rows` has a number.

    Of a benchmark that has none of its own, every metric is a column, in the order of its first occurrence.
    """
    present = dict.fromkeys(metric for metrics in rows.values() for metric in metrics)
    columns = all_columns(benchmark)
    if not columns:
        return [Column(metric, benchmark, metric, "") for metric in present]
    return [column for column in columns if column.metric in present]


def all_columns(benchmark: str) -> tuple[Column, ...]:
    """The columns of a benchmark by its name in meta.json, or of a judge's scores; () where it has none."""
    if benchmark.startswith(JUDGED):
        return NATURALNESS
    declared = benchmarks().get(benchmark)
    return () if declared is None else declared.columns


def shown(value: float | None, column: Column) -> str:
    """The number as the column shows it, or a dash where it is missing."""
    return "–" if value is None else format(value * column.scale, column.spec)


def format_table(
    results: Mapping[str, Metrics],
    anchors: Mapping[str, Metrics],
    convention: str,
    benchmark: str = UNSTATED,
) -> str:
    """A table of at most 100 columns: models in their order, a rule, then the anchors, then the legend."""
    columns = columns_of(benchmark, {**results, **anchors})
    labels = [column.label for column in columns]
    models, constant = (
        {name: [shown(row.get(one.metric), one) for one in columns] for name, row in rows.items()}
        for rows in (results, anchors)
    )
    # Room for each column: 7 characters, or more where a number or a heading needs it.
    texts = [labels, *models.values(), *constant.values()]
    widths = [max(_CELL, *(len(row[place]) + 1 for row in texts)) for place in range(len(columns))]
    longest = max(map(len, ["model", *results, *anchors]))
    name_width = min(longest, max(_NAME, _WIDTH - sum(widths)))
    spans: dict[str, int] = {}
    for column, width in zip(columns, widths, strict=True):
        spans[column.group] = spans.get(column.group, 0) + width
    # Each group's name stands over its columns, cut where they are narrower.
    groups = "".join(f" {group}"[:span].ljust(span) for group, span in spans.items())
    head = [(" " * name_width + groups).rstrip(), _line("model", labels, name_width, widths)]
    rule = "-" * len(head[-1])
    body, foot = (
        [_line(name, cells, name_width, widths) for name, cells in rows.items()]
        for rows in (models, constant)
    )
    return "\n".join([*head, rule, *body, rule, *foot, *textwrap.wrap(legend(benchmark, convention), _WIDTH)])


def _line(name: str, cells: Sequence[str], name_width: int, widths: Sequence[int]) -> str:
    short = name if len(name) <= name_width else name[: name_width - 1] + "…"
    return short.ljust(name_width) + "".join(
        text.rjust(width) for text, width in zip(cells, widths, strict=True)
    )
