"""Random replay settings and made-up training runs with them, for property tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from recipe.rerule.replay import Replay, ReplayConfig, RolloutGroup
from tests.replay.groups import contents, make_group

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
    return make_group(
        index,
        step,
        rewards=rewards,
        advantages=advantages,
        lengths=[1 + index % 3, 1 + step % 2],
        prompt_length=1 + index,
        side=("forget", "retain")[index % 2],
        mode=("qa", "fb")[index // 2 % 2],
        with_ref=index % 4 != 3,
    )


# For each step the kinds of the groups offered; the place in the list is the prompt's number.
def offers(steps: int, minimum: int = 0) -> st.SearchStrategy[list[list[int]]]:
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
    "start": st.sampled_from(["after", "at"]),
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
    return st.fixed_dictionaries({**CHOICES, **{name: st.just(value) for name, value in fixed.items()}}).map(
        lambda chosen: ReplayConfig(**chosen)
    )


def buffered(replay: Replay) -> list[tuple[object, ...]]:
    """The buffer's contents in order, bit for bit, with the number of draws."""
    return [(stored.reuse_count, contents(stored.group())) for stored in replay.buffer]


def train_step(replay: Replay, kinds: list[int], step: int, ranks: int = 1) -> dict[str, Any]:
    """Offer and draw as a trainer does; all that can be seen of it from outside."""
    replay.offer(groups_of(kinds, step), step)
    draws = [replay.draw(step, ranks) for _ in range(replay.config.updates_per_step)]
    return {
        "drawn": [[contents(group) for group in draw] for draw in draws],
        "gate_open": replay.gate.is_open,
        "buffer": buffered(replay),
        "record": replay.log.record(),
        "metrics": replay.log.metrics(),
    }
