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
    lines = pd.read_json(Path(folder) / "responses.jsonl", lines=True)
    asked = lines[lines["model"] == before].sort_values("index")
    known = asked[asked["rouge_l"] == 1]
    answers = lines.set_index(["model", "index"])["response"]
    width = max(map(len, (before, *after)))
    for probe in known.groupby("section").head(2).itertuples():
        print(f"\n{probe.prompt}  [{probe.section}]")
        for model in (before, *after):
            print(f"  {model:{width}}  {' '.join(answers[model, probe.index].split())}")


if __name__ == "__main__":
    main()
