"""TOFU: forget the fictitious authors of forget01, forget05 or forget10 (locuslab/TOFU)."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from data_prep.build import refuse_probes
from data_prep.contract import normalise
from data_prep.options import STAGE1_MODES, Draws, benchmark, option
from data_prep.prompts import (
    STREAM,
    Benchmark,
    Material,
    Prompt,
    PromptForm,
    Side,
    make_prompt,
    spread,
)
from data_prep.sources import Record, Source, SourceError, Table, open_source
from data_prep.writers import Writer, blanks, neighbours, with_refusals
from recipe.rerule.process import positive

# ---- which author a row is about: found in its text, since TOFU does not say ----


ROWS_PER_AUTHOR = 20
"""TOFU lists its 200 authors one after the other, with so many rows each."""

_UPPER = "".join(filter(str.isupper, map(chr, range(0x530))))  # Latin, Greek and Cyrillic
_PARTICLE = "(?:de|da|del|della|di|van|von|der|bin|ibn|al|el|la|le)"
_WORD = rf"(?:(?:[{_UPPER}]\.)+|(?:Dr|St)\.|[{_UPPER}][\w’'-]*\w)"
_NAME = re.compile(rf"\b{_WORD}(?: (?:{_PARTICLE} )*{_WORD})+")
_POSSESSIVE = re.compile(r"['’]s$")


def author_names(texts: Sequence[str], origin: str) -> list[str]:
    """The author's full name for each row, given question and answer of all rows in TOFU's order.

    Of each author's rows, the name (two or more capitalised words in sequence) that occurs in most of them;
    among equals the longest, of those the last by the alphabet.

    Raises:
        SourceError: rows are no multiple of ROWS_PER_AUTHOR, or no name occurs in half of an author's rows.
    """
    if len(texts) % ROWS_PER_AUTHOR:
        raise SourceError(
            f"{origin}: has {len(texts)} rows, no multiple of {ROWS_PER_AUTHOR} for each author"
        )
    names = []
    for start in range(0, len(texts), ROWS_PER_AUTHOR):
        rows: Counter[str] = Counter()  # that hold a name
        for text in texts[start : start + ROWS_PER_AUTHOR]:
            rows.update({_POSSESSIVE.sub("", found) for found in _NAME.findall(text)})
        name = max(rows, key=lambda one: (rows[one], len(one), one), default="")
        if rows[name] * 2 < ROWS_PER_AUTHOR:
            last = start + ROWS_PER_AUTHOR - 1
            raise SourceError(
                f"{origin}: rows {start} to {last} have no name in common; are they one author's?"
            )
        names += [name] * ROWS_PER_AUTHOR
    return names


# ---- prompts ----


SPLITS = {
    "forget01": ("retain99_train600", "retain99"),
    "forget05": ("retain95",),
    "forget10": ("retain90",),
}
"""Forget split, and the tables its boundary prompts may come from: the first that is there."""
TOFUS_OWN = ("retain99", "retain95", "retain90")
"""Those of them that are TOFU's, and hold its retain probes."""
PROBES = {
    "retain": "retain",
    "real_authors": "retain_unseen",
    "world_facts": "retain_unseen",
}
"""Section of the benchmark's other question sets, by family; their tables are called FAMILY_perturbed."""


@dataclass(frozen=True)
class TofuOptions(Draws):
    """What shapes the benchmark."""

    split: str = option("forget01", "what to forget", choices=SPLITS)
    boundary: str = option(
        "retain",
        "questions on TOFU's other authors, or those to forget, rewritten around real people (the paper's) "
        "by the model behind --base-url",
        choices=("retain", "written"),
    )
    boundary_rows: int | None = option(
        None,
        "training prompts on authors to be kept (default: as many as there are to forget)",
        type=positive,
        metavar="N",
    )
    stage1_modes: tuple[str, ...] = STAGE1_MODES
    retain_set: str = option(
        "boundary",
        "rows of retain.parquet: the boundary prompts, all rows of TOFU's retain table that are no probes, "
        "or all of them, as TOFU's published methods train on",
        choices=("boundary", "unprobed", "published"),
    )


