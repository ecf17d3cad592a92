"""MUSE: make a base model forget books or news articles (muse-bench/MUSE-Books and MUSE-News)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from data_prep.contract import MODES, normalise
from data_prep.options import Command, Draws, benchmark, option
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
    Source,
    SourceError,
    Table,
    open_source,
    read_texts,
)
from data_prep.writers import Writer, correct_name, misspelt_name, neighbours, with_refusals
from recipe.rerule.io import file_sha256

# ---- the files, of MUSE and of RULE ----


TRAINING = Table("rl_rejection_with_neighbor")
"""RULE's file of stage 2: questions and passages of the corpus, and neighbours of them."""
VALIDATION = Table("rl_rejection_eval_target")
"""RULE's file of validation: KnowMem's questions."""
STAGE1_FILES = ("reject_target_0.5", "reject_with_neighbor_target", "reject_target")
"""RULE's files of stage 1. Its script trains on the first, whose 1,662 rows are 208 steps an epoch."""
VERBMEM = Table("verbmem/forget", "verbmem", "forget")
CORPUS = {"forget": Table("raw/forget", "raw", "forget"), "retain": Table("raw/retain1", "raw", "retain1")}
"""MUSE's texts to forget, and those that its methods with a retain term keep: {text}."""
TEXTS = {"forget_text": (CORPUS["forget"],), "retain_text": (CORPUS["retain"],)}
"""By file of texts that is made, the tables of which one must be there."""


FOLDS = tuple(f"{kind}_{number}" for kind in ("sust", "scal") for number in (1, 2, 3, 4))
"""MUSE-News' texts of requests: sust_1 to sust_4 are made one after the other (sustainability), and scal_1 to
scal_4 are one request of growing size each (scalability)."""


def _fold(name: str) -> Table:
    kind, number = name.split("_")
    return Table(f"{kind}/forget_{number}", kind, f"forget_{number}")


def _knowmem(name: str) -> Table:
    return Table(f"knowmem/{name}", "knowmem", name)


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


def open_corpus(name: str, corpus: Corpus) -> Source:
    """The corpus' files: in RULE's folder `data`, in a folder of them, or on the Hub. Raises SourceError."""
    inside = Path(name, "MUSE", corpus.folder)
    return open_source(str(inside) if name and inside.is_dir() else name)


# ---- prompts for a base model ----


QUESTION, COMPLETION = "Question: {query}\nAnswer: ", "Completion: {query}\nAnswer: "
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
COMPLETION_WORDS = 50
_PASSAGES = 10 * STREAM
"""The first index of the passages that `--passages` gives."""
_SIDES: tuple[Side, ...] = ("forget", "retain")


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
    fold: str | None = option(
        None,
        "of MUSE-News: texts of one request of MUSE's sustainability or scalability as the texts to forget; "
        "only probes and texts are made then",
        choices=FOLDS,
    )


