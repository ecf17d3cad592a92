"""Four questions and what two models answered: python examples/before_after.py EVALUATION BEFORE AFTER

They are the first two probes of each side of which the model BEFORE gave the whole right answer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd


def main() -> None:
    """Print the answers that an evaluation wrote."""
    folder, before, after = sys.argv[1:]
    lines = pd.read_json(Path(folder) / "responses.jsonl", lines=True)
    asked = lines[lines["model"] == before].sort_values("index")
    known = asked[asked["rouge_l"] == 1]
    answers = lines[lines["model"] == after].set_index("index")["response"]
    width = max(len(before), len(after))
    for probe in known.groupby("section").head(2).itertuples():
        print(f"\n{probe.prompt}  [{probe.section}]")
        for model, response in ((before, probe.response), (after, answers[probe.index])):
            print(f"  {model:{width}}  {' '.join(response.split())}")


if __name__ == "__main__":
    main()