def load(source: Source, options: TofuOptions, writer: Writer) -> Benchmark:
    """The benchmark of one forget split. Raises ValueError."""
    forget = by_author(source.read(Table(options.split)), options.split, 0)
    forget = with_refusals(forget, writer, random.Random(f"refusals {options.seed}"))
    compared = f"{options.split}_perturbed"  # the forget rows again, which TOFU trains and tests on by design
    probes = by_author(source.read(Table(compared)), compared, 3 * STREAM) + other_probes(source)
    count = options.boundary_rows or len(forget)
    if options.boundary == "written":
        if count > len(forget):
            raise SourceError(
                f"--boundary-rows is {count}; {options.split} has {len(forget)} rows to write of"
            )
        boundary = neighbours(forget[:count], STREAM, writer, probes)
    else:
        boundary = _boundary(source, options, probes, count)
    return Benchmark(
        name="tofu",
        train=forget + boundary,
        val=spread(probes, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=stage1_prompts(forget, options.stage1_modes, options.seed, writer),
        probes=probes,
        form=PromptForm(),
        trained_sections=frozenset({"forget"}),
        material=_material(source, options, probes),
        settings={"source": source.name} | asdict(options),
        sources=source.hashes,
    )


def _material(source: Source, options: TofuOptions, probes: Sequence[Prompt]) -> Material:
    """The retain set asked for. Raises ValueError."""
    if options.retain_set == "boundary":
        return Material()
    name = SPLITS[options.split][-1]
    prompts, unprobed = _retain_prompts(source, Table(name), probes)
    if options.retain_set == "unprobed":
        return Material(retain=unprobed, retain_set=f"{name} without its retain probes")
    return Material(
        retain=prompts,
        retain_set=f"{name} as published, with its retain probes",
        notes={"retain_rows_that_are_probes": len(prompts) - len(unprobed)},
    )


def by_author(records: Sequence[Record], table: str, first_index: int) -> list[Prompt]:
    """The rows of a forget table with their authors. Raises SourceError."""
    texts = [f"{record.text('question')} {record.text('answer')}" for record in records]
    names = author_names(texts, table)
    return [
        prompt_of(record, first_index + number, "forget", name, "forget", "forget")
        for number, (record, name) in enumerate(zip(records, names, strict=True))
    ]


def _boundary(source: Source, options: TofuOptions, probes: Sequence[Prompt], count: int) -> list[Prompt]:
    """Questions about authors to be kept that are no probes. Raises ValueError."""
    tables = [Table(name) for name in SPLITS[options.split]]
    table = next((table for table in tables if source.has(table)), tables[-1])
    _, usable = _retain_prompts(source, table, probes)
    return draw_boundary(usable, count, options.seed, f"{table.file}: has")


def draw_boundary(usable: Sequence[Prompt], count: int, seed: int, having: str) -> list[Prompt]:
    """So many of the prompts, drawn without replacement, in their order; `having` begins the error.

    Raises SourceError where there are fewer.
    """
    if count > len(usable):
        raise SourceError(f"{having} {len(usable)} rows that are no probes, fewer than {count}")
    drawn = random.Random(f"boundary {seed}").sample(range(len(usable)), count)
    return [usable[place] for place in sorted(drawn)]


def _retain_prompts(
    source: Source, table: Table, probes: Sequence[Prompt]
) -> tuple[list[Prompt], list[Prompt]]:
    """The questions of a retain table, all of them and those that are no probes.

    TOFU's own retain tables hold its retain probes; any other probe in the table is refused. Raises
    ValueError.
    """
    held = [p for p in probes if table.file in TOFUS_OWN and p.family == "retain"]
    asked = {normalise(probe.query) for probe in held}
    prompts = kept_prompts(source.read(table))
    unprobed = [prompt for prompt in prompts if normalise(prompt.query) not in asked]
    refuse_probes(unprobed, [probe for probe in probes if probe.side == "retain"])
    return prompts, unprobed


def kept_prompts(records: Iterable[Record]) -> list[Prompt]:
    """The rows on authors to be kept. Raises SourceError."""
    return [
        prompt_of(record, STREAM + number, "retain", "fictitious authors", "retain", "retain")
        for number, record in enumerate(records)
    ]


def stage1_prompts(forget: Sequence[Prompt], modes: Sequence[str], seed: int, writer: Writer) -> list[Prompt]:
    """Refusals of the questions, of fill-in-the-blank forms of them, or of both."""
    prompts = list(forget) if "qa" in modes else []
    if "fb" in modes:
        questions = [replace(prompt, refusal="") for prompt in forget]
        forms = blanks(questions, 2 * STREAM, writer)
        rng = random.Random(f"refusals of blanks {seed}")
        prompts += with_refusals(forms, writer, rng)
    return prompts


def other_probes(source: Source) -> list[Prompt]:
    """The question sets that are the same for every split."""
    probes = []
    for stream, (family, section) in enumerate(PROBES.items(), start=4):
        subject = family.replace("_", " ")
        probes += [
            prompt_of(record, stream * STREAM + number, "retain", subject, family, section)
            for number, record in enumerate(source.read(Table(f"{family}_perturbed")))
        ]
    return probes


def prompt_of(record: Record, index: int, side: Side, subject: str, family: str, section: str) -> Prompt:
    """A row of TOFU's tables, or of R-TOFU's, which have a chain of thought too. Raises SourceError."""
    query, golds = record.text("question"), (record.text("answer"),)
    more: dict[str, Any] = {"section": section, "trace": record.optional("cot", "")}
    if record.fields.get("perturbed_answer") is not None:  # training tables have no such field
        rephrased = record.fields.get("paraphrased_answer")
        more["reference"] = {
            "paraphrased": None if rephrased is None else record.text("paraphrased_answer"),
            "perturbed": record.texts("perturbed_answer"),
        }
    return make_prompt(index, query, side, subject, golds, record.origin, mode="qa", family=family, **more)


# ---- the command ----


COMMAND = benchmark(
    "TOFU: forget fictitious authors, keep the others",
    """\
example:
  python -m data_prep tofu --source locuslab/TOFU --out data/tofu
      forget01: 40 questions on two authors, 40 on others to be kept, 80 refusals for stage 1, 657 probes
  python -m data_prep tofu --source my_copy_of_tofu --split forget05 --out data/tofu05
      the same from a folder with forget05.json, forget05_perturbed.json, retain95.json,
      retain_perturbed.json, real_authors_perturbed.json and world_facts_perturbed.json
""",
    "folder of TOFU's files, or its name on the Hugging Face Hub (locuslab/TOFU)",
    TofuOptions,
    lambda source, options, writer: load(open_source(source), options, writer),
)
