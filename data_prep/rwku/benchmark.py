"""One RWKU target as prompts: RULE's training rows, or generated ones, and the benchmark's own probes."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from data_prep import written
from data_prep.classical import check_golds, read_golds
from data_prep.draws import spread
from data_prep.prompts import STREAM, Benchmark, Material, Prompt, PromptForm, Side
from data_prep.rule_rows import is_rule_row, rule_prompt
from data_prep.sources import FolderSource, Record, SourceError, Table
from data_prep.sources.tables import SUFFIXES, sha256_of_file
from data_prep.writers import Writer

TRAINING = Table("rl_rejection_with_fb_neighbor_target", "", "")
"""RULE's file of stage 2: questions and blanks on the target, and on people in its place."""
QUESTIONS = Table("reject", "", "")
"""RWKU's own file of questions on the target, with refusals."""
FORGET_TEXTS = (Table("train_positive_llama3", "", ""), Table("positive", "", ""))
"""Biographies of the target that Llama-3 wrote, by their names on the Hub and in RWKU's folders: {text}."""
PAIRED_TEXTS = Table("positive_with_retain", "", "")
"""RULE's file of such biographies, each with one of somebody else: {prompts: [target's, the other's]}."""
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
    gold: file of right answers to the questions to forget, or a folder with such a file a target.
    seed: of all draws.
    """

    stage1_modes: tuple[str, ...] = ("qa", "fb")
    val_rows: int = 64
    gold: str | None = None
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
        material=_material(source, options, train),
        settings={"source": source.name}
        | asdict(options)
        | {"gold": options.gold and Path(options.gold).name},
        sources=source.hashes | _gold_hash(source, options),
    )


def _material(source: FolderSource, options: RwkuOptions, train: list[Prompt]) -> Material:
    """Right answers, where they are given, and texts, where the folder has them. Raises SourceError."""
    file = _gold_file(source, options)
    golds = {} if file is None else read_golds(file)
    if file is not None:
        check_golds(golds, train, file)
    forget, retain = _texts(source)
    return Material(golds=golds, forget_texts=forget, retain_texts=retain)


def _texts(source: FolderSource) -> tuple[list[str], list[str]]:
    """Texts on the target and on others. Raises SourceError."""
    pairs = [_pair(record) for record in source.read(PAIRED_TEXTS)] if source.has(PAIRED_TEXTS) else []
    table = next((table for table in FORGET_TEXTS if source.has(table)), None)
    own = [record.text("text") for record in source.read(table)] if table else [pair[0] for pair in pairs]
    return own, [pair[1] for pair in pairs]


def _pair(record: Record) -> tuple[str, ...]:
    texts = record.texts("prompts")
    if len(texts) != 2:
        raise SourceError(
            f"{record.origin}: prompts holds {len(texts)} texts, expected the target's and another's"
        )
    return texts


def _gold_file(source: FolderSource, options: RwkuOptions) -> Path | None:
    """The file of right answers of one target. Raises SourceError where a folder has none for it."""
    if options.gold is None:
        return None
    given = Path(options.gold)
    if not given.is_dir():
        return given
    files = [given / f"{source.name}{suffix}" for suffix in SUFFIXES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise SourceError(f"{given}: --gold has none of {', '.join(file.name for file in files)}")
    return file


def _gold_hash(source: FolderSource, options: RwkuOptions) -> dict[str, str]:
    file = _gold_file(source, options)
    return {} if file is None else {"--gold": sha256_of_file(file)}


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
