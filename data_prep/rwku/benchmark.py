"""One RWKU target as prompts: RULE's training rows, or generated ones, and the benchmark's own probes."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace

from data_prep import written
from data_prep.draws import spread
from data_prep.prompts import STREAM, Benchmark, Prompt, PromptForm, Side
from data_prep.rule_rows import is_rule_row, rule_prompt
from data_prep.sources import FolderSource, Record, SourceError, Table
from data_prep.writers import Writer

TRAINING = Table("rl_rejection_with_fb_neighbor_target", "", "")
"""RULE's file of stage 2: questions and blanks on the target, and on people in its place."""
QUESTIONS = Table("reject", "", "")
"""RWKU's own file of questions on the target, with refusals."""
OWN_BLANKS, OWN_NEIGHBOURS = 10 * STREAM, 11 * STREAM
PROBES: tuple[tuple[str, Side, str], ...] = (
    ("forget_level1", "forget", "fb"),
    ("forget_level2", "forget", "qa"),
    ("forget_level3", "forget", "aa"),
    ("neighbor_level1", "retain", "fb"),
    ("neighbor_level2", "retain", "qa"),
)
"""RWKU's question sets: file, side and mode."""


@dataclass(frozen=True)
class RwkuOptions:
    """What shapes the benchmark.

    stage1_modes: "qa", "fb" or both, the refusals of stage 1 (RULE's code: "qa" alone).
    val_rows: validation prompts, drawn from the probes, as evenly over side and mode as can be.
    seed: of all draws.
    """

    stage1_modes: tuple[str, ...] = ("qa", "fb")
    val_rows: int = 64
    seed: int = 42


def load(source: FolderSource, options: RwkuOptions, writer: Writer) -> Benchmark:
    """The benchmark of one target. Raises ValueError."""
    probes = _probes(source)
    train = (
        _rule_prompts(source) if source.has(TRAINING) else _written_prompts(source, options, writer, probes)
    )
    return Benchmark(
        name="rwku",
        train=train,
        val=spread(probes, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=[prompt for prompt in train if prompt.refusal and prompt.mode in options.stage1_modes],
        probes=probes,
        form=PromptForm(),
        settings={"source": source.name} | asdict(options),
        sources=source.hashes,
    )


def _rule_prompts(source: FolderSource) -> list[Prompt]:
    records = source.read(TRAINING)
    for record in records:
        if not is_rule_row(record):
            raise SourceError(f"{record.origin}: has no prompt and solution")
    return [rule_prompt(record, number, "neighbour") for number, record in enumerate(records)]


def _written_prompts(
    source: FolderSource, options: RwkuOptions, writer: Writer, probes: list[Prompt]
) -> list[Prompt]:
    """As the paper makes them: RWKU's questions to refuse, their blanks, and neighbours of both."""
    questions = [_question(record, number) for number, record in enumerate(source.read(QUESTIONS))]
    forget = questions + written.blanks(questions, OWN_BLANKS, writer, answered=False)
    forget = written.with_refusals(forget, writer, random.Random(f"refusals {options.seed}"))
    # No answer is known; the refusal is what a forget row has for gold.
    forget = [replace(prompt, golds=(prompt.refusal,)) for prompt in forget]
    return forget + written.neighbours(forget, OWN_NEIGHBOURS, writer, probes)


def _question(record: Record, index: int) -> Prompt:
    target = record.text("subject")
    return Prompt(
        index=index,
        query=record.text("instruction"),
        side="forget",
        mode="qa",
        subject=target,
        family="qa",
        golds=(),
        keyword=target,
        section="forget",
        origin=record.origin,
    )


def _probes(source: FolderSource) -> list[Prompt]:
    probes = []
    for stream, (name, side, mode) in enumerate(PROBES, start=1):
        records = source.read(Table(name, "", ""))
        probes += [_probe(record, stream * STREAM + i, side, mode) for i, record in enumerate(records)]
    return probes


def _probe(record: Record, index: int, side: Side, mode: str) -> Prompt:
    target = record.text("subject")
    return Prompt(
        index=index,
        query=record.text("query"),
        side=side,
        mode=mode,
        subject=target if side == "forget" else record.text("neighbor"),
        family=record.text("type"),
        golds=(record.text("answer"),),
        keyword=target if side == "forget" else "",
        section=side,
        origin=record.origin,
    )
