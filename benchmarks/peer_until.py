"""What a held-out score costs, here and in TRL: python -m benchmarks.peer_until [--steps N] [--every N].

Trains one stage-1 model of the embedded world several times on this machine, with the workload of
`benchmarks.peer_trl`, and validates every few steps: the mean reward of greedy answers to val.parquet.
    rule        python -m recipe.rerule.main without replay; its score at the last step is the aim
    rerule      the same with replay
    trl         TRL 1.10.0's GRPO trainer with replay buffer
Prints one JSON object on its last line:
    aim         the score that is to be reached
    RUN         of the first validation that reaches it: steps, seconds, generated (tokens); null where none
                does. Then `last`: score, seconds and generated of the last one
    seconds_ratio, generated_ratio   of each run that reached it to RULE's whole run
Seconds are of training steps without validation and checkpoints. They begin at the first validation, because
the first steps allocate memory and choose kernels. Each run is made once: a difference of a few validations
can be chance.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.peer_trl import ROOT, TRL, PeerError, install_trl, our_steps, trl_loop
from benchmarks.workload import Workload
from data_prep.world.config import WorldConfig
from data_prep.world.stage1 import prepare
from recipe.rerule.platform.select import select

RULE, PEER = "rule", "trl"
OURS: dict[str, tuple[str, ...]] = {RULE: ("replay.enable=false",), "rerule": ()}
"""Our runs, in settings."""
SCORE = "val-core/rerule/world/reward/mean@1"
_NOT_TRAINING = ("timing_s/testing", "timing_s/save_checkpoint")


@dataclass(frozen=True)
class Point:
    """A validation.

    Attributes:
        steps: training steps before it.
        score: mean reward of greedy answers.
        seconds: of these steps; in figures, of those after the first validation.
        generated: tokens of the responses that were sampled in them.
    """

    steps: int
    score: float
    seconds: float
    generated: float


def main() -> None:
    """Make the runs and print what the aim cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_until", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=34, help="training steps of each run (default: 34)")
    parser.add_argument("--every", type=int, default=2, help="steps between validations (default: 2)")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "benchmarks" / "until", metavar="DIR",
                        help="where the model is kept (default: outputs/benchmarks/until)")  # fmt: skip
    parser.add_argument("--cache", type=Path, default=ROOT / "outputs" / "peer_trl", help="where TRL goes")
    arguments = parser.parse_args()
    if arguments.every < 1 or arguments.steps % arguments.every:
        sys.exit(f"error: --steps {arguments.steps} must be a multiple of --every {arguments.every}")
    try:
        print(json.dumps(figures(curves(arguments))))
    except (PeerError, ValueError) as error:
        sys.exit(f"error: {error}")


def curves(arguments: argparse.Namespace) -> dict[str, list[Point]]:
    """The validations of each run, TRL's first: it is quicker to fail. Raises PeerError where a run fails."""
    site = install_trl(arguments.cache / TRL)
    world, model = prepare(arguments.out, WorldConfig())
    load = Workload(model=str(model), train=str(world / "train.parquet"))
    held_out = str(world / "val.parquet")
    select("cpu")  # what it puts into the environment, all runs inherit
    with tempfile.TemporaryDirectory() as folder:
        options = ("--validate", held_out, "--every", f"{arguments.every}")
        found = {PEER: trl_points(trl_loop(load, arguments.steps, site, Path(folder), *options), load)}
    tell(PEER, found[PEER])
    validation = [f"trainer.test_freq={arguments.every}", f"data.val_files={held_out}"]
    for name, overrides in OURS.items():
        with tempfile.TemporaryDirectory() as folder:
            _, steps = our_steps(load, arguments.steps, Path(folder), *overrides, *validation)
        found[name] = our_points(steps, load)
        tell(name, found[name])
    return found


def tell(name: str, points: Sequence[Point]) -> None:
    """Print a run's validations, as it has ended."""
    print(name, json.dumps([asdict(point) for point in points]), flush=True)


def our_points(steps: Sequence[Mapping[str, float]], load: Workload) -> list[Point]:
    """The validations among the metrics of a run's steps, in order."""
    seconds = accumulate(
        data["timing_s/step"] - sum(data.get(name, 0.0) for name in _NOT_TRAINING) for data in steps
    )
    generated = accumulate(data["response_length/mean"] * load.prompts * load.rollouts for data in steps)
    costs = zip(steps, seconds, generated, strict=True)
    return [
        Point(number, data[SCORE], spent, tokens)
        for number, (data, spent, tokens) in enumerate(costs, 1)
        if SCORE in data
    ]


def trl_points(result: Mapping[str, Any], load: Workload) -> list[Point]:
    """The validations of TRL's run, from what `benchmarks.trl_loop` prints."""
    seconds = [*accumulate([result["before"], *result["seconds"]])]
    generated = [*accumulate(tokens * load.prompts * load.rollouts for tokens in result["tokens"])]
    return [
        Point(int(step), score, seconds[int(step) - 1], generated[int(step) - 1])
        for step, score in result["scores"].items()
    ]


def figures(found: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """What is printed; RULE's last validation is the aim."""
    timed = {name: _from_the_first(points) for name, points in found.items()}
    end = timed[RULE][-1]
    told: dict[str, Any] = {"aim": end.score}
    for name, points in timed.items():
        reached = next((point for point in points if point.score >= end.score), None)
        told[name] = {"reached": reached and _rounded(reached), "last": _rounded(points[-1])}
        if reached is not None:
            told[name]["seconds_ratio"] = round(reached.seconds / end.seconds, 3)
            told[name]["generated_ratio"] = round(reached.generated / end.generated, 3)
    return told


def _from_the_first(points: Sequence[Point]) -> list[Point]:
    return [replace(point, seconds=point.seconds - points[0].seconds) for point in points]


def _rounded(point: Point) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(point).items()}


if __name__ == "__main__":
    main()
