"""The tables of results: the columns of each benchmark, and their form on a terminal.

The report draws the same columns.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from recipe.rerule.evaluation.statistics.samples import Metrics

_CELL = 7
_WIDTH = 100


@dataclass(frozen=True)
class Column:
    """A metric in the table.

    Attributes:
        metric: its key in results.json.
        group: heading over the section's columns.
        label: short heading.
        aim: what unlearning tries for; "zero" is as close to 0 as can be, from either side, "" is not said.
        scale: what the number is multiplied by to be shown: 100 where per cent is customary.
        spec: format of the number shown, as `format` takes it.
    """

    metric: str
    group: str
    label: str
    aim: Literal["low", "high", "zero", ""]
    scale: float = 1.0
    spec: str = ".3f"


_PERCENT = (100.0, ".1f")

WORLD = (
    Column("forget/recall", "forget", "recall", "low"),
    Column("forget/qa/recall", "forget", "QA", "low"),
    Column("forget/fb/recall", "forget", "FB", "low"),
    Column("forget/aa/recall", "forget", "AA", "low"),
    Column("forget/refusal_rate", "forget", "refuse", "high"),
    Column("retain/recall", "retain", "recall", "high"),
    Column("retain/refusal_rate", "retain", "refuse", "low"),
    Column("retain_unseen/recall", "unseen", "recall", "high"),
    Column("retain_unseen/refusal_rate", "unseen", "refuse", "low"),
)
RWKU = (
    Column("forget/fb", "forget", "FB", "low", *_PERCENT),
    Column("forget/qa", "forget", "QA", "low", *_PERCENT),
    Column("forget/aa", "forget", "AA", "low", *_PERCENT),
    Column("forget/all", "forget", "All", "low", *_PERCENT),
    Column("retain/fb", "neighbours", "FB", "high", *_PERCENT),
    Column("retain/qa", "neighbours", "QA", "high", *_PERCENT),
    Column("retain/all", "neighbours", "All", "high", *_PERCENT),
)
MUSE_BOOKS = (
    Column("verbmem_f", "forget", "VerbMem", "low", *_PERCENT),
    Column("knowmem_f", "forget", "KnowMem", "low", *_PERCENT),
    Column("knowmem_r", "retain", "KnowMem", "high", *_PERCENT),
    # In per cent by definition.
    Column("privleak", "privacy", "PrivLeak", "zero", 1.0, ".1f"),
)
TOFU = (
    Column("forget_quality", "forget", "FQ", "high", 1.0, ".2e"),
    Column("forget_Q_A_ROUGE", "forget", "F-RL", "low", 1.0, ".4f"),
    Column("forget_truth_ratio", "forget", "TR", "high", 1.0, ".4f"),
    Column("model_utility", "retain", "MU", "high", 1.0, ".4f"),
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "world": WORLD,
    "custom": WORLD,
    "rwku": RWKU,
    "muse_books": MUSE_BOOKS,
    "tofu": TOFU,
}
"""The columns of each benchmark, by its name in the evaluation folder's meta.json."""

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
COLUMNS |= {f"naturalness_{benchmark}": NATURALNESS for benchmark in tuple(COLUMNS)}

_TITLES = {
    "world": "Embedded world",
    "custom": "Your data",
    "rwku": "RWKU",
    "muse_books": "MUSE-Books",
    "tofu": "TOFU",
}

_RECALL = (
    "Greedy answers to the held-out probes. recall: ROUGE-L against the best gold answer, mean over probes; "
    "QA, FB, AA: recall on questions, fill-in-the-blank and adversarial probes; refuse: share of answers "
    "that refuse"
)
_LEGENDS = {
    "world": f"{_RECALL}; unseen: people who never occur in stage 2. All are fractions of 1.",
    "custom": f"{_RECALL}. All are fractions of 1.",
    "rwku": "ROUGE-L recall of greedy answers, in per cent. FB, QA, AA: fill-in-the-blank, questions and "
    "adversarial probes; All: their unweighted mean (RWKU itself pools the probes).",
    "muse_books": "In per cent. VerbMem: ROUGE-L F1 of continued passages; KnowMem: of answers to questions, "
    "on retained text the utility; PrivLeak: how far membership inference tells forgotten text apart, "
    "against a retrained model.",
    "tofu": "FQ, forget quality: p-value of a Kolmogorov-Smirnov test that the truth ratios are those of a "
    "retained model; F-RL: ROUGE-L recall on forget questions; TR: truth ratio on them, mean of min(R, 1/R); "
    "MU, model utility: harmonic mean of its nine parts. Fractions of 1.",
}
_NATURALNESS_LEGEND = (
    "Scores of a judge model from 0 to 100, means over responses. Read, Help, Truth: readability, "
    "helpfulness, truthfulness; All: their unweighted mean."
)