def load(source: Source, corpus: Corpus, options: MuseOptions, writer: Writer) -> Benchmark:
    """The benchmark. Raises ValueError."""
    given = {name: getattr(options, name) for name in ("refusals", "passages", "retain_passages")}
    files = {name: Path(path) for name, path in given.items() if path is not None}
    if options.fold is not None and files:
        unread = "--" + min(files).replace("_", "-")
        raise SourceError(
            f"{unread} is not read with --fold, which makes probes and texts alone; leave it out"
        )
    stage1_table = _checked_files(source, corpus, options)
    texts = {name: read_texts(path) for name, path in files.items()}
    passages = texts.get("passages", [])
    probes = _probes(source, corpus)
    tables = CORPUS if options.fold is None else CORPUS | {"forget": _fold(options.fold)}
    corpora = {
        side: [record.text("text") for record in source.read(table)] if source.has(table) else []
        for side, table in tables.items()
    }
    if options.fold is not None:
        return _of_fold(source, corpus, options, probes, corpora)

    # Training prompts: RULE's, or an endpoint's questions on the passages and neighbours of them.
    unanswered = 0
    if source.has(TRAINING):
        rows = _rule_prompts(source, TRAINING, corpus, "question", answered=False)
        unanswered = sum(one.side == "retain" and one.golds == ("",) for one in rows)
        kept = [one for one in rows if one.side == "retain" and one.golds != ("",)]
        retain = [replace(one, index=STREAM + number) for number, one in enumerate(kept)]
        asked = [one for one in rows if one.side == "forget"]
        forget = [replace(one, index=number) for number, one in enumerate(asked)]
    else:
        written = enumerate(writer.questions(passages), start=1)
        pairs = [(pair, f"passage {number}") for number, own in written for pair in own or ()]
        forget = [_prompt(corpus, n, "forget", "qa", *pair, origin) for n, (pair, origin) in enumerate(pairs)]
        retain = neighbours(forget, STREAM, writer, probes)
    forget += _completions(corpus, passages, _PASSAGES, "forget")
    retain += _completions(corpus, texts.get("retain_passages", []), 11 * STREAM, "retain")

    # Refusals: those given, or those of RULE's file of stage 1, or else the writer's.
    stage1 = _stage1_prompts(source, stage1_table, corpus) if stage1_table else []
    answers = {normalise(one.query): one.golds[0] for one in stage1 if one.golds[0]}
    found = texts.get("refusals") or [one.refusal for one in stage1]
    corrected = sum(misspelt_name(text, corpus.subject) is not None for text in found)
    found = [correct_name(text, corpus.subject) for text in found]
    rng = random.Random(f"refusals {options.seed}")
    if "refusals" in texts:
        forget = [replace(one, refusal=rng.choice(found)) for one in forget]
        stage1 = [replace(one, refusal=rng.choice(found)) for one in stage1]
    else:
        stage1 = [replace(one, refusal=text) for one, text in zip(stage1, found, strict=True)]
        taught = {normalise(one.query): one.refusal for one in stage1}
        forget = [replace(one, refusal=taught.get(normalise(one.query), "")) for one in forget]
        forget = with_refusals(forget, writer, rng)
    # A forget row of RULE may have no right answer; it has the refusal for gold then.
    forget = [one if one.golds[0] else replace(one, golds=(one.refusal,)) for one in forget]

    validated = probes
    if source.has(VALIDATION):
        rows = _rule_prompts(source, VALIDATION, corpus, "qa", answered=True)
        validated = [replace(one, index=6 * STREAM + one.index) for one in rows]
    official = _official(source)
    prefixes = {
        "label_dependent": official,
        "neutral": dict.fromkeys(official, _examples(NEUTRAL)),
        "none": {},
    }
    return Benchmark(
        name=corpus.name,
        train=forget + retain,
        val=spread(validated, options.val_rows, random.Random(f"val {options.seed}")),
        stage1=stage1 + [one for one in forget if one.index >= _PASSAGES] if stage1 else forget,
        probes=probes,
        form=PromptForm(True, {"qa": QUESTION, "completion": COMPLETION}, prefixes[options.examples]),
        # A passage is a probe as it stands; only in training does a word go before it.
        probe_form=PromptForm(True, {"qa": QUESTION}, official),
        material=Material(golds=answers, forget_texts=corpora["forget"], retain_texts=corpora["retain"]),
        settings={"source": source.name}
        | asdict(options)
        | {name: path.name for name, path in files.items()},
        sources=source.hashes | {f"--{name}": file_sha256(path) for name, path in files.items()},
        notes={
            "refusals_with_the_name_corrected": corrected,
            "retain_rows_without_an_answer_left_out": unanswered,
        },
    )


def _of_fold(
    source: Source,
    corpus: Corpus,
    options: MuseOptions,
    probes: list[Prompt],
    corpora: Mapping[str, list[str]],
) -> Benchmark:
    """Probes and texts alone: a request of MUSE has no training questions."""
    return Benchmark(
        name=corpus.name,
        probes=probes,
        form=PromptForm(True, {"qa": QUESTION}, _official(source)),
        trains=False,
        settings={"source": source.name} | asdict(options),
        sources=source.hashes,
        material=Material(retain_set="none", forget_texts=corpora["forget"], retain_texts=corpora["retain"]),
    )


def _official(source: Source) -> dict[tuple[Side, str], str]:
    """MUSE's examples before the questions of each side."""
    return {(side, "qa"): _examples(_pairs(source, f"{side}_qa_icl")) for side in _SIDES}


def _checked_files(source: Source, corpus: Corpus, options: MuseOptions) -> Table | None:
    """The table of stage 1, None where there is none and it is not needed.

    Refuses a source without the files that are needed, all named in one line; says which others it lacks. Of
    MUSE-Books all of RULE's files are needed, unless `--passages` stand for its training rows.
    """
    rules = corpus is BOOKS and not options.passages and not options.fold
    names = [options.stage1_file] if options.stage1_file else STAGE1_FILES
    stage1 = next((table for name in names if source.has(table := Table(name))), None)
    needed = [(_knowmem(f"{side}_{name}"), "evaluation") for side in _SIDES for name in ("qa", "qa_icl")]
    needed += [] if options.passages or options.fold else [(TRAINING, "stage 2")]
    needed += [(_fold(options.fold), "--fold"), (CORPUS["retain"], "--fold")] if options.fold else []
    needed += [(VALIDATION, "validation")] if rules else []
    where = source.folder if isinstance(source, FolderSource) else source.name
    lacking = [(table.file, use) for table, use in needed if not source.has(table)]
    if stage1 is None and (rules or options.stage1_file):
        lacking.append((names[0], "stage 1"))
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
    return stage1


