"""Where does an extra update point? python -m benchmarks.study.directions --world many --seeds 3 --out DIR

Follows a run of equal updates. Every few steps, before the extra update, it compares the gradients of what
could be made there: the step's batch once more, replay by several rules, or a batch of new prompts. Each
is compared with the policy's own gradient, from fresh responses to many prompts: the cosine, in the metric
in which Adam descends. Prints means over steps and seeds; whole objective, and reward of either side alone.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from benchmarks.study.arms import ARMS, settings_of
from benchmarks.study.loop import Run, ppo_loss
from benchmarks.study.runs import shortened
from benchmarks.study.trial import Data, start
from benchmarks.study.worlds import WORLDS, StudyWorld, prepare
from data_prep.contract import Row
from recipe.rerule.minimal import Batch, Metrics, batches
from recipe.rerule.replay import Replay, RolloutGroup

EVERY = 5
"""Steps from one comparison to the next."""
BATCHES = 12
"""Batches of fresh responses that stand for the policy's own gradient."""
FOLLOWED = "equal_updates"
REPLAYS = ("rerule", "random", "tau1.0", "informative", "informative_newest", "recent", "quantile_newest")
NEW_PROMPTS = "new prompts"
PARTS = ("whole", "forget", "retain")


@dataclass(frozen=True)
class Compared:
    """Cosines of an update's gradient with PARTS of the policy's own, at a step."""

    step: int
    update: str
    cosines: tuple[float, ...]


