"""Why was replay worse in the world of 10.4 million parameters? python FILE --tofu FOLDER --out FOLDER

Study 3 of docs/evidence.md found the default replay 0.132 below equal updates in mean score. Its curves, and
single runs in a smaller world, suggested reasons. This study tests them, and was fixed before its
first run. It needs the code of that study, which is no longer in the repository's newest commit:

    git worktree add ARCHIVE d665838
    cd ARCHIVE; PYTHONPATH=. OMP_NUM_THREADS=1 python CHECKOUT/benchmarks/replay_ablation.py ...

The unit is a stage-1 model. Those of BASES are new, so that the gap itself is measured once more. World,
steps, stage 1 and the rate of 2e-4 are those of study 3. RULE had chosen that rate, on another model. Each of
the last five arms is the default replay with one change:

- `equal_updates`: RULE, which makes its own update twice as soon as replay would start.
- `default`: the default replay.
- `half_rate`: half of the rate. (Is one more update at the same rate too large a step?)
- `trust_region`: no gradient where PPO's clip would end it. (Are tokens pushed on that have moved enough?)
- `once`: a group leaves after one draw. (Are the same few groups learnt too often?)
- `positive_only`: negative advantages of the replay update are 0. (Are stale negative advantages harmful?)
- `kl`: the weight of the KL term is 0.1, ten times as large, in both updates. (Is too much drift allowed?)

1. Is replay worse again? It is if `default` minus `equal_updates` is below 0 with every model.
2. A change explains a part of this gap if it is better than `default` with every model. Without an effect, a
   change does so in one of 16 cases, and at least one of five in about one of four. The part is the mean
   of change minus `default`, divided by the mean of `equal_updates` minus `default`. The best explanation is
   the change with the largest part. If 1 is no, there is no gap to explain, and this is the answer.

All runs of the plan are made: BASES times ARMS. A run is kept in OUT as it ends and is not made again, and a
base model while it trains every five minutes; several processes can share OUT with different --bases. A run
that ended is a line of RESULTS, which `--table` prints without the archive. What has a line is not made again
if its stage-1 model is that of this machine, and otherwise the base is begun anew, as in study 3.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd

RESULTS = Path(__file__).with_suffix(".jsonl")
BASES = (321, 322, 323, 324)
WORLD, RATE, STEERING_RATE = "10m", 2.0, 2.5e-4
ARMS = ("equal_updates", "default", "half_rate", "trust_region", "once", "positive_only", "kl")


def main() -> None:
    """Make the runs that are missing, or print what the finished ones say."""
    parser = argparse.ArgumentParser(
        prog="replay_ablation.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tofu", type=Path, help="folder of TOFU's files")
    parser.add_argument("--out", type=Path, help="folder of models and runs")
    parser.add_argument("--bases", type=int, nargs="+", choices=BASES, default=BASES, help="(default: all)")
    parser.add_argument("--table", action="store_true", help="print what the finished runs say")
    given = parser.parse_args()
    if not given.table:
        if not (given.tofu and given.out):
            parser.error("--tofu and --out are needed")
        make(given.tofu, given.out, given.bases)
    print("\n".join(tables([json.loads(line) for line in RESULTS.open()] if RESULTS.exists() else [])))


def make(tofu: Path, out: Path, bases: list[int]) -> None:
    """Make the runs of these bases that have no line, and write a line for each, with the archive's code."""
    import torch

    from benchmarks.study.arms import ARMS as KNOWN
    from benchmarks.study.arms import Arm
    from benchmarks.study.larger.plan import SEED, SIZES
    from benchmarks.study.larger.runs import LargerStudy
    from benchmarks.study.planned.plan import PLANNED, PlannedArm
    from benchmarks.study.planned.runs import PlannedRun, Wanted, write_run

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    replay = KNOWN["quantile_newest"].replay
    changes = {
        "equal_updates": KNOWN["equal_updates"],
        "default": Arm("", replay),
        "half_rate": Arm("", replay, learning_rate=0.5),
        "trust_region": Arm("", replay, settings={"idea": "trust_region"}),
        "once": Arm("", {**replay, "max_reuse": 1}),
        "positive_only": Arm("", replay, settings={"idea": "positive_only"}),
        "kl": Arm("", replay, settings={"kl_coef": 0.1}),
    }
    PLANNED.update({name: PlannedArm(name, changes[name]) for name in ARMS})

    class Noted(LargerStudy):
        def _make(self, *of: Any) -> PlannedRun:
            run = super()._make(*of)
            with RESULTS.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")
            return run

    study = Noted(out, tofu)
    study.steering[WORLD] = replace(SIZES[WORLD].steering, learning_rate=STEERING_RATE)
    if RESULTS.exists():
        for line in RESULTS.open():
            write_run(PlannedRun(**json.loads(line)), out)
    for base in bases:
        print(f"base {base}: {len(ARMS)} runs", file=sys.stderr, flush=True)
        study.runs_of(WORLD, base, [Wanted(arm, RATE, SEED) for arm in ARMS])


def tables(lines: list[dict[str, Any]]) -> list[str]:
    """Markdown: the mean of each arm, its difference to `default` with each model, and its part of the gap.

    Args:
        lines: of RESULTS. Where a base has runs of two stage-1 models, the one with more runs counts.
    """
    if not lines:
        return ["no run has ended"]
    runs = pd.DataFrame(
        [{**{name: line[name] for name in ("base", "model", "arm")}, **_measures(line)} for line in lines]
    )
    counts = runs.groupby(["base", "model"]).size()
    kept = {model for _, model in counts.groupby("base").idxmax()}
    runs = runs[runs["model"].isin(kept)]
    wide = runs.pivot(index="base", columns="arm", values="score").reindex(columns=ARMS)
    differences = wide.sub(wide["default"], axis=0).round(9)
    gap = differences["equal_updates"].dropna()
    means = runs.drop(columns=["base", "model"]).groupby("arm").mean()
    whole = len(gap) == len(BASES)
    said = [
        f"| arm | {' | '.join(means)} | minus default | part of the gap |",
        f"|---|{'---:|' * len(means.columns)}---|---|",
    ]
    for arm in ARMS:
        if arm not in means.index:
            continue
        found = differences[arm].dropna()
        cells = [f"{value:.3f}" for value in means.loc[arm]]
        models = " ".join(f"{value:+.3f}" for value in found)
        explains = whole and len(found) == len(BASES) and found.min() > 0 and gap.min() > 0
        part = f"{found.mean() / gap.mean():.2f}" if explains and arm != "equal_updates" else ""
        said.append(f"| {arm} | {' | '.join(cells)} | {models} | {part} |")
    worse = ("yes" if gap.min() > 0 else "no") if whole else f"{len(gap)} of {len(BASES)} models"
    return [*said, "", f"replay is worse than equal updates with every model: {worse}"]


def _measures(line: dict[str, Any]) -> dict[str, float]:
    final = line["final"]
    sections = ("forget", "retain", "retain_unseen")
    recall = {f"{section} recall": final[f"{section}/recall"] for section in sections}
    forget, retain, unseen = recall.values()
    return {"score": (1 - forget + retain + unseen) / 3, **recall}


if __name__ == "__main__":
    main()
