"""MUSE: make a base model forget books or news articles (muse-bench/MUSE-Books and MUSE-News)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from data_prep.contract import MODES, normalise
from data_prep.options import Draws, benchmark, option
from data_prep.prompts import (
    STREAM,
    Benchmark,
    Material,
    Prompt,
    PromptForm,
    Side,
    is_rule_row,
    make_prompt,
    rule_solution,
    spread,
)
from data_prep.sources import (
    FolderSource,
    Record,
    Source,
    SourceError,
    Table,
    open_source,
    read_texts,
    sha256_of_file,
)
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


TRAINING = Table("rl_rejection_with_neighbor", "rl_rejection_with_neighbor", "train")
"""RULE's file of stage 2: questions and passages of the corpus, and neighbours of them."""
VALIDATION = Table("rl_rejection_eval_target", "rl_rejection_eval_target", "train")
"""RULE's file of validation: KnowMem's questions."""
STAGE1_FILES = ("reject_target_0.5", "reject_with_neighbor_target", "reject_target")
"""RULE's files of stage 1. Its script trains on the first, whose 1,662 rows are 208 steps an epoch."""
COMPLETION_WORDS = 50
VERBMEM = Table("verbmem/forget", "verbmem", "forget")
CORPUS = {"forget": Table("raw/forget", "raw", "forget"), "retain": Table("raw/retain1", "raw", "retain1")}
"""MUSE's texts to forget, and those that its methods with a retain term keep: {text}."""
_PASSAGES = 10 * STREAM
"""The first index of the passages that `--passages` gives."""
_ASKED: tuple[tuple[Side, str], ...] = (("forget", "qa"), ("retain", "qa"))


@dataclass(frozen=True)
class Corpus:
    """One of MUSE's corpora.

    name: `data_source` of its rows is rerule/<name>.
    subject: what is to be forgotten, as refusals name it; the keyword of the rows to forget.
    folder: its files in RULE's folder `data`.
    """

    name: str
    subject: str
    folder: str


