"""TOFU as prompts: forget rows and their boundary, stage-1 refusals, and the benchmark's own probes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from data_prep import written
from data_prep.checks import refuse_probes
from data_prep.draws import spread
from data_prep.prompts import STREAM, Benchmark, Material, Prompt, PromptForm, Reference, Side
from data_prep.sources import Record, Source, SourceError, Table
from data_prep.text import normalise
from data_prep.tofu.authors import author_names
from data_prep.writers import Writer

SPLITS = {
    "forget01": ("retain99_train600", "retain99"),
    "forget05": ("retain95",),
    "forget10": ("retain90",),
}
"""Forget split, and the tables its boundary prompts may come from: the first that is there."""
TOFUS_OWN = ("retain99", "retain95", "retain90")
"""Those of them that are TOFU's, and hold its retain probes."""
RETAIN_SETS = ("boundary", "unprobed", "published")
"""What the methods that train on answers keep: stage 2's boundary prompts, all of TOFU's retain rows that are
no probes, or all of them, as TOFU's published methods do."""
PROBES = {
    "retain": (Table("retain_perturbed", "retain_perturbed", "train"), "retain"),
    "real_authors": (Table("real_authors_perturbed", "real_authors_perturbed", "train"), "retain_unseen"),
    "world_facts": (Table("world_facts_perturbed", "world_facts_perturbed", "train"), "retain_unseen"),
}
"""The benchmark's other question sets by family: table and section."""


@dataclass(frozen=True)
class TofuOptions:
    """What shapes the benchmark.

    split: one of SPLITS.
    boundary: "retain": questions on TOFU's other authors; "written": the questions to forget, rewritten
        around real people (the paper's).
    boundary_rows: how many of them; None for as many as there are to forget.
    stage1_modes: "qa", "fb" or both, the refusals of stage 1.
    retain_set: one of RETAIN_SETS.
    val_rows: validation prompts, drawn from the probes, half from each side.
    seed: of all draws.
    """

    split: str = "forget01"
    boundary: str = "retain"
    boundary_rows: int | None = None
    stage1_modes: tuple[str, ...] = ("qa", "fb")
    retain_set: str = "boundary"
    val_rows: int = 64
    seed: int = 42