def _probes(source: Source, corpus: Corpus) -> list[Prompt]:
    """KnowMem's two sets of questions, and VerbMem's passages with how they go on.

    White space is kept in passages: without it the tokens would not be those that MUSE's own evaluation
    sends.
    """
    probes = [
        _prompt(corpus, stream * STREAM + number, side, "qa", *pair, "knowmem")
        for stream, side in enumerate(_SIDES, start=2)
        for number, pair in enumerate(_pairs(source, f"{side}_qa"))
    ]
    for number, record in enumerate(source.read(VERBMEM) if source.has(VERBMEM) else []):
        passage = (record.verbatim("prompt"), record.verbatim("gt"), record.origin)
        probes.append(_prompt(corpus, 4 * STREAM + number, "forget", "completion", *passage, "verbmem"))
    return probes


def _pairs(source: Source, name: str) -> list[tuple[str, str, str]]:
    """Question, answer and origin of each row of one of KnowMem's tables."""
    return [(r.text("question"), r.text("answer"), r.origin) for r in source.read(_knowmem(name))]


def _rule_prompts(
    source: Source, table: Table, corpus: Corpus, family: str, *, answered: bool
) -> list[Prompt]:
    """The prompts of one of RULE's files, numbered by row; questions are of the family given.

    A row without a text has the gold "", and is refused where rows must be `answered`. Raises SourceError.
    """
    prompts = []
    for number, record in enumerate(source.read(table)):
        if not is_rule_row(record):
            raise SourceError(f"{record.origin}: has no prompt and solution")
        side, (text, *_) = rule_solution(record)
        empty = text is None or (isinstance(text, str) and not text.strip())
        gold = record.filled("solution[1]", text) if answered or not empty else ""
        mode, query = record.one_of("mode", MODES, "qa"), record.text("prompt")
        kind = family if mode == "qa" else mode
        prompts.append(_prompt(corpus, number, side, mode, query, gold, record.origin, kind))
    return prompts


def _stage1_prompts(source: Source, table: Table, corpus: Corpus) -> list[Prompt]:
    """RULE's prompts of stage 1 with its refusals; the gold is "" where a row has no right answer."""
    prompts = []
    for number, record in enumerate(source.read(table)):
        asked = (record.one_of("mode", MODES, "qa"), record.text("instruction"))
        answer = record.optional("org_answer", "")
        prompt = _prompt(corpus, 5 * STREAM + number, "forget", *asked, answer, record.origin)
        prompts.append(replace(prompt, refusal=record.text("output")))
    return prompts


def _completions(corpus: Corpus, passages: Sequence[str], first_index: int, side: Side) -> list[Prompt]:
    """The first COMPLETION_WORDS words of a passage and as many after them; a shorter one in halves."""
    prompts = []
    for number, passage in enumerate(passages):
        words = passage.split()[: 2 * COMPLETION_WORDS]
        if len(words) > 1:
            halves = (" ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :]))
            origin = f"{side} passage {number + 1}"
            prompts.append(_prompt(corpus, first_index + number, side, "completion", *halves, origin))
    return prompts


def _prompt(
    corpus: Corpus, index: int, side: Side, mode: str, query: str, gold: str, origin: str, family: str = ""
) -> Prompt:
    subject = corpus.subject if side == "forget" else "neighbour"
    return make_prompt(index, query, side, subject, (gold,), origin, mode=mode, family=family)


def _examples(pairs: Iterable[tuple[str, ...]]) -> str:
    """Questions with their answers, as MUSE puts them before a question."""
    return "".join(f"{QUESTION.replace('{query}', asked)}{answer}\n\n" for asked, answer, *_ in pairs)


# ---- the commands ----


BOOKS = Corpus("muse_books", "Harry Potter", "books")
NEWS = Corpus("muse_news", "this news story", "news")
"""The articles have no name in common: a refusal says what a question is about."""


def _command(corpus: Corpus, summary: str, example: str) -> Command:
    return benchmark(
        summary,
        example,
        "RULE's folder data, a folder of MUSE's and RULE's files, or a name on the Hub",
        MuseOptions,
        lambda source, options, writer: load(open_corpus(source, corpus), corpus, options, writer),
    )


BOOKS_COMMAND = _command(
    BOOKS,
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
)
NEWS_COMMAND = _command(
    NEWS,
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
  python -m data_prep muse-news --source muse-bench/MUSE-News --fold sust_1 --out data/news_1
      probes, and texts of the first of four requests (also scal_1 to scal_4)
""",
)
