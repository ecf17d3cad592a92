"""The probes: held-out prompts with the answers a model that remembers would give."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.contract import SECTIONS, Row, control_character_place, read_rows
from recipe.rerule import io


@dataclass(frozen=True)
class Reference:
    """Answers whose likelihood is compared with the right one's.

    Attributes:
        perturbed: wrong answers, at least one.
        paraphrased: the right answer in other words; None where the benchmark has none.
    """

    perturbed: tuple[str, ...]
    paraphrased: str | None = None


@dataclass(frozen=True)
class Probe:
    """One row of the data contract, as evaluation needs it.

    Attributes:
        index: stable prompt index, unique over the benchmark.
        section: where the row counts: "forget", "retain" or "retain_unseen" (people not seen in stage 2).
        mode: "qa", "fb", "aa" or "completion".
        family: phrasing or attack family.
        subject: name of the person the prompt is about.
        messages: chat messages, at least one.
        golds: accepted answers, at least one.
        raw: whether the one message goes to a base model as it is, not through the chat template.
        query: the bare question, where the prompt puts more text around it.
        reference: for benchmarks that compare likelihoods.
        data_source: the benchmark, as "rerule/world".
        fact: what the probe asks for, where the row says it; "" where it does not.
    """

    index: int
    section: str
    mode: str
    family: str
    subject: str
    messages: list[dict[str, str]]
    golds: list[str]
    raw: bool = False
    query: str = ""
    reference: Reference | None = None
    data_source: str = ""
    fact: str = ""

    @property
    def labels(self) -> dict[str, Any]:
        """What every record of an answer says of its probe: index, section, mode, family, subject; and the
        fact, where the row says it."""
        names = ("index", "section", "mode", "family", "subject", *(("fact",) if self.fact else ()))
        return {name: getattr(self, name) for name in names}


def read_probes(path: Path) -> list[Probe]:
    """Read and check the probes parquet.

    Rows that say that they are trained on are a warning.

    Raises:
        ValueError: missing or empty file, a missing column, a bad row, or an index that occurs twice.
    """
    rows = read_rows(path)
    for warning in (_training_row(rows), _control_character(rows)):
        if warning is not None:
            io.warn(f"{path}: {warning}")
    return [_probe(row) for row in rows]


def read_training_rows(path: Path) -> list[Probe]:
    """Rows that models are trained on, as probes. Raises ValueError as `read_probes` does."""
    return [_probe(row) for row in read_rows(path)]


def _training_row(rows: Sequence[Row]) -> str | None:
    """What to say of the first row that says that it is trained on."""
    for number, row in enumerate(rows):
        if row["extra_info"]["split"] == "train":
            return (
                f"row {number}: extra_info.split is 'train': models may have been trained on these rows; "
                "evaluate on probes.parquet"
            )
    return None


def _control_character(rows: Sequence[Row]) -> str | None:
    """What to say of the first row that has one in a text."""
    places = ((number, control_character_place(row)) for number, row in enumerate(rows))
    found = next(((number, place) for number, place in places if place), None)
    return found and f"row {found[0]}: {found[1]}; models see it as part of the text"


def _probe(row: Mapping[str, Any]) -> Probe:
    info = row["extra_info"]
    return Probe(
        index=int(info["index"]),
        section=info["section"],
        mode=info["mode"],
        family=info["family"],
        subject=info["subject"],
        messages=[{"role": message["role"], "content": message["content"]} for message in row["prompt"]],
        golds=list(row["reward_model"]["ground_truth"]["golds"]),
        raw=info["raw"],
        query=info["query"],
        reference=_reference(row.get("reference")),
        data_source=row["data_source"],
        fact=_fact(info.get("fact")),
    )


def _fact(given: Any) -> str:
    return "" if given is None else str(given).strip()


def _reference(row: Mapping[str, Any] | None) -> Reference | None:
    return None if row is None else Reference(tuple(row["perturbed"]), row["paraphrased"])


def count_by_section(probes: list[Probe]) -> dict[str, int]:
    """Number of probes a section and a mode, as {"forget": 12, "forget/qa": 4, ...}, in section order."""
    counts: dict[str, int] = {}
    for section in SECTIONS:
        for probe in (probe for probe in probes if probe.section == section):
            for key in (section, f"{section}/{probe.mode}"):
                counts[key] = counts.get(key, 0) + 1
    return counts


def facts_by_section(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Number of facts that the records of one model ask for, by the same keys as `count_by_section`."""
    asked: dict[str, set[Any]] = {}
    for section in SECTIONS:
        for record in (record for record in records if record["section"] == section):
            for key in (section, f"{section}/{record['mode']}"):
                asked.setdefault(key, set()).add(record["fact"])
    return {key: len(facts) for key, facts in asked.items()}


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of the file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
