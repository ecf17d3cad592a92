"""Four questions and what models answered: python examples/before_after.py EVALUATION BEFORE AFTER ...

They are the first two probes of each side of which the model BEFORE gave the whole right answer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd


def main() -> None:
    """Print the answers that an evaluation wrote."""
    folder, before, *after = sys.argv[1:]
    rows = pd.read_parquet(Path(folder) / "responses.parquet")
    asked = rows[rows["model"] == before].sort_values("probe")
    known = asked[asked["rouge_l"] == 1]
    answers = rows.set_index(["model", "probe"])["response"]
    width = max(map(len, (before, *after)))
    for probe in known.groupby("side").head(2).itertuples():
        print(f"\n{probe.prompt}  [{probe.side}]")
        for model in (before, *after):
            print(f"  {model:{width}}  {' '.join(answers[model, probe.probe].split())}")


if __name__ == "__main__":
    main()
