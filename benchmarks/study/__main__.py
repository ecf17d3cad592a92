"""Arms x seeds on a world: python -m benchmarks.study --arms rule rerule --seeds 2 --out DIR.

Each run is kept in DIR/WORLD/runs as it ends, with its settings and commit; started again, the command does
what is missing. Prints the means over the seeds and, of each arm against the first, the mean of the paired
differences.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.study.arms import ARMS, settings_of
from benchmarks.study.loop import Settings
from benchmarks.study.trial import Data, run_trial
from benchmarks.study.worlds import WORLDS, StudyWorld, prepare

COLUMNS = {
    "forget/recall": "forget recall",
    "retain/recall": "retain recall",
    "retain_unseen/recall": "unseen recall",
    "retain_unseen/refused": "unseen refused",
    "early_hard/retain": "early-hard reward",
    "compute": "compute",
}
VALIDATE_EVERY = 10


class StudyError(ValueError):
    """What the folder holds does not fit; the message is one line."""


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["rule", "rerule"], metavar="ARM")
    parser.add_argument("--seeds", type=int, default=2, help="how many, from --first-seed on (default: 2)")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--world", choices=WORLDS, default="many")
    parser.add_argument("--steps", type=int, help="fewer steps than the world's, for a short form")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    try:
        runs = study(options.world, options.arms, seeds, options.out, options.steps)
    except (StudyError, ValueError) as error:
        sys.exit(f"error: {error}")
    print_table(runs, options.arms, seeds)


def study(
    name: str, arms: Sequence[str], seeds: Sequence[int], out: Path, steps: int | None = None
) -> dict[tuple[str, int], dict[str, Any]]:
    """Every run of `arms` x `seeds`, by both; those that are kept are read.

    Raises:
        StudyError: a kept run has other settings.
    """
    world = WORLDS[name]
    if steps is not None:
        world = replace(world, settings={**world.settings, "steps": steps})
    data = Data.read(*prepare(world, out / name))
    ordered = sorted(arms, key=lambda arm: ARMS[arm].compute_of is not None)
    runs: dict[tuple[str, int], dict[str, Any]] = {}
    for seed in seeds:
        for arm in ordered:
            runs[arm, seed] = one_run(world, data, arm, seed, out / name / "runs")
    return runs


def one_run(world: StudyWorld, data: Data, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """A run, from its file where it is kept. A run of equal compute makes the other arm's first."""
    other = ARMS[arm].compute_of
    compute = one_run(world, data, other, seed, folder)["final"]["compute"] if other else None
    settings = settings_of(ARMS[arm], world, seed, compute)
    path = folder / f"{arm}-{seed}.json"
    if path.is_file():
        return kept(path, settings)
    print(f"{arm}, seed {seed} ...", flush=True)
    measured = run_trial(data, settings, VALIDATE_EVERY, world.early_steps)
    run = {"arm": arm, "seed": seed, "commit": commit(), "settings": asdict(settings), **asdict(measured)}
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(run))
    part.replace(path)
    return run


def kept(path: Path, settings: Settings) -> dict[str, Any]:
    """The run in a file.

    Raises:
        StudyError: it has other settings, or is not readable.
    """
    try:
        run: dict[str, Any] = json.loads(path.read_text())
        same = run["settings"] == json.loads(json.dumps(asdict(settings)))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise StudyError(f"{path} is no run of this study: {error!r}; move it away") from error
    if not same:
        raise StudyError(f"{path} is a run with other settings; choose another --out or move it away")
    return run


def commit() -> str:
    """The commit of the code, with "+" where it was changed since; "unknown" outside a repository."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip() or "unknown"


def print_table(
    runs: Mapping[tuple[str, int], Mapping[str, Any]], arms: Sequence[str], seeds: Sequence[int]
) -> None:
    """Means over the seeds, and below them the mean paired differences to the first arm."""
    print(f"{'':16}" + "".join(f"{title:>19}" for title in COLUMNS.values()))
    for arm in arms:
        print(f"{arm:16}" + "".join(cell(mean_of(runs, arm, name, seeds)) for name in COLUMNS))
    for arm in arms[1:]:
        differences = [difference(runs, arm, arms[0], name, seeds) for name in COLUMNS]
        print(f"{arm + ' - ' + arms[0]:16}" + "".join(cell(value) for value in differences))


def mean_of(
    runs: Mapping[tuple[str, int], Mapping[str, Any]], arm: str, name: str, seeds: Sequence[int]
) -> float:
    """NaN where a run does not have the measure."""
    return mean(runs[arm, seed]["final"].get(name, float("nan")) for seed in seeds)


def difference(
    runs: Mapping[tuple[str, int], Mapping[str, Any]], arm: str, base: str, name: str, seeds: Sequence[int]
) -> float:
    """Mean over the seeds of an arm's measure minus the base's at the same seed."""
    return mean_of(runs, arm, name, seeds) - mean_of(runs, base, name, seeds)


def cell(value: float) -> str:
    """A number in a column of the table."""
    return f"{value:>19.0f}" if abs(value) >= 100 else f"{value:>19.3f}"


if __name__ == "__main__":
    main()
