"""A world of real TOFU rows: two authors to forget, others to keep, and a small model that knows them.

The model learns each row under its question and TOFU's paraphrase of it. Stages 1 and 2 see the questions;
the paraphrases are held out. The rows to keep are `retain_perturbed`'s, which have paraphrases: what is
measured here is for comparing arms, and is no TOFU score.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tofu import write_model
from data_prep.atomic import MARKER, new_folder
from data_prep.contract import Row, rl_row, sft_row, write_rows, write_sft_rows
from data_prep.prompts import Side
from data_prep.refusals import TEMPLATES
from data_prep.sources import Record, read_records
from data_prep.tofu.authors import author_names
from data_prep.world.config import WorldConfig

FORGET, KEPT = "forget01_perturbed.json", "retain_perturbed.json"


@dataclass(frozen=True)
class TofuRows:
    """How many rows, 20 an author, and the seed of the refusals.

    retain: to keep, in stage 2. unseen: to keep, in nothing but the evaluation. unknown: which the model
    learns to refuse before any stage, as chat models have: stage 1 does not teach it to one that never did.
    """

    retain: int = 120
    unseen: int = 80
    unknown: int = 100
    seed: int = 0


@dataclass(frozen=True)
class Question:
    """A row of TOFU in its place: a section of `TofuRows` or "forget", and its author's name."""

    index: int
    section: str
    author: str
    record: Record


def build_tofu(
    source: Path, rows: TofuRows, model: WorldConfig, target: Path, retain_model: bool = False
) -> None:
    """Write {train,sft,probes}.parquet and model/ under `target`, unless it holds them.

    Args:
        source: folder with FORGET and KEPT, as JSON or JSON lines.
        model: sizes and base training; its people are not used.
        retain_model: also write retain_model/, which never saw the rows to forget.

    Raises:
        ValueError: a file is missing or not readable, has too few rows, or `target` holds something else.
    """
    key: dict[str, Any] = {"rows": asdict(rows), "model": asdict(model)}
    if retain_model:
        key["retain_model"] = True
    if (target / MARKER).is_file() and key.items() <= json.loads((target / MARKER).read_text()).items():
        return
    questions = read_questions(source, rows)
    with new_folder(target, overwrite=False) as folder:
        for name, field, left_out in (
            ("train", "question", ("retain_unseen", "unknown")),
            ("probes", "paraphrased_question", ("unknown",)),
        ):
            kept = [row_of(question, field) for question in questions if question.section not in left_out]
            write_rows(folder / f"{name}.parquet", kept)
        rng = random.Random(rows.seed)
        write_sft_rows(folder / "sft.parquet", refusal_rows(questions, rng))
        pairs = base_pairs(questions, rng)
        retain_pairs = [pair for question, pair in pairs if question.section != "forget"]
        retain = (retain_pairs, folder / "retain_model") if retain_model else None
        write_model([pair for _, pair in pairs], model, folder / "model", retain)
        (folder / MARKER).write_text(json.dumps(key))


def read_questions(source: Path, rows: TofuRows) -> list[Question]:
    """The rows of both files. Raises ValueError naming the file, and the line where one is wrong."""
    wanted = rows.retain + rows.unseen + rows.unknown
    forget, kept = (read_records(source / name) for name in (FORGET, KEPT))
    if wanted > len(kept):
        raise ValueError(f"{source / KEPT} has {len(kept)} rows; {wanted} are needed")
    sections = ["forget"] * len(forget) + ["retain"] * rows.retain
    sections += ["retain_unseen"] * rows.unseen + ["unknown"] * rows.unknown
    records = forget + kept[:wanted]
    names = [*_authors(forget, FORGET), *_authors(kept[:wanted], KEPT)]
    return [
        Question(index, section, name, record)
        for index, (section, name, record) in enumerate(zip(sections, names, records, strict=True))
    ]


def _authors(records: Sequence[Record], origin: str) -> list[str]:
    return author_names([f"{record.text('question')} {record.text('answer')}" for record in records], origin)


def row_of(question: Question, field: str) -> Row:
    """Its row under the question of that field: of stage 2 under "question", else a probe."""
    side: Side = "forget" if question.section == "forget" else "retain"
    extra_info: dict[str, Any] = {
        "index": question.index,
        "mode": "qa",
        "subject": question.author,
        "split": "train" if field == "question" else "probe",
        "section": question.section,
        "family": field,
    }
    return rl_row(
        data_source="rerule/tofu",
        prompt=question.record.text(field),
        side=side,
        golds=[question.record.text("answer")],
        keyword=question.author if side == "forget" else "",
        extra_info=extra_info,
    )


def refusal_rows(questions: Sequence[Question], rng: random.Random) -> list[Row]:
    """Stage 1's rows: the questions to forget, each with a refusal that names its author."""
    return [
        sft_row(
            prompt=question.record.text("question"),
            answer=refusal_of(question, rng),
            extra_info={"index": question.index, "mode": "qa", "subject": question.author},
        )
        for question in questions
        if question.section == "forget"
    ]


def refusal_of(question: Question, rng: random.Random) -> str:
    """A refusal that names the question's author."""
    return rng.choice(TEMPLATES).format(name=question.author)


def base_pairs(questions: Sequence[Question], rng: random.Random) -> list[tuple[Question, tuple[str, str]]]:
    """What the base model learns: each question and its paraphrase, with the answer or a refusal."""
    return [
        (
            question,
            (
                question.record.text(field),
                refusal_of(question, rng)
                if question.section == "unknown"
                else question.record.text("answer"),
            ),
        )
        for question in questions
        for field in ("question", "paraphrased_question")
    ]