def load(source: Source, options: TofuOptions, writer: Writer) -> Benchmark:
    """The benchmark of one forget split. Raises ValueError."""
    forget = forget_prompts(source, options, writer)
    probes = _probes(source, options.split)
    count = options.boundary_rows or len(forget)
    if options.boundary == "written":
        boundary = written.neighbours(forget[:count], STREAM, writer, probes)
    else:
        boundary = _boundary(source, options, probes, count)
    return Benchmark(
        name="tofu",
        train=forget + boundary,
        val=spread(probes, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=_stage1(forget, options, writer),
        probes=probes,
        form=PromptForm(),
        trained_sections=frozenset({"forget"}),
        material=_material(source, options, probes),
        settings={"source": source.name} | asdict(options),
        sources=source.hashes,
    )


def _material(source: Source, options: TofuOptions, probes: Sequence[Prompt]) -> Material:
    """The retain set asked for. Raises SourceError and LeakError."""
    if options.retain_set == "boundary":
        return Material()
    name = SPLITS[options.split][-1]
    prompts, unprobed = _retain_prompts(source, Table(name, name, "train"), probes)
    if options.retain_set == "unprobed":
        return Material(retain=unprobed, retain_set=f"{name} without its retain probes")
    return Material(
        retain=prompts,
        retain_set=f"{name} as published, with its retain probes",
        notes={"retain_rows_that_are_probes": len(prompts) - len(unprobed)},
    )


def forget_prompts(source: Source, options: TofuOptions, writer: Writer) -> list[Prompt]:
    """The questions to forget, each with its author's name and a refusal. Raises SourceError."""
    prompts = _by_author(source, options.split, 0)
    return written.with_refusals(prompts, writer, random.Random(f"refusals {options.seed}"))


def _by_author(source: Source, table: str, first_index: int) -> list[Prompt]:
    """The rows of a forget table with their authors. Raises SourceError."""
    records = source.read(Table(table, table, "train"))
    texts = [f"{record.text('question')} {record.text('answer')}" for record in records]
    names = author_names(texts, table)
    return [
        _prompt(record, first_index + number, "forget", name, "forget", "forget")
        for number, (record, name) in enumerate(zip(records, names, strict=True))
    ]


def _boundary(source: Source, options: TofuOptions, probes: Sequence[Prompt], count: int) -> list[Prompt]:
    """Questions about authors to be kept that are no probes, drawn without replacement, in TOFU's order.

    Raises SourceError and LeakError.
    """
    tables = [Table(name, name, "train") for name in SPLITS[options.split]]
    table = next((table for table in tables if source.has(table)), tables[-1])
    _, usable = _retain_prompts(source, table, probes)
    if count > len(usable):
        raise SourceError(f"{table.file}: has {len(usable)} rows that are no probes, fewer than {count}")
    drawn = random.Random(f"boundary {options.seed}").sample(range(len(usable)), count)
    return [usable[place] for place in sorted(drawn)]


def _retain_prompts(
    source: Source, table: Table, probes: Sequence[Prompt]
) -> tuple[list[Prompt], list[Prompt]]:
    """The questions of a retain table, all of them and those that are no probes.

    TOFU's own retain tables hold its retain probes; any other probe in the table is refused. Raises
    SourceError and LeakError.
    """
    held = [p for p in probes if table.file in TOFUS_OWN and p.family == "retain"]
    asked = {normalise(probe.query) for probe in held}
    prompts = [
        _prompt(record, STREAM + number, "retain", "fictitious authors", "retain", "retain")
        for number, record in enumerate(source.read(table))
    ]
    unprobed = [prompt for prompt in prompts if normalise(prompt.query) not in asked]
    refuse_probes(unprobed, [probe for probe in probes if probe.side == "retain"])
    return prompts, unprobed


def _stage1(forget: Sequence[Prompt], options: TofuOptions, writer: Writer) -> list[Prompt]:
    """Refusals of the questions, of fill-in-the-blank forms of them, or of both."""
    prompts = list(forget) if "qa" in options.stage1_modes else []
    if "fb" in options.stage1_modes:
        questions = [replace(prompt, refusal="") for prompt in forget]
        blanks = written.blanks(questions, 2 * STREAM, writer, answered=True)
        rng = random.Random(f"refusals of blanks {options.seed}")
        prompts += written.with_refusals(blanks, writer, rng)
    return prompts


def _probes(source: Source, split: str) -> list[Prompt]:
    """The benchmark's question sets; the forget rows again, which it trains and tests on by design."""
    probes = _by_author(source, f"{split}_perturbed", 3 * STREAM)
    for stream, (family, (table, section)) in enumerate(PROBES.items(), start=4):
        subject = family.replace("_", " ")
        probes += [
            _prompt(record, stream * STREAM + number, "retain", subject, family, section)
            for number, record in enumerate(source.read(table))
        ]
    return probes


def _reference(record: Record) -> Reference | None:
    """What TOFU compares the right answer's likelihood with; training tables have no such fields."""
    if record.fields.get("perturbed_answer") is None:
        return None
    paraphrased = record.fields.get("paraphrased_answer")
    return Reference(
        perturbed=record.texts("perturbed_answer"),
        paraphrased=None if paraphrased is None else record.text("paraphrased_answer"),
    )


def _prompt(record: Record, index: int, side: Side, subject: str, family: str, section: str) -> Prompt:
    return Prompt(
        index=index,
        query=record.text("question"),
        side=side,
        mode="qa",
        subject=subject,
        family=family,
        golds=(record.text("answer"),),
        keyword=subject if side == "forget" else "",
        section=section,
        origin=record.origin,
        reference=_reference(record),
    )
