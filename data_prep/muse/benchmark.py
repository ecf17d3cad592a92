"""A corpus of MUSE as prompts for a base model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from data_prep.draws import spread
from data_prep.muse.examples import NEUTRAL, TEMPLATE, prefix, prefix_of
from data_prep.prompts import STREAM, Benchmark, Material, Prompt, PromptForm, Side
from data_prep.refusals import correct_name, misspelt_name
from data_prep.sources import Record, Source, Table, read_texts
from data_prep.sources.tables import sha256_of_file
from data_prep.writers import Writer
from data_prep.written import neighbours, with_refusals

EXAMPLES = ("neutral", "none", "label_dependent")
FORGET_QA = ("forget_train_qa", "forget_train_qa400")
COMPLETION_WORDS = 50
VERBMEM = Table("verbmem/forget", "verbmem", "forget")
CORPUS = {"forget": Table("raw/forget", "raw", "forget"), "retain": Table("raw/retain1", "raw", "retain1")}
"""MUSE's texts to forget, and those that its methods with a retain term keep: {text}."""
BOUNDARY_QA = ("boundary_neighbor_qa", "boundary_neighbor_qa_sample300")


@dataclass(frozen=True)
class Corpus:
    """One of MUSE's corpora.

    name: `data_source` of its rows is rerule/<name>.
    subject: what is to be forgotten, as refusals name it; the keyword of the rows to forget.
    """

    name: str
    subject: str


@dataclass(frozen=True)
class MuseOptions:
    """What shapes the benchmark.

    examples: few-shot examples before training questions: "neutral" (ours, on both sides), "none", or
        "label_dependent" (RULE's: MUSE's forget examples before questions to forget, its retain examples
        before the others; the prefix then tells the model what to do).
    refusals: file of refusals for stage 1 (a JSON array, or a line each); None for the writer's.
    passages: file of passages of the corpus: questions are written after them where the source has none, and
        their beginnings are prompts to refuse.
    retain_passages: file of other passages, whose beginnings are to be continued.
    val_rows: validation prompts, drawn from the probes.
    seed: of all draws.
    """

    examples: str = "neutral"
    refusals: str | None = None
    passages: str | None = None
    retain_passages: str | None = None
    val_rows: int = 64
    seed: int = 42


