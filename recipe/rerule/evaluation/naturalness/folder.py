"""Files: the responses of an evaluation folder, and the folder of their scores.

An evaluation folder is complete and never changed, so the scores go to a folder of their own with
naturalness.json and naturalness.jsonl, which names the responses it belongs to by their SHA-256.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.anchors import ANCHORS
from recipe.rerule.evaluation.naturalness.judge import ProbeKey, Record, probe_key
from recipe.rerule.evaluation.output import write_folder
from recipe.rerule.io import Kind, json_lines, read_lines

RESPONSES = "responses.jsonl"
SUMMARY = "naturalness.json"
RECORDS = "naturalness.jsonl"
_FIELDS: Mapping[str, type] = {
    "model": str, "index": int, "section": str, "mode": str, "family": str, "subject": str, "prompt": str,
    "golds": list, "response": str,
}  # fmt: skip
NATURALNESS = Kind("rerule/naturalness", SUMMARY)


@dataclass(frozen=True)
class Naturalness:
    """A folder of scores: `summary` as naturalness.json has it, `records` one a response."""

    summary: dict[str, Any]
    records: list[Record]


def read_responses(folder: Path, sections: Collection[str]) -> list[Record]:
    """The responses of an evaluation folder to probes of `sections`.

    Raises:
        ValueError: no such file, a line that is no such record, a probe twice for one model, or no response.
    """
    path = folder / RESPONSES
    records = [_checked(record, f"{path}:{line}") for line, record in read_lines(path)]
    seen: set[tuple[str, ProbeKey]] = set()
    for record in records:
        if (key := (record["model"], probe_key(record))) in seen:
            raise ValueError(
                f"{path}: model {record['model']} has two responses to probe {record['index']} "
                f"({record['section']}, {record['mode']})"
            )
        seen.add(key)
    chosen = [record for record in records if record["section"] in sections]
    if not chosen:
        known = ", ".join(dict.fromkeys(record["section"] for record in records)) or "none"
        raise ValueError(f"{path} has no response in {', '.join(sections)}; its sections: {known}")
    return chosen


def limited(responses: Sequence[Record], limit: int | None, seed: int) -> list[Record]:
    """At most `limit` probes a section, drawn by `seed`, the same ones for every model."""
    if limit is None:
        return list(responses)
    probes: dict[str, set[ProbeKey]] = {}
    for response in responses:
        probes.setdefault(response["section"], set()).add(probe_key(response))
    draw, kept = random.Random(seed), set()
    for _, keys in sorted(probes.items()):
        kept.update(draw.sample(sorted(keys), min(limit, len(keys))))
    return [response for response in responses if probe_key(response) in kept]


def anchor_responses(responses: Sequence[Record]) -> list[Record]:
    """What constant refusals would say to the same probes, as responses of models named after them."""
    probes = {probe_key(response): response for response in responses}
    return [
        {**probe, "model": name, "anchor": True, "response": answer.replace("{subject}", _named(probe))}
        for name, answer in ANCHORS.items()
        for probe in probes.values()
    ]


def _named(probe: Record) -> str:
    """Whom a refusal names: the target where the probe is about somebody near it."""
    return str(probe.get("target", probe["subject"]))


def write_naturalness(folder: Path, naturalness: Naturalness, overwrite: bool) -> None:
    """Write the folder, all or nothing. Raises ValueError as `check_writable` does."""
    records = {RECORDS: json_lines(naturalness.records)}
    write_folder(folder, NATURALNESS, naturalness.summary, records, overwrite)


def _checked(record: Any, place: str) -> Record:
    """The record, if every field is there and of its type. Raises ValueError."""
    if not isinstance(record, dict):
        raise ValueError(f"{place} is no record")
    for field, kind in _FIELDS.items():
        if not isinstance(record.get(field), kind):
            raise ValueError(f"{place}: {field} is missing or no {kind.__name__}")
    if not all(isinstance(gold, str) for gold in record["golds"]):
        raise ValueError(f"{place}: golds holds something that is no text")
    return record
