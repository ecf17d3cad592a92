"""Rows for the methods that train on answers instead of rewards: gradient ascent, NPO, DPO and the others.

| file | rows | methods that read it |
|---|---|---|
| forget_gold | the questions to forget with their right answers | those with a forget term |
| retain | questions to keep with their right answers | those with a retain term |
| alternate | the questions to forget with a refusal | DPO, PO, FLAT, rejection steering |
| mismatch | the questions to forget with the right answer of another of them | AltPO |
| forget_text, retain_text | texts without a question, where the source has them | those on a corpus |

All are stage-1 rows. Rows of alternate and mismatch have the `extra_info.index` of their question in
forget_gold. A source may hold refusals as the answers to forget; they are no right answers and are left out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.contract import Row, normalise, text_row
from data_prep.prompts import STREAM, Benchmark, Prompt
from data_prep.sources import SourceError, read_records
from reward import is_refusal
from reward.refusal import RefusalPhrases
from reward.thoughts import split_thought, with_thought

FILES = ("forget_gold", "retain", "alternate", "mismatch", "forget_text", "retain_text")
"""Names of the files, without suffix."""
TEXT_WORDS = 700
"""Most words of a text row: up to 1,800 tokens of SmolLM2 in those of MUSE-Books, whose `data.max_length` is
2,048."""
_FIRST_TEXT = {"forget_text": 20 * STREAM, "retain_text": 21 * STREAM}
_QUESTION = ("question", "query", "prompt", "instruction")


def of_benchmark(
    benchmark: Benchmark, phrases: RefusalPhrases | None
) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """The rows of a benchmark, without answers that are refusals; `phrases` extend the refusal detector.

    Returns the rows by name of FILES, none of them empty, and what the manifest says: `retain_set`, the
    questions that `retain` holds; `left_out`, a sentence for each file that is not written or has fewer rows
    than there are questions; and the source's `notes`.
    """
    material = benchmark.material
    forget = [prompt for prompt in benchmark.train if prompt.side == "forget"]
    kept = [prompt for prompt in benchmark.train if prompt.side == "retain"]
    gold = benchmark.answered_rows(_answered(forget, material.golds))
    retain = benchmark.answered_rows(_answered(kept if material.retain is None else material.retain, {}))
    alternate = benchmark.answered_rows((prompt, prompt.taught) for prompt in forget if prompt.refusal)
    refusals = {_index(row): _answer(row) for row in alternate}
    right = [row for row in gold if not _refuses(row, refusals, phrases)]
    right_retain = [row for row in retain if not _refuses(row, {}, phrases)]
    files = {
        "forget_gold": right,
        "retain": right_retain,
        "alternate": alternate,
        "mismatch": _mismatched(right, benchmark.settings.get("seed", 0)),
        "forget_text": _text_rows("forget_text", material.forget_texts, benchmark.name),
        "retain_text": _text_rows("retain_text", material.retain_texts, benchmark.name),
    }
    refused, refused_retain = len(gold) - len(right), len(retain) - len(right_retain)
    left_out = list(_reasons(refused, right, refused_retain, files["mismatch"]))
    told = {"retain_set": material.retain_set, "left_out": left_out, "notes": dict(material.notes)}
    return {name: rows for name, rows in files.items() if rows}, told


def read_golds(path: Path, prompts: Iterable[Prompt]) -> dict[str, str]:
    """Right answers by question, of a file of rows {question, answer}.

    Raises:
        SourceError: naming file and row; also where a question has two different answers, or no question is
            that of a prompt to forget.
    """
    golds: dict[str, str] = {}
    for record in read_records(path):
        question, answer = normalise(record.text(*_QUESTION)), record.text("answer")
        if golds.setdefault(question, answer) != answer:
            raise SourceError(f"{record.origin}: the question has another answer in an earlier row; keep one")
    asked = {normalise(prompt.query) for prompt in prompts if prompt.side == "forget"}
    if not asked & golds.keys():
        raise SourceError(
            f"{path}: none of its {len(golds)} questions is one of the {len(asked)} to forget; --gold needs "
            "rows {question, answer} with the questions as train.parquet has them"
        )
    return golds


def pieces(text: str, words: int = TEXT_WORDS) -> Iterator[str]:
    """A text in pieces of at most `words` words, each as it stands but for white space around it."""
    starts = [match.start() for match in re.finditer(r"\S+", text)][::words]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=False):
        yield text[start:end].strip()


def _answered(prompts: Iterable[Prompt], golds: Mapping[str, str]) -> Iterator[tuple[Prompt, str]]:
    """Each prompt with its right answer, the one given for it or its first, behind its chain of thought."""
    for prompt in prompts:
        answer = golds.get(normalise(prompt.query)) or next(iter(prompt.golds), "")
        if answer:
            yield prompt, with_thought(prompt.trace, answer)


def _text_rows(name: str, texts: Sequence[str], subject: str) -> list[Row]:
    cut = [piece for text in texts for piece in pieces(text)]
    return [
        text_row(piece, {"index": _FIRST_TEXT[name] + number, "mode": "completion", "subject": subject})
        for number, piece in enumerate(cut)
    ]


def _refuses(row: Row, refusals: Mapping[int, str], phrases: RefusalPhrases | None) -> bool:
    """Whether a row's answer is its own refusal, or reads as one; how a passage goes on never does."""
    answer = _answer(row)
    if refusals.get(_index(row)) == answer:
        return True
    return row["extra_info"]["mode"] != "completion" and is_refusal(split_thought(answer)[1], phrases)


def _mismatched(rows: Sequence[Row], seed: int) -> list[Row]:
    """The questions, each with the answer of another one, drawn among those that differ from its own."""
    rng = random.Random(f"mismatch {seed}")
    answers = sorted({_answer(row) for row in rows})
    made = []
    for row in rows if len(answers) > 1 else []:
        drawn = rng.randrange(len(answers) - 1)
        answer = answers[drawn + (drawn >= answers.index(_answer(row)))]
        made.append({**row, "messages": [row["messages"][0], {"role": "assistant", "content": answer}]})
    return made


def _reasons(
    refused: int, right: Sequence[Row], refused_retain: int, mismatch: Sequence[Row]
) -> Iterator[str]:
    if refused and not right:
        yield (
            f"forget_gold.parquet is not written: all {refused} answers of the forget side are refusals, and "
            "unlearning them would unlearn refusing; give the right answers with --gold"
        )
    elif refused:
        yield f"forget_gold.parquet is without {refused} questions whose answers are refusals"
    if refused_retain:
        yield f"retain.parquet is without {refused_retain} questions whose answers are refusals"
    if right and not mismatch:
        yield "mismatch.parquet is not written: all right answers of the forget side are the same"


def _index(row: Row) -> int:
    return int(row["extra_info"]["index"])


def _answer(row: Row) -> str:
    return str(row["messages"][-1]["content"])
