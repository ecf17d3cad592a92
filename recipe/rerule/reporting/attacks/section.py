"""The section of a report on one attack evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recipe.rerule.evaluation.attacks.summary import CONTROL
from recipe.rerule.reporting.attacks.results import AttackResults
from recipe.rerule.reporting.attacks.sentences import READING, READING_CONTROL, sentences
from recipe.rerule.reporting.attacks.tables import tables
from recipe.rerule.reporting.document import Part, Section
from recipe.rerule.reporting.figures.attacks import attack_figure, curves_figure

WITHOUT_CONTROL = (
    "This evaluation has no model that never knew the facts (--control). An attack that got an answer back "
    "cannot be told from one that taught it, so nothing here is said to have survived."
)
WITHOUT_UNLEARNED = "No model of this evaluation has unlearned anything."


def attack_sections(evaluations: Sequence[AttackResults]) -> list[Section]:
    """A section for each attack evaluation."""
    return [
        Section(f"What attacks get out: {results.title}", tuple(_parts(results, suffix)))
        for results, suffix in zip(evaluations, _suffixes(evaluations), strict=True)
    ]


def _suffixes(evaluations: Sequence[AttackResults]) -> Iterator[str]:
    """Of the names of files: the benchmark, with a number from its second folder on."""
    seen: dict[str, int] = {}
    for results in evaluations:
        seen[results.benchmark] = seen.get(results.benchmark, 0) + 1
        count = seen[results.benchmark]
        yield results.benchmark if count == 1 else f"{results.benchmark}_{count}"


def _parts(results: AttackResults, suffix: str) -> Iterator[Part]:
    yield from paragraphs(results)
    figures = (attack_figure(results, suffix), curves_figure(results, suffix))
    yield from (figure for figure in figures if figure is not None)
    yield from tables(results, suffix)


def paragraphs(results: AttackResults) -> list[str]:
    """What a reader needs to read first: a paragraph for each unlearned model, and how to read it."""
    found = sentences(results) or [WITHOUT_UNLEARNED]
    return [*found, READING, READING_CONTROL if CONTROL in results.models else WITHOUT_CONTROL]
