"""The same arms through verl: python -m benchmarks.study.verl_path --arms rule rerule --seeds 2 --out DIR.

Each run is the recipe itself (Ray, FSDP, vLLM), on the study's world and stage-1 model and with the settings
of the in-process loop, and is kept in DIR/WORLD-verl/runs as a run of the study. So the two can be compared:
they share the method, and neither code, kernels nor random numbers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.study.arms import ARMS, settings_of
from benchmarks.study.loop import Settings
from benchmarks.study.runs import StudyError, StudyRun, check_model, commit, run_file, write_run
from benchmarks.study.trial import Data, section_means
from benchmarks.study.worlds import WORLDS, StudyWorld, prepare
from data_prep.contract import Row
from recipe.rerule.minimal import Metrics
from recipe.rerule.reporting.evaluations import read_lines
from recipe.rerule.runs.history import Run, read_run

SUFFIX = "-verl"
CURVES = {
    "reward/forget": "reward/forget/mean",
    "reward/retain": "reward/retain/mean",
    "hard_share": "replay/hard_share",
    "replay/effective_sample_size": "replay/effective_sample_size",
}
"""Our curves by verl's metrics."""
ARMS_HERE = [
    name
    for name, arm in ARMS.items()
    if arm.trains and arm.compute_of is None and not arm.settings.get("idea")
]
"""Those that the recipe's settings can express."""


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.verl_path", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--arms", nargs="+", choices=ARMS_HERE, default=["rule", "rerule"], metavar="ARM")
    parser.add_argument("--seeds", type=int, default=2, help="how many, from 1 on (default: 2)")
    parser.add_argument("--world", choices=WORLDS, default="many")
    parser.add_argument("--tofu", type=Path, metavar="FOLDER", help="TOFU's files, for its world")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        places = prepare(WORLDS[options.world], options.out / options.world, options.tofu)
        for seed in range(1, options.seeds + 1):
            for arm in options.arms:
                one_run(options.world, WORLDS[options.world], places, arm, seed, options.out)
    except ValueError as error:
        sys.exit(f"error: {error}")


def one_run(name: str, world: StudyWorld, places: tuple[Path, Path], arm: str, seed: int, out: Path) -> None:
    """Make and keep a run unless it is kept.

    Raises:
        StudyError: the recipe failed, and the message names its log; or the seed was begun from another
            stage-1 model.
    """
    if run_file(out, name + SUFFIX, arm, seed).is_file():
        return
    data = Data.read(*places)
    check_model(data.fingerprint, seed, out / (name + SUFFIX))
    settings = settings_of(ARMS[arm], world, seed)
    folder = run_folder(out, name, arm, seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"{name} through verl: {arm}, seed {seed} ...", flush=True)
    train(settings, *places, folder)
    run = read_run(arm, folder)
    final = validated(run, data.probes) | {"steps": float(run.steps[-1])}
    curves = {ours: run.series(theirs) for ours, theirs in CURVES.items()}
    made = StudyRun(name + SUFFIX, arm, seed, commit(), asdict(settings), final, curves, data.fingerprint)
    write_run(made, out)


def run_folder(out: Path, world: str, arm: str, seed: int) -> Path:
    """The recipe's run folder of a run."""
    return out / (world + SUFFIX) / f"{arm}-{seed}" / "run"


def train(settings: Settings, data: Path, model: Path, folder: Path) -> None:
    """The recipe's command, its log beside its run folder. Raises StudyError where it fails."""
    log = folder.with_name("log.txt")
    if log.exists():
        raise StudyError(f"{log} is of an earlier run, which failed; move {folder.parent} away")
    command = [sys.executable, "-m", "recipe.rerule.main", *arguments(settings, data, model, folder)]
    with log.open("w") as output:
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"HF_HUB_OFFLINE": "1"}
        )
    if done.returncode:
        raise StudyError(f"the run through verl failed; see {log}")


def arguments(settings: Settings, data: Path, model: Path, folder: Path) -> list[str]:
    """The recipe's overrides for the loop's settings; validation on the held-out probes at the end."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    values = {
        "experiment": "tiny",
        "actor_rollout_ref.model.path": model,
        "data.train_files": data / "train.parquet",
        "data.val_files": data / "probes.parquet",
        "data.seed": settings.seed,
        "data.train_batch_size": settings.prompts,
        "data.max_response_length": settings.response_limit,
        f"{actor}.ppo_mini_batch_size": settings.prompts,
        f"{actor}.optim.lr": settings.learning_rate,
        f"{actor}.optim.weight_decay": settings.weight_decay,
        f"{actor}.optim.clip_grad": settings.grad_clip,
        f"{actor}.clip_ratio_low": settings.clip_low,
        f"{actor}.clip_ratio_high": settings.clip_high,
        f"{actor}.kl_loss_coef": settings.kl_coef,
        f"{rollout}.n": settings.rollouts,
        f"{rollout}.temperature": settings.temperature,
        "trainer.total_training_steps": settings.steps,
        "trainer.test_freq": settings.steps,
        "trainer.validation_data_dir": folder / "records" / "validation",
        "trainer.logger": "[file]",
        "trainer.default_local_dir": folder,
    }
    values |= dict(flat(settings.reward, "reward.custom_reward_function.reward_kwargs"))
    values |= dict(flat(asdict(settings.replay), "replay"))
    if settings.replay.threshold_rule == "quantile":
        values["replay.threshold"] = None  # which the recipe refuses where nothing uses it
    return [f"{name}={plain(value)}" for name, value in values.items()]


def flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted names of nested values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", value


def plain(value: object) -> str:
    """As Hydra reads it."""
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def validated(run: Run, probes: list[Row]) -> Metrics:
    """Measures by section of the last validation, which asked the probes in their order."""
    lines = list(read_lines(run.folder / "records" / "validation" / f"{run.steps[-1]}.jsonl"))
    return section_means(probes, lines)


if __name__ == "__main__":
    main()
