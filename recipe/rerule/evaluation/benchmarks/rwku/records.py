"""RWKU's records: one probe and its answer each, with their scores, made here or read from files.

Scores are always computed from golds and response; what a file says of them is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.logs.records import Record, answer_of, golds_of, read_rows, text_of
from reward.refusal import is_refusal
from reward.rouge import rouge_l

CONVENTION = "rwku"
NO_ANSWER = "NOANSWER"
"""What RWKU takes an empty answer for."""
_MODE_OF_LEVEL = {"1": "fb", "2": "qa", "3": "aa"}
_MODES = {"forget": ("fb", "qa", "aa"), "retain": ("fb", "qa")}
# Anchors and collapsed models give the same text again and again.
_refuses = lru_cache(maxsize=1 << 14)(is_refusal)


def scored(record: Record) -> Record:
    """The record with `rouge_l`, in [0, 1] against the best of its golds, and `refused`, from its response.

    White space around a response does not count; an empty one is scored as NOANSWER, and is no refusal. One
    of full stops alone, on which RWKU's code stops with an error, scores 0.
    """
    text = record["response"].strip() or NO_ANSWER
    recall = max(rouge_l(text, gold, CONVENTION) for gold in record["golds"])
    return record | {"rouge_l": recall, "refused": _refuses(text)}


def read_records(*paths: Path) -> list[Record]:
    """The records of the files, in order, scored.

    A file is JSON lines, a JSON array, or an object that holds the array as `results`, as RWKU writes it.
    A record is either ours (`responses.jsonl`: section, mode, family, target, subject, golds, response, ...)
    or RWKU's: query, answer, level ("1" FB, "2" QA, "3" AA), type, subject (the target), prediction, and
    neighbor where the question is on one. The response may also be called prediction or predict.

    Raises:
        ValueError: a file is missing, holds no records or a record that is wrong, named by its number
        from 1.
    """
    return [record for path in paths for record in _read(path)]


def _read(path: Path) -> list[Record]:
    rows = read_rows(path)
    if not rows:
        raise ValueError(f"{path}: no records")
    numbers: dict[tuple[str, ...], count[int]] = {}
    return [scored(_record(row, f"{path}: record {i}", numbers)) for i, row in enumerate(rows, start=1)]


def check_distinct(records: Sequence[Record]) -> None:
    """Raises ValueError where two records are of one model, target and probe, or not all of one model."""
    if len(models := {record.get("model", "") for record in records}) > 1:
        raise ValueError(f"records of several models ({', '.join(sorted(models))}): score one at a time")
    seen: set[tuple[Any, ...]] = set()
    for record in records:
        key = tuple(record[name] for name in ("target", "section", "mode", "index"))
        if key in seen:
            where = f"{record['target']}, {record['section']}/{record['mode']}, index {record['index']}"
            raise ValueError(f"two records of one probe ({where}): give each record once")
        seen.add(key)


def _record(row: Any, where: str, numbers: dict[tuple[str, ...], count[int]]) -> Record:
    """A row in our form. `numbers` counts the rows without an index of their own, by target, section and
    mode."""
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not an object")
    record = _own(row, where) if "golds" in row else _rwku(row, where)
    section, mode = record["section"], record["mode"]
    if mode not in _MODES.get(section, ()):
        raise ValueError(f"{where}: RWKU has no {section}/{mode} probes")
    key = (record["model"], record["target"], section, mode)
    position = next(numbers.setdefault(key, count()))
    index = row.get("index", position)
    if type(index) is not int:
        raise ValueError(f"{where}: index is {index!r}, expected a whole number")
    return {"index": index, **record}


def _own(row: Mapping[str, Any], where: str) -> Record:
    record = {name: text_of(row, name, where) for name in ("section", "mode", "family", "target", "subject")}
    return (
        answer_of(row, where)
        | record
        | {"prompt": text_of(row, "prompt", where), "golds": golds_of(row, where)}
    )


def _rwku(row: Mapping[str, Any], where: str) -> Record:
    target = text_of(row, "subject", where)
    level = str(row.get("level"))
    if level not in _MODE_OF_LEVEL:
        raise ValueError(f"{where}: level is {row.get('level')!r}, expected one of 1, 2, 3")
    return answer_of(row, where) | {
        "section": "retain" if "neighbor" in row else "forget",
        "mode": _MODE_OF_LEVEL[level],
        "family": text_of(row, "type", where),
        "target": target,
        "subject": text_of(row, "neighbor", where) if "neighbor" in row else target,
        "prompt": text_of(row, "query", where),
        "golds": [text_of(row, "answer", where)],
    }