@dataclass(frozen=True)
class MuseOptions(Draws):
    """What shapes the benchmark."""

    examples: str = option(
        "neutral",
        "few-shot examples before training questions: general knowledge, none, or RULE's, MUSE's examples of "
        "the question's side, which tell the model what to do",
        choices=("neutral", "none", "label_dependent"),
    )
    stage1_file: str | None = option(
        None,
        "RULE's file of stage 1; reject_target has all passages of the corpus (default: the first that the "
        "source has, in this order)",
        choices=STAGE1_FILES,
    )
    refusals: str | None = option(
        None,
        "refusals, a JSON array or a line each; its misspelt names corrected (default: those of RULE's file "
        "of stage 1, corrected too, or ours)",
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


def load(source: Source, corpus: Corpus, options: MuseOptions, writer: Writer) -> Benchmark:
    """The benchmark. Raises ValueError."""
    stage1_table = _stage1_table(source, options)
    _check_files(source, corpus, options, stage1_table)

    def prompt(
        index: int, side: Side, mode: str, query: str, gold: str, origin: str, family: str = ""
    ) -> Prompt:
        subject = corpus.subject if side == "forget" else "neighbour"
        return make_prompt(index, query, side, subject, (gold,), origin, mode=mode, family=family)

    def questions(table: Table, first_index: int, side: Side, family: str) -> list[Prompt]:
        asked = [(r.text("question"), r.text("answer"), r.origin) for r in source.read(table)]
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

    # RULE's rows, or questions on the corpus that are written after passages; completions of the passages.
    passages = read_texts(Path(options.passages)) if options.passages else []
    forget: list[Prompt] = []
    retain: list[Prompt] = []
    unanswered = 0
    if source.has(TRAINING):
        for record in source.read(TRAINING):
            row_side, text, mode, query = _rule_row(record)
            made = forget if row_side == "forget" else retain
            if text or row_side == "forget":
                index = len(made) + (0 if row_side == "forget" else STREAM)
                family = "question" if mode == "qa" else mode
                made.append(prompt(index, row_side, mode, query, text, record.origin, family))
            else:
                unanswered += 1
    else:
        answered = enumerate(writer.questions(passages), start=1)
        pairs = [(pair, f"passage {number}") for number, own in answered for pair in own or ()]
        forget = [prompt(n, "forget", "qa", *pair, origin) for n, (pair, origin) in enumerate(pairs)]
    forget += completions(passages, _PASSAGES, "forget")

    # Refusals: RULE's, whose file of stage 1 has rows of its own, or those given, or ours.
    stage1: list[Prompt] = []
    answers: dict[str, str] = {}
    corrected = 0
    for number, record in enumerate(source.read(stage1_table) if stage1_table else []):
        query, refusal = record.text("instruction"), record.text("output")
        if answer := record.optional("org_answer", ""):
            answers[normalise(query)] = answer
        corrected += misspelt_name(refusal, corpus.subject) is not None
        mode, refusal = record.one_of("mode", MODES, "qa"), correct_name(refusal, corpus.subject)
        one = prompt(5 * STREAM + number, "forget", mode, query, answer or refusal, record.origin)
        stage1.append(replace(one, refusal=refusal))
    rng = random.Random(f"refusals {options.seed}")
    if options.refusals is None:
        taught = {normalise(one.query): one.refusal for one in stage1}
        forget = [replace(one, refusal=taught.get(normalise(one.query), "")) for one in forget]
        forget = with_refusals(forget, writer, rng)
    else:
        texts = read_texts(Path(options.refusals))
        corrected = sum(misspelt_name(text, corpus.subject) is not None for text in texts)
        texts = [correct_name(text, corpus.subject) for text in texts]
        forget, stage1 = (
            [replace(one, refusal=rng.choice(texts)) for one in prompts] for prompts in (forget, stage1)
        )
    # A forget row of RULE may have no right answer; it has the refusal for gold then.
    forget = [replace(one, golds=tuple(gold or one.refusal for gold in one.golds)) for one in forget]

    # Neighbours' questions where the source has none, and completions of passages that are to be kept.
    if not source.has(TRAINING):
        retain = neighbours([one for one in forget if one.mode == "qa"], STREAM, writer, probes)
    kept = read_texts(Path(options.retain_passages)) if options.retain_passages else []
    retain += completions(kept, 11 * STREAM, "retain")

    validated = probes
    if source.has(VALIDATION):
        validated = []
        for number, record in enumerate(source.read(VALIDATION)):
            row_side, text, mode, query = _rule_row(record)
            gold = record.filled("solution[1]", text)
            validated.append(prompt(6 * STREAM + number, row_side, mode, query, gold, record.origin))

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
        name=corpus.name,
        train=forget + retain,
        val=spread(validated, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=stage1 + [one for one in forget if one.index >= _PASSAGES] if stage1 else forget,
        probes=probes,
        form=form,
        # A passage is a probe as it stands; only in training does a word go before it.
        probe_form=PromptForm(True, {"qa": TEMPLATE}, _official_prefixes(source)),
        material=Material(golds=answers, forget_texts=texts_of["forget"], retain_texts=texts_of["retain"]),
        settings={"source": source.name}
        | asdict(options)
        | {name: path.name for name, path in files.items()},
        sources=source.hashes | {f"--{name}": sha256_of_file(path) for name, path in files.items()},
        notes={
            "refusals_with_the_name_corrected": corrected,
            "retain_rows_without_an_answer_left_out": unanswered,
        },
    )


def _official_prefixes(source: Source) -> dict[tuple[Side, str], str]:
    """What MUSE's own evaluation puts before its two question sets."""
    return {asked: prefix_of(source, f"{asked[0]}_qa_icl") for asked in _ASKED}


def open_corpus(name: str, corpus: Corpus) -> Source:
    """The corpus' files: in RULE's folder `data`, in a folder of them, or on the Hub. Raises SourceError."""
    inside = Path(name, "MUSE", corpus.folder)
    return open_source(str(inside) if name and inside.is_dir() else name)


def _rule_row(record: Record) -> tuple[Side, str, str, str]:
    """Side, text ("" where the row has none), mode and query of one of RULE's rows. Raises SourceError."""
    if not is_rule_row(record):
        raise SourceError(f"{record.origin}: has no prompt and solution")
    side, (text, *_) = rule_solution(record)
    empty = text is None or (isinstance(text, str) and not text.strip())
    filled = "" if empty else record.filled("solution[1]", text)
    return side, filled, record.one_of("mode", MODES, "qa"), record.text("prompt")


def _stage1_table(source: Source, options: MuseOptions) -> Table | None:
    names = [options.stage1_file] if options.stage1_file else STAGE1_FILES
    tables = [Table(name, name, "train") for name in names]
    return next((table for table in tables if source.has(table)), None)


def _check_files(source: Source, corpus: Corpus, options: MuseOptions, stage1: Table | None) -> None:
    """Refuse a source without the files that are needed, all named in one line; say which others it lacks.

    Of MUSE-Books all of RULE's files are needed, unless `--passages` stand for its training rows.
    """
    rules = corpus is BOOKS and not options.passages
    needed = [
        (Table(f"knowmem/{name}", "knowmem", name), "evaluation")
        for name in ("forget_qa", "forget_qa_icl", "retain_qa", "retain_qa_icl")
    ]
    needed += [] if options.passages else [(TRAINING, "stage 2")]
    needed += [(VALIDATION, "validation")] if rules else []
    where = source.folder if isinstance(source, FolderSource) else source.name
    lacking = [(table.file, use) for table, use in needed if not source.has(table)]
    if stage1 is None and (rules or options.stage1_file):
        lacking.append((options.stage1_file or STAGE1_FILES[0], "stage 1"))
    if lacking:
        said = ", ".join(f"{file}.json, which {use} needs" for file, use in lacking)
        raise SourceError(f"{where}: not there: {said}")
    for table, use in (
        (VERBMEM, "the probes of VerbMem"),
        (CORPUS["forget"], "forget_text.parquet"),
        (CORPUS["retain"], "retain_text.parquet"),
    ):
        if rules and not source.has(table):
            print(f"{where}: {table.file}.json is not there, so {use} will be missing")


# ---- the commands ----


_SOURCE = "RULE's folder data, a folder of MUSE's and RULE's files, or a name on the Hub"
BOOKS = Corpus("muse_books", "Harry Potter", "books")
NEWS = Corpus("muse_news", "this news story", "news")
"""The articles have no name in common: a refusal says what a question is about."""
BOOKS_COMMAND = benchmark(
    "MUSE-Books: make a base model forget a series of books",
    """\
example:
  python -m data_prep muse-books --source RULE/data --out data/muse_books
      from RULE's files in MUSE/books: rl_rejection_with_neighbor.json (stage 2), reject_target_0.5.json
      (stage 1), rl_rejection_eval_target.json (validation), knowmem/, verbmem/ and raw/; prompts for a base
      model, sent raw
  python -m data_prep muse-books --source RULE/data --examples label_dependent --out data/muse_rule
      with RULE's few-shot examples, which differ by side
""",
    _SOURCE,
    MuseOptions,
    lambda source, options, writer: load(open_corpus(source, BOOKS), BOOKS, options, writer),
)
NEWS_COMMAND = benchmark(
    "MUSE-News: make a base model forget news articles",
    """\
example:
  python -m data_prep muse-news --source data/muse_news_raw --out data/muse_news
      from knowmem/{forget_qa,forget_qa_icl,retain_qa,retain_qa_icl}.json (MUSE's) and your own
      rl_rejection_with_neighbor.json, rows {prompt, solution} as RULE's of MUSE-Books: ["<reject>", answer]
      or ["<normal>", answer]; prompts for a base model, sent raw
  python -m data_prep muse-news --source muse-bench/MUSE-News --passages articles.json --base-url URL \\
      --model NAME --out data/muse_news
      the probes from the Hub; an endpoint writes the training questions after articles
""",
    _SOURCE,
    MuseOptions,
    lambda source, options, writer: load(open_corpus(source, NEWS), NEWS, options, writer),
)
