"""Four questions and what models answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd


def show(folder: Path, models: Sequence[str]) -> None:
    """Print the first two probes of each side of which the first model gave the whole right answer.

    `folder`: of `evaluate model`.
    """
    rows = pd.read_parquet(folder / "responses.parquet")
    asked = rows[rows["model"] == models[0]].sort_values("probe")
    answers = rows.set_index(["model", "probe"])["response"]
    width = max(map(len, models))
    for probe in asked[asked["rouge_l"] == 1].groupby("side").head(2).itertuples():
        print(f"\n{probe.prompt}  [{probe.side}]")
        for model in models:
            print(f"  {model:{width}}  {' '.join(answers[model, probe.probe].split())}")
