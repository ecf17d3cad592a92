"""MUSE: make a base model forget books or news articles (muse-bench/MUSE-Books and MUSE-News)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from data_prep.options import Command, Draws, benchmark, option
from data_prep.prompts import STREAM, Benchmark, Material, Prompt, PromptForm, Side, make_prompt, spread
from data_prep.sources import Source, Table, open_source, read_texts, sha256_of_file
from data_prep.writers import Writer, correct_name, misspelt_name, neighbours, with_refusals

# ---- few-shot examples before questions ----


NEUTRAL = (
    ("Which planet is closest to the sun?", "Mercury"),
    ("How many sides does a hexagon have?", "Six"),
    ("What is the chemical symbol for gold?", "Au"),
    ("In which country is the city of Lisbon?", "Portugal"),
    ("What do bees collect from flowers?", "Nectar"),
    ("Which ocean lies between Africa and Australia?", "The Indian Ocean"),
    ("What is frozen water called?", "Ice"),
    ("How many minutes are there in two hours?", "120"),
    ("Which instrument has black and white keys?", "The piano"),
    ("What is the tallest land animal?", "The giraffe"),
)
"""Ours: nothing in them is about a corpus of MUSE or about any neighbour."""

TEMPLATE = "Question: {query}\nAnswer: "


def prefix(pairs: Iterable[tuple[str, str]]) -> str:
    """Questions with their answers, as MUSE puts them before a question."""
    return "".join(f"{TEMPLATE.replace('{query}', question)}{answer}\n\n" for question, answer in pairs)


def prefix_of(source: Source, name: str) -> str:
    """The prefix of one of MUSE's example tables, such as forget_qa_icl. Raises SourceError."""
    records = source.read(Table(f"knowmem/{name}", "knowmem", name))
    return prefix((record.text("question"), record.text("answer")) for record in records)


# ---- prompts for a base model ----


FORGET_QA = tuple(Table(n, n, "train") for n in ("forget_train_qa", "forget_train_qa400"))
COMPLETION_WORDS = 50
VERBMEM = Table("verbmem/forget", "verbmem", "forget")
CORPUS = {"forget": Table("raw/forget", "raw", "forget"), "retain": Table("raw/retain1", "raw", "retain1")}
"""MUSE's texts to forget, and those that its methods with a retain term keep: {text}."""
BOUNDARY_QA = tuple(Table(n, n, "train") for n in ("boundary_neighbor_qa", "boundary_neighbor_qa_sample300"))
_ASKED: tuple[tuple[Side, str], ...] = (("forget", "qa"), ("retain", "qa"))


@dataclass(frozen=True)
class MuseOptions(Draws):
    """What shapes the benchmark."""

    examples: str = option(
        "neutral",
        "few-shot examples before training questions: general knowledge, none, or RULE's, MUSE's examples of "
        "the question's side, which tell the model what to do",
        choices=("neutral", "none", "label_dependent"),
    )
    refusals: str | None = option(
        None,
        "stage-1 refusals, a JSON array or a line each; its misspelt names corrected (default: ours)",
        metavar="FILE",
    )
    passages: str | None = option(
        None,
        "passages of the corpus, a JSON array or a line each: their beginnings are refused too, and "
        "questions on them are written where the source has none",
        metavar="FILE",
    )
    retain_passages: str | None = option(
        None, "other passages, whose beginnings are to be continued", metavar="FILE"
    )


