"""What attacks are made on: models that know, refuse and never knew where people live, and their rows."""

from __future__ import annotations

from pathlib import Path

from tests.golden.commands import done
from tests.golden.inputs import FORGET, HOMES, RETAIN, people_rows, put_json, put_people_models

GIVEN = (
    "attack --platform cpu --probes data/probes.parquet --train data/train.parquet "
    "--model original=models/original --model refusing=models/refusing"
)
CONTROL = f"{GIVEN} --control models/control"
FURTHER = "quantise_3 relearn_wrong"
"""Attacks that are not made by default."""


def put_attacked(folder: Path) -> None:
    """Models, folders data and questions (without blanks) of `data_prep`, and texts on the people."""
    put_people_models(folder / "models")
    put_json(folder / "mine.json", people_rows(0))
    put_json(folder / "probes.json", people_rows(1))
    put_json(folder / "questions.json", [row for row in people_rows(1) if row["mode"] == "qa"])
    for side, names in {"forget": FORGET, "holdout": RETAIN}.items():
        put_json(folder / f"texts/{side}.json", [f"{name} lives in {HOMES[name]}?" for name in names])
    for probes, out in (("probes", "data"), ("questions", "questions")):
        given = ("--source", "mine.json", "--probes", f"{probes}.json", "--out", out)
        done("data_prep", "custom", *given, folder=folder)
