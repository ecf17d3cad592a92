"""Which setting makes RULE work on a real model: python -m benchmarks.what_works --model FOLDER --out FOLDER

The model of examples/real_model.py is to forget France and keep the rest (docs/real_model.md). `rule` has the
settings of examples/run_real.sh, and every other arm has one change. This was fixed before the first run:

- Each arm runs once with each of SEEDS: its stage 1, STEPS steps of stage 2, and greedy answers to the
  held-out questions by the last step and by the best checkpoint by validation. The unit is a run.
- The goal: forget recall of at most GOAL_FORGET, and retain recall of at least GOAL_RETAIN of the base
  model's, at the last step. An arm that is better with one seed only is said to be so.
- No run is repeated, lengthened or left out after its result was seen. Arms with the same stage 1 share it.

A run that is finished is a line of RESULTS and is not made again, so another machine goes on from there.
Another machine trains another stage-1 model: the line names it by the hash of its weights. --table prints the
table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_suffix(".jsonl")
SEEDS = (1, 2)
STEPS = 30
GOAL_FORGET, GOAL_RETAIN = 0.1, 0.9
RATE, KL = "actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.kl_loss_coef"
UPDATE_PROMPTS = "actor_rollout_ref.actor.ppo_mini_batch_size"
ROWS = ("--probe-share", "0.25", "--val-share", "0.2")
STAGE1 = ("platform=cpu", "experiment=custom")
STAGE2 = (
    "platform=cpu",
    "experiment=custom",
    "data.train_batch_size=16",
    "data.max_prompt_length=128",
    "data.max_response_length=32",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.temperature=0.7",
    f"{UPDATE_PROMPTS}=4",
    f"{RATE}=2e-5",
    f"{RATE}_scheduler_type=cosine",
    f"{RATE}_warmup_steps=3",
    f"{KL}=0.05",
    "sides.weights=by_error",
    "replay.enable=false",
    "trainer.logger=[file]",
)


@dataclass(frozen=True)
class Arm:
    """What an arm changes, as settings of each stage. stage2 is None where stage 1 is all."""

    stage2: tuple[str, ...] | None = ()
    stage1: tuple[str, ...] = ()


ARMS = {
    "stage 1": Arm(None),
    "stage 1, 60 steps, not stopped": Arm(None, ("stop=none", "trainer.total_training_steps=60")),
    "rule": Arm(),
    "rerule": Arm(("replay.enable=true",)),
    "on-policy updates in place of replay": Arm(("replay.enable=true", "replay.update=on_policy")),
    "one update a step": Arm((f"{UPDATE_PROMPTS}=16",)),
    "sides not weighed": Arm(("sides.weights=equal",)),
    "additive reward": Arm(("reward.custom_reward_function.reward_kwargs.form=additive",)),
    "no own answers in stage 1": Arm((), ("data.retain_share=0",)),
    "sides as given": Arm(("data.sides=as_given",)),
    "a fifth of the rate": Arm((f"{RATE}=4e-6",)),
    "constant rate": Arm((f"{RATE}_scheduler_type=constant", f"{RATE}_warmup_steps=-1")),
    "temperature 1": Arm(("actor_rollout_ref.rollout.temperature=1",)),
    "8 prompts, 8 responses": Arm(
        ("data.train_batch_size=8", "actor_rollout_ref.rollout.n=8", f"{UPDATE_PROMPTS}=2")
    ),
    "KL coefficient 0": Arm((f"{KL}=0",)),
    "KL coefficient 0.2": Arm((f"{KL}=0.2",)),
    "LoRA": Arm(("actor_rollout_ref.model.lora_rank=16", f"{RATE}=2e-4")),
}
"""In the order in which they run."""


def main() -> None:
    """Make the runs that have no line yet, or print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.what_works",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="folder that examples/real_model.py made")
    parser.add_argument("--out", type=Path, help="folder of the runs")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="(default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS))
    parser.add_argument("--table", action="store_true", help="print the table of the finished runs")
    given = parser.parse_args()
    if not given.table:
        if not (given.model and given.out):
            parser.error("--model and --out are needed")
        runs = [(arm, seed) for seed in given.seeds for arm in given.arms]
        done = {(line["arm"], line["seed"]) for line in results()}
        for arm, seed in [run for run in runs if run not in done]:
            print(f"{arm}, seed {seed} ...", file=sys.stderr, flush=True)
            line = json.dumps(run(arm, seed, given.model, given.out))
            with RESULTS.open("a") as file:
                file.write(line + "\n")
    print(table(results()))


