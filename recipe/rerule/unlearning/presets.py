"""The presets of config/unlearn/method, read without Hydra, and the list of them for users and scripts."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from recipe.rerule.unlearning.method import Method

CONFIG = Path(__file__).parents[1] / "config" / "unlearn"


def names() -> list[str]:
    """All that `method=` accepts, aliases too."""
    return sorted(file.stem for file in (CONFIG / "method").glob("*.yaml"))


def load(name: str) -> Method:
    """The method of a preset. Raises FileNotFoundError and ValueError."""
    return Method(**{**defaults(), **_values(name)})


def answer_files(name: str) -> dict[str, str]:
    """By side, the file of data_prep with the answers that a method trains on.

    AltPO trains on wrong answers in place of refusals. Raises as `load`.
    """
    files = {"forget": "forget_gold.parquet", "retain": "retain.parquet", "alternate": "alternate.parquet"}
    files |= {"alternate": "mismatch.parquet"} if name == "altpo" else {}
    return {side: files[side] for side in load(name).data}


@functools.cache
def defaults() -> dict[str, Any]:
    """The settings of a method without terms."""
    return dict(yaml.safe_load((CONFIG / "unlearn_trainer.yaml").read_text("utf-8"))["method"])


def _values(name: str) -> dict[str, Any]:
    """What a preset says, with what it builds on."""
    values = yaml.safe_load((CONFIG / "method" / f"{name}.yaml").read_text("utf-8"))
    merged: dict[str, Any] = {}
    for part in values.pop("defaults", ["_self_"]):
        merged |= values if part == "_self_" else _values(part)
    return merged


def listed() -> list[dict[str, Any]]:
    """Of each preset: its terms, the files that it reads, and the rows that pass for each of its groups."""
    return [
        {
            "method": name,
            "forget": method.forget,
            "retain": method.retain,
            "alternate": method.alternate,
            "data": list(method.data),
            "passes": method.passes,
        }
        for name, method in ((name, load(name)) for name in names())
    ]


def as_table() -> str:
    """The list for a person."""
    heads = ("method", "forget", "retain", "alternate", "data", "forward", "backward")
    rows = [
        (*(entry[key] for key in heads[:4]), " ".join(entry["data"]), *map(str, entry["passes"].values()))
        for entry in listed()
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(
        [
            *("  ".join(map(str.ljust, row, widths)).rstrip() for row in (heads, *rows)),
            "",
            "data: the files that the method reads, as data.forget, data.retain and data.alternate.",
            "whp also needs reinforced.path, a model that was trained further on the rows of data.forget.",
            "forward, backward: rows that pass for each forget row, those through frozen models included;",
            "for each alternate or retain row where a method has no forget row.",
            "gd, kl, npo_rt and dpo_rt are other names of ga_gdr, ga_klr, npo_gdr and dpo_gdr.",
        ]
    )
