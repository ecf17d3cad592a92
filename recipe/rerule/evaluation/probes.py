"""The probes: held-out prompts with the answers a model that remembers would give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.contract import control_character_place, read_rows, whole
from recipe.rerule import io
from reward.keyword import names_of


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
        aliases: further names of the target, on the forget side.
        trace: the chain of thought that leads to the first gold, where the row has one.
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
    aliases: tuple[str, ...] = ()
    trace: str = ""

    def renamed(self, text: str, name: str) -> str:
        """`text` with `name` in the place of every name of whom the probe is about, as whole words."""
        names = sorted(filter(None, (self.subject, *self.aliases)), key=len, reverse=True)
        return re.sub("|".join(map(whole, names)), lambda _: name, text) if names else text

    @property
    def labels(self) -> dict[str, Any]:
        """What every row of the tidy table says of its probe: the keys of `tidy.ROW` that are the probe's,
        without fact where the row of the data does not say it, and family and subject."""
        return {
            "probe": self.index,
            "side": self.section,
            "kind": self.mode,
            **({"fact": self.fact} if self.fact else {}),
            "family": self.family,
            "subject": self.subject,
        }


def read_probes(path: Path) -> list[Probe]:
    """Read and check the probes parquet.

    Rows that say that they are trained on are a warning.

    Raises ValueError: missing or empty file, a missing column, a bad row, or an index that occurs twice.
    """
    rows = read_rows(path)
    for number, row in enumerate(rows):
        if row["extra_info"]["split"] == "train":
            io.warn(
                f"{path}: row {number}: extra_info.split is 'train': models may have been trained on these "
                "rows; evaluate on probes.parquet"
            )
            break
    for number, row in enumerate(rows):
        if place := control_character_place(row):
            io.warn(f"{path}: row {number}: {place}; models see it as part of the text")
            break
    return [_probe(row) for row in rows]


def read_training_rows(path: Path) -> list[Probe]:
    """Rows that models are trained on, as probes. Raises ValueError as `read_probes` does."""
    return [_probe(row) for row in read_rows(path)]


def _probe(row: Mapping[str, Any]) -> Probe:
    info, reference = row["extra_info"], row.get("reference")
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
        reference=reference and Reference(tuple(reference["perturbed"]), reference["paraphrased"]),
        data_source=row["data_source"],
        fact=str(info.get("fact") or "").strip(),
        aliases=tuple(
            n for n in names_of(row["reward_model"]["ground_truth"]["keyword"]) if n != info["subject"]
        ),
        trace=info.get("trace") or "",
    )


def told_file(path: Path) -> str:
    """A file as reports and model cards may tell it: its name and checksum, and no folder."""
    return f"{path.name} (sha256 {io.file_sha256(path)[:8]})"