def run(name: str, seed: int, model: Path, out: Path) -> dict[str, Any]:
    """One run of an arm.

    Raises:
        subprocess.CalledProcessError: a command failed; its log is in `out`.
    """
    arm, start = ARMS[name], time.monotonic()
    data = out / "data"
    if not data.exists():
        source = str(ROOT / "examples" / "france.csv")
        words = ["--source", source, "--name", "France", "--out", str(data), *ROWS]
        command(out / "data.log", "data_prep", "custom", *words)
    first = stage1(arm, seed, model, out)
    models = [f"last={first / 'model'}"]
    if arm.stage2 is not None:
        folder = out / f"{_named(name)}-{seed}"
        command(
            folder.with_suffix(".log"),
            "recipe.rerule.main",
            *STAGE2,
            *arm.stage2,
            f"actor_rollout_ref.model.path={first / 'model'}",
            f"data.train_files={data / 'train.parquet'}",
            f"data.val_files={data / 'val.parquet'}",
            f"data.seed={seed}",
            f"trainer.total_training_steps={STEPS}",
            f"trainer.default_local_dir={folder}",
        )
        models = [f"last={folder}@last", f"best={folder}@best"]
    evaluation = out / f"evaluation-{_named(name)}-{seed}"
    named = [word for each in [f"base={model}", *models] for word in ("--model", each)]
    probes = ["--platform", "cpu", "--probes", str(data / "probes.parquet"), "--out", str(evaluation)]
    command(evaluation.with_suffix(".log"), "recipe.rerule.evaluate", "model", *named, *probes)
    return {
        "arm": name,
        "seed": seed,
        "stage1": hashlib.sha256((first / "model" / "model.safetensors").read_bytes()).hexdigest()[:12],
        "held_out": held_out(evaluation / "responses.parquet"),
        "seconds": round(time.monotonic() - start),
    }


def stage1(arm: Arm, seed: int, model: Path, out: Path) -> Path:
    """The run folder of this stage 1, made if it is not there."""
    which = hashlib.sha256(json.dumps(arm.stage1).encode()).hexdigest()[:6]
    folder = out / f"stage1-{which}-{seed}"
    if not (folder / "model" / "config.json").exists():
        command(
            folder.with_suffix(".log"),
            "recipe.rerule.sft",
            *STAGE1,
            *arm.stage1,
            f"model.path={model}",
            f"data.train_files={out / 'data' / 'sft.parquet'}",
            f"trainer.seed={seed}",
            f"trainer.default_local_dir={folder}",
        )
    return folder


def command(log: Path, module: str, *words: str) -> None:
    """Run a command of the project, with its output in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, stdout=file, stderr=file, check=True)


def held_out(responses: Path) -> dict[str, dict[str, float]]:
    """{model: {"forget recall": ..., "forget refused": ..., "retain recall": ..., "retain refused": ...}}."""
    rows = pd.read_parquet(responses)
    means = rows.groupby(["model", "side"])[["rouge_l", "refused"]].mean()
    found: dict[str, dict[str, float]] = {}
    for (model, side), mean in means.iterrows():
        found.setdefault(model, {}).update(
            {f"{side} recall": round(mean["rouge_l"], 4), f"{side} refused": round(mean["refused"], 4)}
        )
    return found


def results() -> list[dict[str, Any]]:
    """The finished runs."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown: a row for each run, last step and best checkpoint."""
    columns = ("forget recall", "forget refused", "retain recall", "retain refused")
    rows = [
        f"| arm | seed | step | {' | '.join(columns)} | goal |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for line in lines:
        base = line["held_out"]["base"]
        for step, of in line["held_out"].items():
            if step == "base" and line is not lines[0]:
                continue
            reached = of["forget recall"] <= GOAL_FORGET and of["retain recall"] >= round(
                GOAL_RETAIN * base["retain recall"], 4
            )
            name, seed = ("base model", "") if step == "base" else (line["arm"], line["seed"])
            values = " | ".join(f"{of[column]:.2f}" for column in columns)
            rows.append(f"| {name} | {seed} | {step} | {values} | {'yes' if reached else 'no'} |")
    return "\n".join(rows)


def _named(arm: str) -> str:
    return arm.replace(" ", "_").replace(",", "")


if __name__ == "__main__":
    main()
