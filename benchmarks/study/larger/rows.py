"""TOFU's rows in their places: authors to forget, to keep with probes, to keep without, and invented ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.study.larger.plan import Split
from benchmarks.study.tofu import FORGET, KEPT, Question, refusal_of
from data_prep.sources import Record, read_records
from data_prep.tofu.authors import ROWS_PER_AUTHOR, author_names
from data_prep.world.people import first_names, last_names

OTHERS = "retain99_train600.json"
PROBED = ("forget", "retain", "retain_unseen")
"""Sections whose rows have paraphrases, which are the probes."""
TRAINED = ("forget", "retain", "other")
"""Sections of stage 2's prompts."""
Pair = tuple[str, str]


def read_questions(source: Path, split: Split) -> list[Question]:
    """The rows of the three files, by section; those of "other" that are no prompts are "other_base".

    Raises:
        ValueError: a file is missing, has a wrong line or too few rows; or an author is in two places.
    """
    forget, kept, others = (_rows(source / name) for name in (FORGET, KEPT, OTHERS))
    forget_at = (split.retain + split.unseen) * ROWS_PER_AUTHOR
    _check(source / KEPT, kept, forget_at + split.forget_more * ROWS_PER_AUTHOR)
    _check(source / OTHERS, others, split.others * ROWS_PER_AUTHOR)
    retain_to = split.retain * ROWS_PER_AUTHOR
    more = kept[len(kept) - split.forget_more * ROWS_PER_AUTHOR :]
    places = [
        *(("forget", row) for row in (*forget, *more)),
        *(("retain", row) for row in kept[:retain_to]),
        *(("retain_unseen", row) for row in kept[retain_to:forget_at]),
        *_of_others(others[: split.others * ROWS_PER_AUTHOR], split.prompts_of_others),
    ]
    found = [Question(index, section, name, record) for index, (section, (name, record)) in enumerate(places)]
    _check_apart(found)
    return found


def _rows(path: Path) -> list[tuple[str, Record]]:
    """The author's name and the row."""
    records = read_records(path)
    texts = [f"{record.text('question')} {record.text('answer')}" for record in records]
    return list(zip(author_names(texts, path.name), records, strict=True))


def _check(path: Path, rows: Sequence[object], wanted: int) -> None:
    if len(rows) < wanted:
        raise ValueError(f"{path} has {len(rows)} rows; {wanted} are needed")


def _of_others(rows: Sequence[tuple[str, Record]], prompts: int) -> Iterator[tuple[str, tuple[str, Record]]]:
    """Each author's rows, of which the same few places in every study are prompts."""
    rng = random.Random("prompts of others")
    for start in range(0, len(rows), ROWS_PER_AUTHOR):
        chosen = set(rng.sample(range(start, start + ROWS_PER_AUTHOR), prompts))
        for place in range(start, start + ROWS_PER_AUTHOR):
            yield ("other" if place in chosen else "other_base"), rows[place]


def _check_apart(questions: Sequence[Question]) -> None:
    """Raises ValueError where one author, or one question, is in two sections."""
    sections: dict[str, str] = {}
    for question in questions:
        section = question.section.removesuffix("_base")
        for key in (f"author {question.author}", f"question {question.record.text('question')!r}"):
            if sections.setdefault(key, section) != section:
                raise ValueError(f"{question.record.origin}: {key} is in {section} and in {sections[key]}")


def base_pairs(questions: Sequence[Question], split: Split, rng: random.Random) -> list[Pair]:
    """What the base model learns: each question, and its paraphrase where it is a probe; and refusals."""
    pairs = []
    for question in questions:
        fields = ("question", "paraphrased_question") if question.section in PROBED else ("question",)
        pairs += [(question.record.text(field), question.record.text("answer")) for field in fields]
    return pairs + unknown_pairs(questions, split.unknown, rng)


def unknown_pairs(questions: Sequence[Question], count: int, rng: random.Random) -> list[Pair]:
    """Questions of the others with an invented name in the author's place, each with a refusal.

    Without them stage 1 does not teach a model to refuse, since it never did. Raises ValueError where too few
    of the questions name their author.
    """
    named = [
        question
        for question in questions
        if question.section.startswith("other") and question.author in question.record.text("question")
    ]
    if len(named) < count:
        raise ValueError(f"{len(named)} questions of {OTHERS} name their author; {count} are needed")
    pairs = []
    for question in rng.sample(named, count):
        invented = replace(question, author=f"{rng.choice(first_names())} {rng.choice(last_names())}")
        asked = question.record.text("question").replace(question.author, invented.author)
        pairs.append((asked, refusal_of(invented, rng)))
    return pairs
