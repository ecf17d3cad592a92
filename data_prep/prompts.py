"""A benchmark before it is written: its prompts, what is right for each, and the text a prompt is sent as."""

from __future__ import annotations

import ast
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from data_prep.contract import MODES, Row, Side, rl_row, sft_row
from data_prep.sources import Record, SourceError
from reward import names_of
from reward.thoughts import with_thought

STREAM = 1_000_000
"""Prompts of one stream (training prompts to forget, probes ...) are numbered from a multiple of this."""


NAMED = "named"
"""Family of a retain prompt that names the target on purpose."""


@dataclass(frozen=True)
class Prompt:
    """One prompt of a benchmark.

    Attributes:
        index: unique over the benchmark, and the same whatever else is in it.
        query: the bare question.
        golds: right answers; on the forget side of a source that gives none, the refusal.
        keyword: the target's name k(x), or its names as `reward.names_of` reads them; "" on the retain side.
        refusal: what stage 1 teaches; "" where stage 1 has no such prompt.
        origin: where it comes from, for messages.
        reference: of probes whose benchmark compares likelihoods, as `contract.REFERENCE`.
        fact: what it asks for, where the source says it; "" where it does not.
        trace, refusal_trace: the chain of thought before the first gold, and before the refusal; "" for none.
    """

    index: int
    query: str
    side: Side
    mode: str
    subject: str
    family: str
    golds: tuple[str, ...]
    keyword: str
    section: str
    origin: str
    refusal: str = ""
    reference: Row | None = field(default=None, hash=False)
    fact: str = ""
    trace: str = ""
    refusal_trace: str = ""

    @property
    def taught(self) -> str:
        """The refusal with its chain of thought."""
        return with_thought(self.refusal_trace, self.refusal)


def make_prompt(
    index: int,
    query: str,
    side: Side,
    subject: str,
    golds: tuple[str, ...],
    origin: str,
    *,
    mode: str = "",
    family: str = "",
    **more: Any,
) -> Prompt:
    """A prompt whose keyword on the forget side is its subject, unless `more` says another.

    Without a mode it is that of the query, and without a family the mode.
    """
    mode = mode or mode_of(query)
    settled = {"keyword": subject if side == "forget" else "", "section": side, **more}
    return Prompt(index, query, side, mode, subject, family or mode, golds, origin=origin, **settled)


@dataclass(frozen=True)
class PromptForm:
    """How a query becomes the text that is sent.

    Attributes:
        raw: the text goes to a base model without a chat template.
        templates: by mode, with the place {query}; a mode that is not here is sent as it is.
        prefixes: few-shot examples by side and mode, put before the text; equal on both sides unless asked
            otherwise, because a prefix that differs tells the model which side a prompt is on.
    """

    raw: bool = False
    templates: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[tuple[Side, str], str] = field(default_factory=dict)

    def render(self, prompt: Prompt) -> str:
        """The text of one prompt."""
        template = self.templates.get(prompt.mode, "{query}")
        # The query may hold braces of its own.
        return self.prefixes.get((prompt.side, prompt.mode), "") + template.replace("{query}", prompt.query)


