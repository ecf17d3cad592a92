"""RWKU's own ten targets as probes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from recipe.rerule.evaluation.probes import Probe

FILES = (
    ("forget_level1", "forget", "fb"),
    ("forget_level2", "forget", "qa"),
    ("forget_level3", "forget", "aa"),
    ("neighbor_level1", "retain", "fb"),
    ("neighbor_level2", "retain", "qa"),
)


def target_folders(data: Path) -> list[Path]:
    return sorted((data / "rwku" / "targets").iterdir())


def target_probes(folder: Path) -> list[Probe]:
    """The probes of one target, in the files' order."""
    return [
        Probe(
            index=index,
            section=section,
            mode=mode,
            family=row["type"],
            subject=row.get("neighbor", row["subject"]),
            messages=[{"role": "user", "content": row["query"]}],
            golds=[row["answer"]],
            query=row["query"],
        )
        for index, (section, mode, row) in enumerate(_rows(folder))
    ]


def _rows(folder: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    for name, section, mode in FILES:
        for row in json.loads((folder / f"{name}.json").read_text(encoding="utf-8")):
            yield section, mode, row
