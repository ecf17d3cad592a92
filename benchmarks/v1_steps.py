"""verl's V1 trainer beside the one before it: python -m benchmarks.v1_steps [--steps N].

Runs stage 2 with replay twice on this machine as a user starts it, with the same model, prompts and settings
but for trainer.use_v1. Prints one JSON object on its last line:
    v0_steps_a_minute, v1_steps_a_minute   from the median seconds between the ends of two steps, without
                                           start-up, the first steps, the last one and steps without a replay
                                           update
    ratio                                  v1_steps_a_minute / v0_steps_a_minute
    v0_parts, v1_parts                     median seconds of each part of a step
    v0_tokens, v1_tokens                   median tokens of a response
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peer_trl import LAST, LEFT_OUT, PeerError, run_ours
from benchmarks.workload import Workload
from benchmarks.world import world
from recipe.rerule.platform.select import select

TRAINERS = {"v0": "trainer.use_v1=false", "v1": "trainer.use_v1=true"}


def main() -> None:
    """Run both trainers and print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.v1_steps", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=16, help="training steps of each trainer (default: 16)")
    steps = parser.parse_args().steps
    if steps < LEFT_OUT + LAST + 1:
        sys.exit(f"error: --steps must be at least {LEFT_OUT + LAST + 1}: the first {LEFT_OUT} are left out")
    try:
        print(json.dumps(compare(steps)))
    except PeerError as error:
        sys.exit(f"error: {error}")


def compare(steps: int) -> dict[str, Any]:
    """Both trainers' figures.

    Raises:
        PeerError: a run failed.
    """
    data = world()
    load = Workload(model=str(data / "model"), train=str(data / "train.parquet"))
    select("cpu")  # what it puts into the environment, both runs inherit
    with tempfile.TemporaryDirectory() as temporary:
        runs = {}
        for name, override in TRAINERS.items():
            folder = Path(temporary) / name
            folder.mkdir()
            runs[name] = run_ours(load, steps, folder, override)
    return figures(runs)


def figures(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Steps a minute of both trainers and their ratio, from `run_ours`'s figures by trainer."""
    rates = {name: 60 / run["ours_seconds"] for name, run in runs.items()}
    found: dict[str, Any] = {"ratio": round(rates["v1"] / rates["v0"], 3)}
    for name, run in runs.items():
        found |= {
            f"{name}_steps_a_minute": round(rates[name], 1),
            f"{name}_parts": run["ours_parts"],
            f"{name}_tokens": run["ours_tokens"],
        }
    return found


if __name__ == "__main__":
    main()