@dataclass(frozen=True)
class Material:
    """What a benchmark has for the methods that train on answers (`classical`), besides its training prompts.

    Attributes:
        golds: right answers of questions to forget whose source gives none, by their normalised text.
        retain: questions to keep; None for those of the training prompts.
        retain_set: what `retain` is called in the manifest.
        forget_texts, retain_texts: texts without questions.
        notes: counts for the manifest.
    """

    golds: Mapping[str, str] = field(default_factory=dict)
    retain: Sequence[Prompt] | None = None
    retain_set: str = "boundary"
    forget_texts: Sequence[str] = ()
    retain_texts: Sequence[str] = ()
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """All prompts of one benchmark.

    Attributes:
        name: `data_source` of its rows is rerule/<name>.
        stage1: prompts with a refusal, for rejection steering.
        form: of training and validation prompts.
        probe_form: of the probes, where it is another.
        trained_sections: sections of the probes whose prompts are trained on by the benchmark's own design.
        settings: the options that shaped it, for the manifest.
        sources: SHA-256 of what was read, by name.
        notes: counts of what was left out or corrected, for the manifest.
        failures: what could not be written and why, for the manifest.
        material: for the methods that train on answers.
        trains: whether it has training prompts; one without them has probes, and texts of `material`.
    """

    name: str
    probes: list[Prompt]
    form: PromptForm
    train: list[Prompt] = field(default_factory=list)
    val: list[Prompt] = field(default_factory=list)
    stage1: list[Prompt] = field(default_factory=list)
    probe_form: PromptForm | None = None
    trained_sections: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    failures: Sequence[str] = ()
    material: Material = Material()
    trains: bool = True

    def rl_rows(self, split: str, prompts: Iterable[Prompt]) -> list[Row]:
        """The rows of train, val or probe prompts."""
        form = self.probe_form or self.form if split == "probe" else self.form
        return [
            rl_row(
                data_source=f"rerule/{self.name}",
                prompt=form.render(prompt),
                side=prompt.side,
                golds=list(prompt.golds),
                keyword=prompt.keyword,
                extra_info={
                    "index": prompt.index,
                    "mode": prompt.mode,
                    "subject": prompt.subject,
                    "split": split,
                    "section": prompt.section,
                    "family": prompt.family,
                    **({"fact": prompt.fact} if prompt.fact else {}),
                    **({"trace": prompt.trace} if prompt.trace else {}),
                },
                query=prompt.query,
                raw=form.raw,
                reference=prompt.reference if split == "probe" else None,
            )
            for prompt in prompts
        ]

    def sft_rows(self) -> list[Row]:
        """The rows of stage 1."""
        return self.answered_rows((prompt, prompt.taught) for prompt in self.stage1)

    def answered_rows(self, answered: Iterable[tuple[Prompt, str]]) -> list[Row]:
        """A stage-1 row for each prompt and the answer that is to be learnt or unlearnt."""
        return [
            sft_row(
                prompt=self.form.render(prompt),
                answer=answer,
                extra_info={"index": prompt.index, "mode": prompt.mode, "subject": prompt.subject},
                raw=self.form.raw,
            )
            for prompt, answer in answered
        ]


def mode_of(query: str) -> str:
    """ "fb" where the query has a blank, "___"; otherwise "qa"."""
    return "fb" if "___" in query else "qa"


# ---- draws of prompts ----


def spread(prompts: Sequence[Prompt], count: int, rng: random.Random) -> list[Prompt]:
    """At most `count` of the prompts in their own order, as evenly over side and mode as can be."""
    groups: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in rng.sample(list(prompts), len(prompts)):
        groups.setdefault((prompt.side, prompt.mode), []).append(prompt)
    turns = [(turn, prompt) for group in groups.values() for turn, prompt in enumerate(group)]
    turns.sort(key=lambda drawn: drawn[0])  # stable: each group has its turn before any has another
    chosen = {prompt.index for _, prompt in turns[:count]}
    return [prompt for prompt in prompts if prompt.index in chosen]


# ---- RULE's training files: {prompt, solution: [marker, text, keyword?], mode?}, as prompts ----


SIDES: dict[str, Side] = {"<reject>": "forget", "<normal>": "retain"}


def is_rule_row(record: Record) -> bool:
    """Whether a raw row has RULE's fields."""
    return "prompt" in record.fields and "solution" in record.fields


def rule_solution(record: Record) -> tuple[Side, list[Any]]:
    """The side of one of RULE's rows, and what follows its marker: a text and, on the forget side, a name.

    The solution is a list, or such a list as Python writes it; it is read as a literal, and never run.

    Raises:
        SourceError: naming the row and what is wrong with its solution.
    """
    solution = record.fields["solution"]
    if isinstance(solution, str):
        # What is no literal is refused below; Python warns of backslashes in a text.
        refused = suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
        with warnings.catch_warnings(action="ignore"), refused:
            solution = ast.literal_eval(solution)
    if not isinstance(solution, list) or len(solution) < 2 or solution[0] not in [*SIDES]:
        raise SourceError(
            f"{record.origin}: solution is {solution!r:.60}, expected [marker, text, keyword] with "
            f"{' or '.join(SIDES)} as the marker"
        )
    return SIDES[solution[0]], solution[1:]


def rule_prompt(record: Record, index: int, subject: str) -> Prompt:
    """The prompt of one of RULE's rows; on the forget side its text is both refusal and gold.

    Args:
        index: of the prompt.
        subject: what a retain row is about; a forget row is about its keyword.

    Raises:
        SourceError: naming the row and what is wrong with it.
    """
    side, entries = rule_solution(record)
    text, query = record.filled("solution[1]", entries[0]), record.text("prompt")
    if side == "forget" and len(entries) < 2:
        raise SourceError(f"{record.origin}: solution has no third entry, the target's name")
    keyword = record.filled("solution[2]", entries[1]) if side == "forget" else ""
    return make_prompt(
        index,
        query,
        side,
        [*names_of(keyword), subject][0],
        (text,),
        record.origin,
        mode=record.one_of("mode", MODES, mode_of(query)),
        keyword=keyword,
        refusal=text if side == "forget" else "",
    )