class Followed(Run):
    """A run that compares, before some of its extra updates, what could be made there."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.found: list[Compared] = []
        self.replays: dict[str, Replay] = {}
        self.prompts: Sequence[Row] = ()
        self._now = 0

    def _rollouts(
        self, batch: Batch, log_probs: Tensor, rows: Sequence[Row], step: int
    ) -> tuple[list[RolloutGroup], list[Row]]:
        groups, parts = super()._rollouts(batch, log_probs, rows, step)
        self._now = step
        for replay in self.replays.values():
            replay.offer(groups, step)
        return groups, parts

    def _extra_update(self, drawn: list[RolloutGroup], batch: Batch) -> Metrics:
        if drawn and self._now % EVERY == 0:
            # Noise of its own: the run goes on as it would have.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._now)
                self.found += self._compare(batch)
        return super()._extra_update(drawn, batch)

    def _compare(self, batch: Batch) -> list[Compared]:
        rows = random.Random(self._now).sample(self.prompts, (BATCHES + 1) * self.settings.prompts)
        fresh = [self._fresh(part) for part in split(rows, self.settings.prompts)]
        updates = self._updates(batch) | {NEW_PROMPTS: fresh[0][0]}
        return cosines(self._now, updates, torch.stack(fresh[1:]).sum(0), self._scale())

    def _updates(self, batch: Batch) -> dict[str, Tensor]:
        """Gradients [parameters] of the batch once more and of the replays, by name."""
        updates = {FOLLOWED: self._gradient(self._loss(batch, self.policy.log_probs(batch)))}
        for name, replay in self.replays.items():
            if groups := replay.draw(self._now):
                updates[name] = self._gradient(self._replay_loss(groups)[0])
        return updates

    def _fresh(self, rows: Sequence[Row]) -> Tensor:
        """Gradients by PARTS on fresh responses, [3, parameters]."""
        batch = self.policy.respond(rows, self.settings.rollouts)
        log_probs = self.policy.log_probs(batch)
        super()._rollouts(batch, log_probs.detach(), rows, self._now)
        sides = [row["reward_model"]["ground_truth"]["type"] for row in rows]
        losses = [self._loss(batch, log_probs)]
        for side in PARTS[1:]:
            own = torch.tensor([each == side for each in sides]).repeat_interleave(self.settings.rollouts)
            advantages = batch["advantages"] * own[:, None]
            mask = batch["response_mask"]
            losses.append(ppo_loss(log_probs, batch["old_log_probs"], advantages, mask, self.settings))
        return torch.stack([self._gradient(loss, retain_graph=True) for loss in losses])

    def _gradient(self, loss: Tensor, retain_graph: bool = False) -> Tensor:
        parameters = list(self.policy.model.parameters())
        found = torch.autograd.grad(loss, parameters, retain_graph=retain_graph)
        return torch.cat([part.flatten() for part in found])

    def _scale(self) -> Tensor:
        """[parameters] by which gradients are multiplied so that plain descent would be Adam's.

        Adam moves by g / (sqrt(v) + eps), so its inner product is g . h / (sqrt(v) + eps).
        """
        group = self.optimizer.param_groups[0]
        states = [self.optimizer.state[parameter] for parameter in group["params"]]
        correction = 1 - group["betas"][1] ** float(states[0]["step"])
        second = torch.cat([state["exp_avg_sq"].flatten() for state in states]) / correction
        return (second.sqrt() + group["eps"]).rsqrt()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study.directions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--world", choices=WORLDS, default="many")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, help="fewer steps than the world's, for a short form")
    parser.add_argument("--tofu", type=Path, metavar="FOLDER", help="TOFU's files, for its world")
    parser.add_argument("--out", type=Path, required=True, help="where the world is, or is built")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    world = shortened(WORLDS[options.world], options.steps)
    try:
        data = Data.read(*prepare(world, options.out / options.world, options.tofu))
    except ValueError as error:
        sys.exit(f"error: {error}")
    print_table([compared(world, data, seed) for seed in range(1, options.seeds + 1)])


def compared(world: StudyWorld, data: Data, seed: int) -> list[Compared]:
    """All comparisons along the run of that seed."""
    run = start(data, settings_of(ARMS[FOLLOWED], world, seed), Followed)
    assert isinstance(run, Followed)
    run.replays = {name: Replay(settings_of(ARMS[name], world, seed).replay) for name in REPLAYS}
    run.prompts = data.train
    source = batches(data.train, run.settings.prompts, seed)
    for step in range(1, run.settings.steps + 1):
        run.step(next(source), step)
        if step % EVERY == 0:
            print(f"seed {seed}: step {step} of {run.settings.steps}", file=sys.stderr, flush=True)
    return run.found


def print_table(runs: Sequence[Sequence[Compared]]) -> None:
    """An update a row: mean of its cosines over the steps, and their deviation between the runs."""
    print(f"{'extra update':24}" + "".join(f"{part:>18}" for part in PARTS))
    for update in (NEW_PROMPTS, FOLLOWED, *REPLAYS):
        columns = zip(*(of_update(found, update) for found in runs), strict=True)
        print(f"{update:24}" + "".join(f"{number(column):>18}" for column in columns))


def of_update(found: Sequence[Compared], update: str) -> list[float]:
    """By PARTS, the mean cosine of an update over a run's steps; NaN where it was never made."""
    own = [each.cosines for each in found if each.update == update]
    return [mean(column) for column in zip(*own, strict=True)] if own else [float("nan")] * len(PARTS)


def number(values: Sequence[float]) -> str:
    """Mean, and deviation where there are several."""
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread}"


def split(rows: Sequence[Row], size: int) -> Iterable[Sequence[Row]]:
    """Neighbours together, `size` at a time."""
    return (rows[first : first + size] for first in range(0, len(rows), size))


def cosines(step: int, updates: Mapping[str, Tensor], own: Tensor, scale: Tensor) -> list[Compared]:
    """Of each update [parameters] with each row of `own` [3, parameters], all times scale [parameters]."""
    scaled = (own * scale).double()
    return [
        Compared(
            step, name, tuple(cosine_similarity((update * scale).double()[None], scaled, dim=1).tolist())
        )
        for name, update in updates.items()
    ]


if __name__ == "__main__":
    main()