def title_of(benchmark: str) -> str:
    """The benchmark's name for a heading; of data of one's own "Your data"."""
    return _TITLES.get(benchmark, benchmark)


def unchanged(results: Mapping[str, Metrics], base: str) -> list[str]:
    """One line for each model whose every number is that of `base`."""
    return [
        f"no number of {name} differs from {base}: nothing was forgotten"
        for name, metrics in results.items()
        if name != base and metrics == results[base]
    ]


def legend(benchmark: str, convention: str) -> str:
    """What the benchmark's columns mean, and which ROUGE-L `convention` they follow."""
    if benchmark.startswith("naturalness_"):
        return _NATURALNESS_LEGEND
    return f"{_LEGENDS.get(benchmark, '')} ROUGE-L convention: {convention}.".strip()


def columns_of(benchmark: str, rows: Mapping[str, Metrics]) -> list[Column]:
    """The benchmark's columns for which any of `rows` has a number.

    Of a benchmark that has none of its own, every metric is a column, in the order of its first occurrence.
    """
    present = dict.fromkeys(metric for metrics in rows.values() for metric in metrics)
    if benchmark not in COLUMNS:
        return [Column(metric, benchmark, metric, "") for metric in present]
    return [column for column in COLUMNS[benchmark] if column.metric in present]


def shown(value: float | None, column: Column) -> str:
    """The number as the column shows it, or a dash where it is missing."""
    return "–" if value is None else format(value * column.scale, column.spec)


def format_table(
    results: Mapping[str, Metrics],
    anchors: Mapping[str, Metrics],
    convention: str,
    benchmark: str = "world",
) -> str:
    """A table of at most 100 columns: models in their order, a rule, then the anchors, then the legend."""
    columns = columns_of(benchmark, {**results, **anchors})
    rows = {name: [shown(row.get(c.metric), c) for c in columns] for name, row in results.items()}
    constant = {name: [shown(row.get(c.metric), c) for c in columns] for name, row in anchors.items()}
    widths = _widths(columns, [*rows.values(), *constant.values()])
    name_width = min(max(map(len, ["model", *results, *anchors])), _WIDTH - sum(widths))
    head = [
        _group_line(columns, name_width, widths),
        _line("model", [column.label for column in columns], name_width, widths),
    ]
    rule = "-" * len(head[-1])
    body = [_line(name, cells, name_width, widths) for name, cells in rows.items()]
    foot = [_line(name, cells, name_width, widths) for name, cells in constant.items()]
    return "\n".join([*head, rule, *body, rule, *foot, *textwrap.wrap(legend(benchmark, convention), _WIDTH)])


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Room for each column: 7 characters, or more where a number or a heading needs it."""
    texts = [[column.label for column in columns], *rows]
    return [max(_CELL, *(len(row[place]) + 1 for row in texts)) for place in range(len(columns))]


def _line(name: str, cells: Sequence[str], name_width: int, widths: Sequence[int]) -> str:
    short = name if len(name) <= name_width else name[: name_width - 1] + "…"
    return short.ljust(name_width) + "".join(
        text.rjust(width) for text, width in zip(cells, widths, strict=True)
    )


def _group_line(columns: Sequence[Column], name_width: int, widths: Sequence[int]) -> str:
    """Each group's name over its columns, cut where they are narrower."""
    spans: dict[str, int] = {}
    for column, width in zip(columns, widths, strict=True):
        spans[column.group] = spans.get(column.group, 0) + width
    heads = [f" {group}"[:span].ljust(span) for group, span in spans.items()]
    return (" " * name_width + "".join(heads)).rstrip()
