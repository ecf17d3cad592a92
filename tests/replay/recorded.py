"""Made-up runs and updates whose outcome `fixtures/` keeps, as the first release of the format computed it.

The files are to change only where the behaviour is meant to; `write` makes them.

fixtures/buffer/          a buffer that `save` wrote after step SAVED_AFTER of BUFFER's run
fixtures/buffer_goes_on.json  the steps of that run after it, with the groups drawn
fixtures/runs.json        for each of RUNS, record and metrics of each step
fixtures/updates.json     for each of UPDATES, metrics, weights, losses and gradient of one replay update
"""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from recipe.rerule import replay
from recipe.rerule.replay import ImportanceConfig, Replay, ReplayConfig, RolloutGroup
from tests.replay.groups import keys, make_group

FOLDER = Path(__file__).parent / "fixtures"
STEPS, PROMPTS = 18, 7
PAPER = {
    "threshold_rule": "fixed",
    "threshold": 0.6,
    "require_signal": False,
    "sampling": "uniform",
    "min_groups": 4,
    "warmup_steps": 3,
    "capacity": 12,
    "groups_per_update": 4,
}
RECOMMENDED = {
    "min_groups": 4,
    "warmup_steps": 3,
    "capacity": 12,
    "groups_per_update": 4,
    "threshold_window": 16,
}
BUFFER = {**PAPER, "admission": "random", "max_staleness": 4, "updates_per_step": 2}
SAVED_AFTER = 11
RUN = {"rollout.n": 4, "model": "toy"}
RUNS: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "recommended": RECOMMENDED,
    "random": {**PAPER, "admission": "random"},
    "all, staleness": {**RECOMMENDED, "admission": "all", "max_staleness": 2, "updates_per_step": 2},
    "frozen": {**PAPER, "store_after_start": False, "start": "at"},
    "saved": BUFFER,
}
UPDATES: dict[str, dict[str, Any]] = {
    "paper": {},
    "sequence": {"level": "sequence"},
    "sequence_sum": {"level": "sequence_sum", "normalize": False},
    "unbounded": {"clip_low": 0.0, "clip_high": math.inf},
}


@functools.cache
def offered(step: int) -> list[RolloutGroup]:
    """The groups of one step: four rewards each, of hard and easy prompts, some without signal."""
    rng = random.Random(step)
    return [_group(index, step, rng) for index in range(PROMPTS)]


def _group(index: int, step: int, rng: random.Random) -> RolloutGroup:
    chance = 0.0 if index == 0 else index / PROMPTS
    rewards = [float(rng.random() < chance) for _ in range(4)]
    mean = sum(rewards) / 4
    return make_group(
        index,
        step,
        rewards=rewards,
        advantages=[reward - mean for reward in rewards],
        lengths=[1 + rng.randrange(4) for _ in range(4)],
        side=("forget", "retain")[index % 2],
        mode=("qa", "fb")[index // 2 % 2],
    )


def steps(memory: Replay, first: int = 1) -> Iterator[dict[str, Any]]:
    """Record and metrics of each step of a run, as JSON gives them back."""
    for step in range(first, STEPS + 1):
        memory.offer(offered(step), step)
        for _ in range(memory.config.updates_per_step):
            memory.draw(step, multiple_of=2)
        yield json.loads(json.dumps({"record": memory.log.record(), "metrics": memory.log.metrics()}))


def replay_update(settings: dict[str, Any]) -> dict[str, Any]:
    """One replay update of three groups at loss level, with KL, in float64."""
    groups = [group for group in offered(2) if group.has_signal][:3]
    rows = replay.pad_groups(groups, pad_token_id=0)
    mask = rows["response_mask"]
    generator = torch.Generator().manual_seed(7)
    moved = 0.3 * torch.randn(mask.shape, generator=generator, dtype=torch.float64)
    log_probs = (rows["old_log_probs"].double() + moved).requires_grad_()
    weights, metrics = replay.weigh(
        replay.log_ratios(log_probs, rows["old_log_probs"], mask), mask, ImportanceConfig(**settings)
    )
    loss = replay.replay_loss(
        log_probs,
        weights,
        rows["advantages"].double(),
        mask,
        replay.token_mean,
        ref_log_probs=rows["ref_log_prob"].double(),
        kl_coef=0.01,
        kl=replay.low_var_kl,
    )
    loss.total.backward()
    assert log_probs.grad is not None
    return {
        "groups": [list(key) for key in keys(groups)],
        "metrics": metrics,
        "weights": weights.tolist(),
        "losses": [float(part.detach()) for part in loss],
        "gradient": log_probs.grad.tolist(),
    }


def write(folder: Path) -> None:
    """All that `fixtures/` holds, into an empty folder."""
    _write(
        folder / "runs.json", {name: list(steps(Replay(ReplayConfig(**own)))) for name, own in RUNS.items()}
    )
    _write(folder / "updates.json", {name: replay_update(own) for name, own in UPDATES.items()})
    memory = Replay(ReplayConfig(**BUFFER))
    goes_on = steps(memory)
    for _ in range(SAVED_AFTER):
        next(goes_on)
    replay.save(memory, folder / "buffer", RUN)
    _write(folder / "buffer_goes_on.json", list(goes_on))


def _write(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values) + "\n")