def load(source: Source, corpus: Corpus, options: MuseOptions, writer: Writer) -> Benchmark:
    """The benchmark. Raises ValueError."""
    probes = _about(corpus.subject, _probes(source))
    asked = _about(corpus.subject, _forget_prompts(source, options, writer))
    forget, corrected = _refused(asked, corpus.subject, options, writer)
    given = {name: getattr(options, name) for name in ("refusals", "passages", "retain_passages")}
    files = {name: Path(path) for name, path in given.items() if path is not None}
    return Benchmark(
        name=corpus.name,
        train=forget + _boundary(source, options, writer, forget, probes),
        val=spread(probes, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=forget,
        probes=probes,
        form=_form(_prefixes(source, options.examples)),
        # A passage is a probe as it stands; only in training does a word go before it.
        probe_form=replace(_form(_official_prefixes(source)), templates={"qa": TEMPLATE}),
        material=Material(forget_texts=_corpus(source, "forget"), retain_texts=_corpus(source, "retain")),
        settings={"source": source.name}
        | asdict(options)
        | {name: path.name for name, path in files.items()},
        sources=source.hashes | {f"--{name}": sha256_of_file(path) for name, path in files.items()},
        notes={"refusals_with_the_name_corrected": corrected},
    )


def _about(subject: str, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts, those to forget with the name of what is to be forgotten."""
    return [
        replace(prompt, subject=subject, keyword=subject) if prompt.side == "forget" else prompt
        for prompt in prompts
    ]


def _forget_prompts(source: Source, options: MuseOptions, writer: Writer) -> list[Prompt]:
    """Questions on the corpus, of the source or written after passages, and completions of the passages."""
    passages = read_texts(Path(options.passages)) if options.passages else []
    if passages and not _has(source, FORGET_QA):
        questions = _questions_on(passages, writer)
    else:
        questions = [
            _prompt(record, number, "forget", "question")
            for number, record in enumerate(_first_of(source, FORGET_QA))
        ]
    return questions + _completions(passages, "forget", 10 * STREAM)


def _boundary(
    source: Source, options: MuseOptions, writer: Writer, forget: list[Prompt], probes: list[Prompt]
) -> list[Prompt]:
    """Neighbours' questions, of the source or written, and completions of passages that are to be kept."""
    passages = read_texts(Path(options.retain_passages)) if options.retain_passages else []
    if _has(source, BOUNDARY_QA):
        questions = [
            _prompt(record, STREAM + number, "retain", "question")
            for number, record in enumerate(_first_of(source, BOUNDARY_QA))
        ]
    else:
        asked = [prompt for prompt in forget if prompt.mode == "qa"]
        questions = neighbours(asked, STREAM, writer, probes)
    return questions + _completions(passages, "retain", 11 * STREAM)


def _questions_on(passages: Sequence[str], writer: Writer) -> list[Prompt]:
    answered = enumerate(writer.questions(passages), start=1)
    pairs = [(number, pair) for number, own in answered for pair in own or ()]
    return [
        _own_prompt(index, "forget", "qa", *pair, origin=f"passage {number}")
        for index, (number, pair) in enumerate(pairs)
    ]


def _completions(passages: Sequence[str], side: Side, first_index: int) -> list[Prompt]:
    """Beginnings of passages, to be continued; passages of less than two words have none."""
    halves = [_halves(passage) for passage in passages]
    return [
        _own_prompt(first_index + number, side, "completion", *half, origin=f"{side} passage {number + 1}")
        for number, half in enumerate(halves)
        if all(half)
    ]


def _halves(passage: str) -> tuple[str, str]:
    """The first COMPLETION_WORDS words of a passage and as many after them; the halves of a shorter one."""
    words = passage.split()[: 2 * COMPLETION_WORDS]
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def _refused(
    prompts: Sequence[Prompt], name: str, options: MuseOptions, writer: Writer
) -> tuple[list[Prompt], int]:
    """The prompts with refusals, and in how many of the given refusals `name` was corrected."""
    rng = random.Random(f"refusals {options.seed}")
    if options.refusals is None:
        return with_refusals(prompts, writer, rng), 0
    texts = read_texts(Path(options.refusals))
    corrected = [correct_name(text, name) for text in texts]
    refused = [replace(prompt, refusal=rng.choice(corrected)) for prompt in prompts]
    return refused, sum(misspelt_name(text, name) is not None for text in texts)


def _form(prefixes: Mapping[tuple[Side, str], str]) -> PromptForm:
    templates = {"qa": TEMPLATE, "completion": "Completion: {query}\nAnswer: "}
    return PromptForm(raw=True, templates=templates, prefixes=prefixes)


def _prefixes(source: Source, examples: str) -> dict[tuple[Side, str], str]:
    if examples == "label_dependent":
        return _official_prefixes(source)
    shared = prefix(NEUTRAL) if examples == "neutral" else ""
    return {("forget", "qa"): shared, ("retain", "qa"): shared}


def _official_prefixes(source: Source) -> dict[tuple[Side, str], str]:
    """What MUSE's own evaluation puts before its two question sets."""
    return {
        ("forget", "qa"): prefix_of(source, "forget_qa_icl"),
        ("retain", "qa"): prefix_of(source, "retain_qa_icl"),
    }


def _has(source: Source, files: Sequence[str]) -> bool:
    return any(source.has(Table(file, file, "train")) for file in files)


def _first_of(source: Source, files: Sequence[str]) -> list[Record]:
    tables = [Table(file, file, "train") for file in files]
    return source.read(next((table for table in tables if source.has(table)), tables[0]))


def _probes(source: Source) -> list[Prompt]:
    sets: tuple[tuple[str, Side], ...] = (("forget_qa", "forget"), ("retain_qa", "retain"))
    probes = []
    for stream, (name, side) in enumerate(sets, start=2):
        records = source.read(Table(f"knowmem/{name}", "knowmem", name))
        probes += [
            _prompt(record, stream * STREAM + number, side, "knowmem")
            for number, record in enumerate(records)
        ]
    return probes + _passages(source)


def _passages(source: Source) -> list[Prompt]:
    """MUSE's VerbMem: beginnings of passages that the model was trained on, and how they go on."""
    if not source.has(VERBMEM):
        return []
    return [
        replace(
            _own_prompt(
                4 * STREAM + number,
                "forget",
                "completion",
                # Taken off, white space would change the tokens that MUSE's own evaluation sends.
                record.verbatim("prompt"),
                record.verbatim("gt"),
                origin=record.origin,
            ),
            family="verbmem",
        )
        for number, record in enumerate(source.read(VERBMEM))
    ]


def _corpus(source: Source, side: str) -> list[str]:
    """The texts of one side; none where the source has no corpus."""
    table = CORPUS[side]
    return [record.text("text") for record in source.read(table)] if source.has(table) else []


def _prompt(record: Record, index: int, side: Side, family: str) -> Prompt:
    question, answer = record.text("question", "prompt"), record.text("answer", "gold")
    return replace(_own_prompt(index, side, "qa", question, answer, origin=record.origin), family=family)


def _own_prompt(index: int, side: Side, mode: str, query: str, gold: str, *, origin: str) -> Prompt:
    """A prompt as the boundary has it; `_about` names what one to forget is about."""
    return Prompt(
        index=index,
        query=query,
        side=side,
        mode=mode,
        subject="neighbour",
        family=mode,
        golds=(gold,),
        keyword="",
        section=side,
        origin=origin,
    )
