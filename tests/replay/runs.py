"""Made-up training runs: one that is fixed, and random settings and offers for property tests."""

import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st

from recipe.rerule.replay import Replay, ReplayConfig, RolloutGroup
from tests.replay.groups import PAPER_RULES, contents, make_group

STEPS, PROMPTS = 18, 7
SIZES = {"min_groups": 4, "warmup_steps": 3, "capacity": 12, "groups_per_update": 4}
PAPER: dict[str, Any] = {**PAPER_RULES, **SIZES}


def labels(index: int) -> dict[str, str]:
    """Side and mode of a prompt."""
    return {"side": ("forget", "retain")[index % 2], "mode": ("qa", "fb")[index // 2 % 2]}


@cache
def offered(step: int) -> list[RolloutGroup]:
    """The groups of one step: four rewards each, of hard and easy prompts, some without signal."""
    rng, groups = random.Random(step), []
    for index in range(PROMPTS):
        rewards = [float(rng.random() < index / PROMPTS) for _ in range(4)]
        advantages = [reward - sum(rewards) / 4 for reward in rewards]
        lengths = [1 + rng.randrange(4) for _ in range(4)]
        groups.append(make_group(index, step, rewards, lengths, advantages=advantages, **labels(index)))
    return groups


def steps(memory: Replay, first: int = 1, last: int = STEPS) -> Iterator[dict[str, Any]]:
    """Record and metrics of each step of a run with the groups of `offered`, as JSON gives them back."""
    for step in range(first, last + 1):
        memory.offer(offered(step), step)
        for _ in range(memory.config.updates_per_step):
            memory.draw(step, multiple_of=2)
        yield json.loads(json.dumps({"record": memory.log.record(), "metrics": memory.log.metrics()}))


# (rewards, advantages) of a group: equal and unequal, with and without signal.
KINDS = [
    ((0.0, 0.0), (0.0, 0.0)),
    ((0.0, 1.0), (-1.0, 1.0)),
    ((1.0, 1.0), (0.0, 0.0)),
    ((0.5, 0.25), (0.5, -0.5)),
    ((1.0, 0.5), (0.25, -0.25)),
]


@cache
def group_of(index: int, step: int, kind: int) -> RolloutGroup:
    """One made-up group; its extents, side, mode and reference differ with the prompt."""
    rewards, advantages = KINDS[kind]
    extents: dict[str, Any] = {"lengths": [1 + index % 3, 1 + step % 2], "prompt_length": 1 + index}
    own = {**extents, **labels(index), "with_ref": index % 4 != 3}
    return make_group(index, step, rewards, advantages=advantages, **own)


def offers(steps: int, minimum: int = 0) -> st.SearchStrategy[list[list[int]]]:
    """For each step the kinds of the groups offered; the place in the list is the prompt's number."""
    step = st.lists(st.integers(0, len(KINDS) - 1), max_size=5)
    return st.lists(step, min_size=minimum, max_size=steps)


def groups_of(kinds: list[int], step: int) -> list[RolloutGroup]:
    return [group_of(index, step, kind) for index, kind in enumerate(kinds)]


CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "updates_per_step": st.integers(1, 3),
    "threshold": st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    "threshold_rule": st.sampled_from(["fixed", "quantile"]),
    "threshold_quantile": st.sampled_from([0.0, 0.4, 1.0]),
    "threshold_window": st.integers(1, 9),
    "min_groups": st.integers(1, 4),
    "warmup_steps": st.integers(0, 5),
    "admission": st.sampled_from(["hard", "random", "all"]),
    "require_signal": st.booleans(),
    "store_after_start": st.booleans(),
    "capacity": st.integers(4, 9),
    "max_staleness": st.none() | st.integers(0, 4),
    "groups_per_update": st.integers(1, 4),
    "sampling": st.sampled_from(["uniform", "recent"]),
    "seed": st.integers(-3, 3),
}


def configs(**fixed: Any) -> st.SearchStrategy[ReplayConfig]:
    """Settings at random, all that decide contents or draws, but for those given."""
    chosen = {**CHOICES, **{name: st.just(value) for name, value in fixed.items()}}
    return st.builds(ReplayConfig, **chosen)


def buffered(replay: Replay) -> list[tuple[object, ...]]:
    """The buffer's contents in order, bit for bit, with the number of draws."""
    return [(stored.reuse_count, contents(stored.group())) for stored in replay.buffer]


def train_step(replay: Replay, kinds: list[int], step: int, ranks: int = 1) -> dict[str, Any]:
    """Offer and draw as a trainer does; all that can be seen of it from outside."""
    replay.offer(groups_of(kinds, step), step)
    draws = [replay.draw(step, ranks) for _ in range(replay.config.updates_per_step)]
    return {
        "drawn": [[contents(group) for group in draw] for draw in draws],
        "gate_open": replay.is_open,
        "buffer": buffered(replay),
        "record": replay.log.record(),
        "metrics": replay.log.metrics(),
    }
