"""The model card of an exported model: README.md as Hugging Face's model folders have it.

Names and answers are others' texts: nothing in them is taken for Markdown or YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import yaml

from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.attacks.summary import CONTROL, Numbers
from recipe.rerule.evaluation.table import columns_of, legend
from recipe.rerule.reporting.attacks.results import AttackResults
from recipe.rerule.reporting.attacks.sentences import READING, READING_CONTROL, sentences_on
from recipe.rerule.reporting.document import CAUTION, CAUTION_ATTACKED, Cell, Heading, Row, Table
from recipe.rerule.reporting.evaluations import Benchmark, Evaluation
from recipe.rerule.reporting.markdown import escaped, markdown_table
from recipe.rerule.reporting.origin import Origin, shown_name
from recipe.rerule.reporting.result_tables import evaluation_rows, few_facts_note, heading

FILL_IN = "TO BE FILLED IN"
_NOT_EVALUATED = (
    "This model was exported without an evaluation. Nothing is known of what it answers or refuses."
)
_NOT_ATTACKED = "This model was exported without attacks. Nothing is known of what they would get out of it."


@dataclass(frozen=True)
class Measured:
    """An evaluation or an attack evaluation, and the name that the model has there."""

    benchmarks: Sequence[tuple[Benchmark, str]] = ()
    attacks: Sequence[tuple[AttackResults, str]] = ()


def model_card(name: str, origin: Origin, measured: Measured) -> str:
    """The card of the model `name`."""
    parts = [
        _front_matter(name, origin),
        f"# {escaped(name)}",
        f"> {escaped(CAUTION_ATTACKED if measured.attacks else CAUTION)}",
        *_training(origin),
        "## What it answers and refuses",
        *(_evaluated(measured.benchmarks) or [_NOT_EVALUATED]),
        "## What attacks get out of it",
        *(_attacked(measured.attacks) or [_NOT_ATTACKED]),
        *_to_fill_in(origin),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(name: str, origin: Origin) -> str:
    """What the Hub reads; the licence is left to who publishes the model."""
    fields = {
        "model_name": name,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["unlearning", "rerule"],
        "license": "other",
        "license_name": FILL_IN,
        "license_link": FILL_IN,
    }
    if origin.base and shown_name(origin.base) == origin.base:
        fields["base_model"] = origin.base
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)}---"


def _training(origin: Origin) -> Iterator[str]:
    yield "## How it was trained"
    yield f"Method: {escaped(origin.method)}."
    facts = dict(origin.facts)
    if origin.base:
        facts = {"trained from": shown_name(origin.base), **facts}
    if facts:
        yield "\n".join(f"- {escaped(what)}: {escaped(value)}" for what, value in facts.items())


def _evaluated(benchmarks: Sequence[tuple[Benchmark, str]]) -> list[str]:
    return [
        part
        for benchmark, model in benchmarks
        for target in benchmark.targets
        for part in (f"### {escaped(_title(benchmark, target))}", *_scores(target, model))
    ]


def _title(benchmark: Benchmark, target: Evaluation) -> str:
    return benchmark.title if len(benchmark.targets) == 1 else f"{benchmark.title}: {target.target}"


def _scores(evaluation: Evaluation, model: str) -> Iterator[str]:
    """The model's numbers with intervals, and beside them what constant answers get."""
    own = {model: evaluation.results[model]}
    columns = columns_of(evaluation.benchmark, {**own, **evaluation.anchors})
    alone = replace(evaluation, results=own, comparisons=())
    rows = [
        *evaluation_rows(alone, own, columns, model),
        *evaluation_rows(alone, evaluation.anchors, columns, model, "anchor"),
    ]
    yield markdown_table(Table("card", "", "answers of", tuple(map(heading, columns)), tuple(rows), ""))
    notes = [legend(evaluation.benchmark, evaluation.convention)]
    if evaluation.intervals:
        notes.append("In brackets: the 95 % bootstrap interval over facts.")
    if note := few_facts_note(evaluation):
        notes.append(f"{note[0].upper()}{note[1:]}.")
    if evaluation.anchors:
        notes.append("Rows in italics are no models: they give one answer to everything.")
    yield escaped(" ".join(notes))


def _attacked(evaluations: Sequence[tuple[AttackResults, str]]) -> list[str]:
    return [part for results, model in evaluations for part in _leaks(results, model)]


def _leaks(results: AttackResults, model: str) -> Iterator[str]:
    yield f"### {escaped(results.title)}"
    told = sentences_on(results, model) if model in results.unlearned else []
    yield from (
        escaped(text) for text in [*told, READING, *([READING_CONTROL] if CONTROL in results.models else [])]
    )
    headings = (Heading("score before"), Heading("score after"), Heading("E"))
    rows = tuple(
        Row(results.label(key), _numbers(results.rows[key][model])) for key in results.shown if key != BEFORE
    )
    yield markdown_table(Table("leaks", "", "attack", headings, rows, ""))
    yield (
        "E is the score less that of a model that never knew the facts, attacked in the same way, with its "
        "95 % interval over facts. A dash: not measured."
    )


def _numbers(row: Numbers) -> tuple[Cell, ...]:
    ends = "" if row.interval is None else f"{row.interval[0]:+.3f} to {row.interval[1]:+.3f}"
    excess = Cell("–") if row.excess is None else Cell(f"{row.excess:+.3f}", row.excess, ends)
    before = Cell("–") if row.before is None else Cell(f"{row.before:.3f}", row.before)
    return before, Cell(f"{row.after:.3f}", row.after), excess


def _to_fill_in(origin: Origin) -> Iterator[str]:
    """What only who publishes the model can say."""
    yield "## To be filled in before publishing"
    base = "the model that it was trained from" if origin.base is None else escaped(shown_name(origin.base))
    lines = [
        f"- Licence of this model: {FILL_IN}. It must agree with the licence of {base}.",
        f"- Licence of the training data: {FILL_IN}",
        f"- Intended use, and who answers questions about it: {FILL_IN}",
    ]
    yield "\n".join(lines)
