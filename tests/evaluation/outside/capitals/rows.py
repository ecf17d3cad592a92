"""The rows of both stages and the probes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from data_prep.contract import Row, rl_row, write_rows

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Peru": "Lima"}
FORGOTTEN = ("France",)
TRAINED = ("Which city is the capital of {country}?", "Name the capital of {country}.")
ASKED = ("What is {country}'s capital?", "{country} is governed from which city?")


def write(folder: Path) -> None:
    """train, val and probes.parquet; validation asks the probes, as the benchmarks do."""
    folder.mkdir()
    write_rows(folder / "train.parquet", _rows(TRAINED, "train", 0))
    write_rows(folder / "val.parquet", _rows(ASKED, "val", 1000))
    write_rows(folder / "probes.parquet", _rows(ASKED, "probe", 1000))


def _rows(templates: tuple[str, ...], split: str, first: int) -> list[Row]:
    found = []
    for index, (country, template) in enumerate(product(CAPITALS, templates), first):
        side = "forget" if country in FORGOTTEN else "retain"
        info = {"index": index, "mode": "qa", "subject": country, "split": split}
        found.append(
            rl_row(
                data_source="rerule/capitals",
                prompt=template.format(country=country),
                side=side,
                golds=[CAPITALS[country]],
                keyword=country if side == "forget" else "",
                extra_info=info | {"section": side, "family": "direct"},
            )
        )
    return found