def load(source: Source, name: str, options: MuseOptions, writer: Writer) -> Benchmark:
    """The benchmark of one of MUSE's corpora, a name of TARGETS. Raises ValueError."""
    target = TARGETS[name]

    def prompt(
        index: int, side: Side, mode: str, query: str, gold: str, origin: str, family: str = ""
    ) -> Prompt:
        subject = target if side == "forget" else "neighbour"
        return make_prompt(index, query, side, subject, (gold,), origin, mode=mode, family=family)

    def questions(table: Table, first_index: int, side: Side, family: str) -> list[Prompt]:
        asked = [
            (r.text("question", "prompt"), r.text("answer", "gold"), r.origin) for r in source.read(table)
        ]
        return [prompt(first_index + n, side, "qa", *one, family) for n, one in enumerate(asked)]

    def completions(passages: Sequence[str], first_index: int, side: Side) -> list[Prompt]:
        """The first COMPLETION_WORDS words of a passage and as many after them; a shorter one in halves."""
        made = []
        for number, passage in enumerate(passages):
            words = passage.split()[: 2 * COMPLETION_WORDS]
            if len(words) > 1:
                begun, rest = words[: len(words) // 2], words[len(words) // 2 :]
                half = (" ".join(begun), " ".join(rest), f"{side} passage {number + 1}")
                made.append(prompt(first_index + number, side, "completion", *half))
        return made

    # Probes: two sets of questions, and VerbMem's passages with how they go on. White space is kept there:
    # without it the tokens would not be those that MUSE's own evaluation sends.
    probes = questions(Table("knowmem/forget_qa", "knowmem", "forget_qa"), 2 * STREAM, "forget", "knowmem")
    probes += questions(Table("knowmem/retain_qa", "knowmem", "retain_qa"), 3 * STREAM, "retain", "knowmem")
    for number, record in enumerate(source.read(VERBMEM) if source.has(VERBMEM) else []):
        passage = (record.verbatim("prompt"), record.verbatim("gt"), record.origin)
        probes.append(prompt(4 * STREAM + number, "forget", "completion", *passage, "verbmem"))

    # Questions on the corpus, of the source or written after passages, and completions of the passages.
    passages = read_texts(Path(options.passages)) if options.passages else []
    if passages and not any(map(source.has, FORGET_QA)):
        answered = enumerate(writer.questions(passages), start=1)
        pairs = [(pair, f"passage {number}") for number, own in answered for pair in own or ()]
        forget = [prompt(n, "forget", "qa", *pair, origin) for n, (pair, origin) in enumerate(pairs)]
    else:
        forget = questions(_first_there(source, FORGET_QA), 0, "forget", "question")
    forget += completions(passages, 10 * STREAM, "forget")
    rng, corrected = random.Random(f"refusals {options.seed}"), 0
    if options.refusals is None:
        forget = with_refusals(forget, writer, rng)
    else:
        texts = read_texts(Path(options.refusals))
        corrected = sum(misspelt_name(text, target) is not None for text in texts)
        texts = [correct_name(text, target) for text in texts]
        forget = [replace(one, refusal=rng.choice(texts)) for one in forget]

    # Neighbours' questions, of the source or written, and completions of passages that are to be kept.
    if any(map(source.has, BOUNDARY_QA)):
        retain = questions(_first_there(source, BOUNDARY_QA), STREAM, "retain", "question")
    else:
        retain = neighbours([one for one in forget if one.mode == "qa"], STREAM, writer, probes)
    kept = read_texts(Path(options.retain_passages)) if options.retain_passages else []
    retain += completions(kept, 11 * STREAM, "retain")

    official = options.examples == "label_dependent"
    neutral = prefix(NEUTRAL) if options.examples == "neutral" else ""
    prefixes = _official_prefixes(source) if official else dict.fromkeys(_ASKED, neutral)
    form = PromptForm(True, {"qa": TEMPLATE, "completion": "Completion: {query}\nAnswer: "}, prefixes)
    given = {name: getattr(options, name) for name in ("refusals", "passages", "retain_passages")}
    files = {name: Path(path) for name, path in given.items() if path is not None}
    texts_of = {
        side: [record.text("text") for record in source.read(table)] if source.has(table) else []
        for side, table in CORPUS.items()
    }
    return Benchmark(
        name=name,
        train=forget + retain,
        val=spread(probes, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=forget,
        probes=probes,
        form=form,
        # A passage is a probe as it stands; only in training does a word go before it.
        probe_form=PromptForm(True, {"qa": TEMPLATE}, _official_prefixes(source)),
        material=Material(forget_texts=texts_of["forget"], retain_texts=texts_of["retain"]),
        settings={"source": source.name}
        | asdict(options)
        | {name: path.name for name, path in files.items()},
        sources=source.hashes | {f"--{name}": sha256_of_file(path) for name, path in files.items()},
        notes={"refusals_with_the_name_corrected": corrected},
    )


def _official_prefixes(source: Source) -> dict[tuple[Side, str], str]:
    """What MUSE's own evaluation puts before its two question sets."""
    return {asked: prefix_of(source, f"{asked[0]}_qa_icl") for asked in _ASKED}


def _first_there(source: Source, tables: Sequence[Table]) -> Table:
    return next((table for table in tables if source.has(table)), tables[0])


# ---- the commands ----


TARGETS = {"muse_books": "Harry Potter", "muse_news": "this news story"}
"""Corpus, by the `data_source` of its rows, and what is to be forgotten, as refusals name it: the keyword.

News articles have no name in common: there a refusal says what a question is about.
"""
_EXAMPLE = """\
example:
  python -m data_prep {command} --source data/muse_raw --out data/{name}
      from knowmem/{{forget_qa,forget_qa_icl,retain_qa,retain_qa_icl}}.json (MUSE's), forget_train_qa.json
      (question, answer) and boundary_neighbor_qa.json (prompt, gold): prompts for a base model, sent raw
  python -m data_prep {command} --source data/muse_raw --examples label_dependent --out data/{name}_rule
      with RULE's few-shot examples, which differ by side
  python -m data_prep {command} --source muse-bench/{hub} --passages passages.json --base-url URL \\
      --model NAME --out data/{name}
      the probes from the Hub; an endpoint writes the training questions after passages
"""


def _command(name: str, hub: str, what: str) -> Command:
    return benchmark(
        f"{hub}: make a base model forget {what}",
        _EXAMPLE.format(command=name.replace("_", "-"), name=name, hub=hub),
        "folder of MUSE's files and of training questions, or a name on the Hub",
        MuseOptions,
        lambda source, options, writer: load(open_source(source), name, options, writer),
    )


BOOKS_COMMAND = _command("muse_books", "MUSE-Books", "a series of books")
NEWS_COMMAND = _command("muse_news", "MUSE-News", "news articles")
