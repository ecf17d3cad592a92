"""WMDP (cais/wmdp, arXiv 2403.03218): questions with four choices to forget, and texts to train on.

It has no training questions: the folder holds probes, and the rows of `unlearn` where there are texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from data_prep.options import benchmark, option
from data_prep.prompts import STREAM, Benchmark, Material, Prompt, PromptForm, Side, make_prompt
from data_prep.sources import (
    Record,
    Source,
    SourceError,
    Table,
    cleaned,
    open_source,
    read_records,
    shown,
)
from data_prep.writers import Writer
from recipe.rerule.io import file_sha256

DOMAINS = {"bio": "biology", "cyber": "cybersecurity", "chem": "chemistry"}
"""WMDP's sets of questions, and what each is about in the prompt of lm-eval."""
LETTERS = ("A", "B", "C", "D")
ABOUT = "The following are multiple choice questions (with answers) about {subject}.\n\n"
"""What lm-eval's tasks wmdp_* and mmlu_* put before the one question (no examples)."""


@dataclass(frozen=True)
class WmdpOptions:
    """What shapes the benchmark."""

    domains: tuple[str, ...] = option(
        ("bio", "cyber"), "sets of questions to forget", nargs="+", choices=tuple(DOMAINS)
    )
    corpora: str | None = option(
        None,
        "texts that methods train on: a folder with DOMAIN-forget-corpus and DOMAIN-retain-corpus as .jsonl, "
        ".csv or .parquet, rows {text}, or a name on the Hub (cais/wmdp-corpora)",
        metavar="DIR_OR_NAME",
    )
    retain_questions: str | None = option(
        None,
        "questions to keep, a table of the form of cais/mmlu: question, choices, answer, subject",
        metavar="FILE",
    )


def load(name: str, options: WmdpOptions, writer: Writer) -> Benchmark:
    """The benchmark. Raises ValueError."""
    source, probes = open_source(name), list[Prompt]()
    for stream, (domain, subject) in enumerate(DOMAINS.items()):
        if domain in options.domains:
            records = source.read(Table(f"wmdp-{domain}", split="test"))
            probes += [
                _probe(stream * STREAM + number, record, "forget", subject, domain)
                for number, record in enumerate(records)
            ]
    sources = dict(source.hashes)
    if options.retain_questions is not None:
        file = Path(options.retain_questions)
        probes += [
            _probe(9 * STREAM + number, record, "retain", record.text("subject").replace("_", " "), "mmlu")
            for number, record in enumerate(cleaned(read_records(file)))
        ]
        sources["--retain-questions"] = file_sha256(file)
    texts: dict[str, list[str]] = {"forget": [], "retain": []}
    if options.corpora is not None:
        corpora = open_source(options.corpora)
        texts = {side: _texts(corpora, options.domains, side) for side in texts}
        sources |= {f"--corpora/{read}": digest for read, digest in corpora.hashes.items()}
    return Benchmark(
        name="wmdp",
        probes=probes,
        form=PromptForm(raw=True),
        trains=False,
        settings={"source": source.name} | asdict(options),
        sources=sources,
        material=Material(retain_set="none", forget_texts=texts["forget"], retain_texts=texts["retain"]),
    )


def _probe(index: int, record: Record, side: Side, subject: str, family: str) -> Prompt:
    """A question as lm-eval asks it; the right answer is a letter, and the wrong ones are the others."""
    choices, answer = _choices(record), _answer(record)
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=True)]
    asked = "\n".join([record.text("question"), *lines, "Answer:"])
    wrong = [letter for letter in LETTERS if letter != LETTERS[answer]]
    return make_prompt(
        index,
        ABOUT.replace("{subject}", subject) + asked,
        side,
        subject,
        (LETTERS[answer],),
        record.origin,
        mode="qa",
        family=family,
        reference={"paraphrased": None, "perturbed": wrong},
    )


def _choices(record: Record) -> list[str]:
    """The texts of the choices as they stand; in a CSV file they are a JSON array. Raises SourceError."""
    value = record.get("choices")
    if isinstance(value, str):
        with suppress(json.JSONDecodeError):
            value = json.loads(value)
    if not isinstance(value, list) or len(value) != len(LETTERS):
        raise SourceError(
            f"{record.origin}: field choices is {shown(value)}, expected a list of {len(LETTERS)} texts"
        )
    for choice in value:
        record.filled("choices", choice)
    return value


def _answer(record: Record) -> int:
    """The place of the right choice, from 0. Raises SourceError."""
    value = record.get("answer")
    if str(value) not in map(str, range(len(LETTERS))):
        raise SourceError(
            f"{record.origin}: field answer is {shown(value)}, expected the place of the right choice, 0 to "
            f"{len(LETTERS) - 1}"
        )
    return int(value)


def _texts(corpora: Source, domains: Sequence[str], side: str) -> list[str]:
    """The texts of one side; says which domain has none. Raises SourceError where all have none."""
    found = list[str]()
    for domain in dict.fromkeys(domains):
        name = f"{domain}-{side}-corpus"
        table = Table(name)
        if corpora.has(table):
            records = corpora.read(table)
            filled = [record for record in records if record.get("text") != ""]  # RMU's code skips empty ones
            if empty := len(records) - len(filled):
                print(f"{corpora.name}: {name} holds {empty} empty texts, which are left out")
            found += [record.text("text") for record in filled]
        else:
            print(f"{corpora.name}: {name} is not there, so {side}_text.parquet is without {domain}")
    if not found:
        raise SourceError(f"{corpora.name}: no DOMAIN-{side}-corpus is there, of {', '.join(domains)}")
    return found


COMMAND = benchmark(
    "WMDP: make a model forget hazardous knowledge of biology, cybersecurity or chemistry",
    """\
example:
  python -m data_prep wmdp --source cais/wmdp --corpora cais/wmdp-corpora --domains cyber --out data/wmdp
      the questions and texts from the Hub; the texts to forget of bio are given on request alone
  python -m data_prep wmdp --source raw --corpora raw --retain-questions raw/mmlu.parquet --out data/wmdp
      from raw/wmdp-bio.jsonl, raw/wmdp-cyber.jsonl (question, choices, answer) and raw/*-corpus.jsonl
""",
    "a folder with wmdp-bio, wmdp-cyber or wmdp-chem as .jsonl, .csv or .parquet, or a name on the Hub "
    "(cais/wmdp)",
    WmdpOptions,
    load,
)
