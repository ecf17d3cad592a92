"""Why replay did not help in studies 1 to 3: python -m benchmarks.earlier_studies ARCHIVE

ARCHIVE is a folder with the commit of those studies: git worktree add ARCHIVE d665838. These tables were made
after the studies and were in no plan.

1. Study 2: the score of each arm minus that of RULE at the same learning rate, in the runs that chose the
   rates.
2. Study 1: RULE's share of hard groups in the last quarter of its steps, and what the arms gain over RULE.
3. Study 3: recall and reward on the retain questions that are asked during training, before replay starts
   (step 8) and at the end, and the share of groups with signal in the last ten steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.evidence import markdown

TUNING = (201, 202)
"""Stage-1 models of study 2 that chose the rates."""
COUNTED = (311, 312, 313, 314)
"""Stage-1 models of study 3 after the one that chose the rate."""
NAMES = {"equal_updates": "equal_updates", "quantile_newest": "default", "rerule": "rerule"}
BEFORE = 8


def tables(study1: pd.DataFrame, study2: pd.DataFrame, study3: pd.DataFrame) -> Iterator[str]:
    """Markdown of the three tables, from the archive's result files."""
    tuning = study2[study2["base"].astype(int).isin(TUNING)]
    of_rate = tuning["settings"].map(lambda settings: settings["learning_rate"])
    at_rate = _over_rule(tuning.assign(rate=of_rate), ["rate"], ["world", "base"])
    yield from markdown(at_rate.rename("{:g}".format).reset_index(), 3)
    # Seeds from 101 on are of other stage-1 models, and were made to choose settings.
    first = study1[study1["seed"].astype(int) < 101]
    rule = first[first["arm"] == "rule"]
    hard = rule["final"].map(lambda final: final.get("hard_share/last")).groupby(rule["world"]).mean()
    gains = _over_rule(first, ["world"], ["seed"])
    found = pd.concat([hard.rename("hard groups"), gains], axis=1).dropna()
    yield from markdown(found.rename_axis("world").reset_index(), 3)
    counted = study3[study3["base"].astype(int).isin(COUNTED)]
    both = pd.DataFrame([_before_and_after(run) for run in counted.to_dict("records")])
    yield from markdown(both.groupby("arm").mean().reset_index(), 3)


def read(file: Path) -> pd.DataFrame:
    """The runs of a result file, with `settings`, `final` and `curves` as dictionaries and the mean score."""
    runs = pd.read_parquet(file)
    for column in ("final", "curves"):
        runs[column] = runs[column].map(dict)
    runs["settings"] = runs["settings"].map(json.loads)
    sections = ("forget", "retain", "retain_unseen")
    recall = [runs["final"].map(lambda final, of=of: final.get(f"{of}/recall")) for of in sections]
    runs["score"] = (1 - recall[0] + recall[1] + recall[2]) / 3
    return runs.dropna(subset="score")


def _over_rule(runs: pd.DataFrame, by: list[str], pairs: list[str]) -> pd.DataFrame:
    """Mean difference to RULE of the arms of NAMES, of runs that agree in `by` and `pairs`."""
    scores = runs.pivot_table(index=[*by, *pairs], columns="arm", values="score")
    return scores[[*NAMES]].sub(scores["rule"], axis=0).groupby(level=by).mean().rename(columns=NAMES)


def _before_and_after(run: dict[str, Any]) -> dict[str, Any]:
    curves = run["curves"]
    before = [*curves["at/steps"]].index(BEFORE)
    found: dict[str, Any] = {"arm": NAMES.get(run["arm"], run["arm"])}
    for measure in ("recall", "reward"):
        asked = curves[f"retain/{measure}"]
        found |= {f"retain {measure}, step {BEFORE}": asked[before], f"retain {measure}, end": asked[-1]}
    return found | {"groups with signal": sum(curves["signal_share"][-10:]) / 10}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    study = Path(sys.argv[1]) / "benchmarks" / "study"
    files = ("results.parquet", "planned.parquet", "larger/results.parquet")
    print("\n".join(tables(*(read(study / file) for file in files))))
