"""What is logged about replay: metrics of a step, and a record of what was stored and drawn."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .buffer import is_hard
from .group import RolloutGroup

SECONDS = "replay/seconds/"
BUFFER_WORK = ("offer", "draw", "collate", "weigh", "record")
"""Parts of a step that are work on the buffer rather than on the model."""


class Key(NamedTuple):
    """Names a stored group: a prompt has at most one group a step."""

    prompt_index: int
    step: int


class Departure(NamedTuple):
    """A group that left the buffer, and why: "capacity" or "staleness"."""

    key: Key
    reason: str


@dataclass(frozen=True)
class Draw:
    """The groups of one replay update, with their age in steps and how often each was drawn before."""

    groups: list[RolloutGroup]
    staleness: list[int]
    reuse: list[int]


@dataclass
class StepLog:
    """All that replay did at one training step.

    Attributes:
        step: the training step.
        threshold: tau at this step.
        offered: the step's groups.
        stored: the groups that were admitted, in order.
        departures: the groups that left, in order.
        draws: one for each replay update.
        own: the step's own groups that the updates of the equal-update control train on.
        size: groups in the buffer after storing.
        gate_open: whether replay has started.
    """

    step: int
    threshold: float
    offered: Sequence[RolloutGroup]
    stored: list[Key] = field(default_factory=list)
    departures: list[Departure] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    own: list[RolloutGroup] = field(default_factory=list)
    size: int = 0
    gate_open: bool = False

    def metrics(self) -> dict[str, float]:
        """replay/... numbers of the step; those of drawn or own groups are left out where there are none."""
        own = {"replay/own_groups": float(len(self.own)), "replay/own_tokens": _tokens(self.own)}
        reasons = Counter(departure.reason for departure in self.departures)
        return {
            "replay/size": float(self.size),
            "replay/admitted": float(len(self.stored)),
            "replay/evicted": float(len(self.departures)),
            **{f"replay/evicted/{reason}": float(count) for reason, count in reasons.items()},
            "replay/gate_open": float(self.gate_open),
            **offer_metrics(self.offered, self.threshold),
            **draw_metrics(self.draws),
            **(own if self.own else {}),
        }

    def record(self) -> dict[str, Any]:
        """Plain values for JSON: groups are [prompt index, step of storing]."""
        return {
            "step": self.step,
            "threshold": self.threshold,
            "gate_open": self.gate_open,
            "size": self.size,
            "stored": self.stored,
            "evicted": [[*departure.key, departure.reason] for departure in self.departures],
            "drawn": [[[group.prompt_index, group.step] for group in draw.groups] for draw in self.draws],
        }


@contextlib.contextmanager
def timed(part: str, seconds: dict[str, float]) -> Iterator[None]:
    """Add what a part of the step takes to ``seconds``, as replay/seconds/PART."""
    start = time.perf_counter()
    yield
    seconds[SECONDS + part] = seconds.get(SECONDS + part, 0.0) + time.perf_counter() - start


def offer_metrics(groups: Sequence[RolloutGroup], threshold: float) -> dict[str, float]:
    """Tau, and the shares of the offered groups that are hard, and that carry no policy gradient.

    Needs no buffer, so a run without replay logs them too.

    Returns:
        replay/threshold, replay/hard_share, replay/hard_share/{side}, replay/hard_share/{side}/{mode} and
        replay/zero_signal_share; a share of no groups is left out.
    """
    hard: dict[str, list[bool]] = defaultdict(list)
    for group in groups:
        name = "replay/hard_share"
        for part in ("", f"/{group.side}", f"/{group.mode}"):
            name += part
            hard[name].append(is_hard(group.mean_reward, threshold))
    shares = dict(hard)
    if groups:
        shares["replay/zero_signal_share"] = [not group.has_signal for group in groups]
    means = {name: sum(marks) / len(marks) for name, marks in shares.items()}
    return {"replay/threshold": threshold, **means}


def draw_metrics(draws: Sequence[Draw]) -> dict[str, float]:
    """How many groups a step's updates drew, how many of them without policy gradient, how old and how used.

    Returns:
        replay/drawn_groups, replay/drawn_zero_signal, replay/drawn_tokens (counts; of tokens in the prompts
        and responses of all rows) and, where any was drawn,
        replay/staleness_{min,mean,max} (training steps since storing) and replay/reuse_{min,mean,max}
        (times drawn before).
    """
    groups = [group for draw in draws for group in draw.groups]
    metrics = {
        "replay/drawn_groups": float(len(groups)),
        "replay/drawn_zero_signal": float(sum(not group.has_signal for group in groups)),
        "replay/drawn_tokens": _tokens(groups),
    }
    if groups:
        metrics |= _spread("replay/staleness", [age for draw in draws for age in draw.staleness])
        metrics |= _spread("replay/reuse", [count for draw in draws for count in draw.reuse])
    return metrics


def _tokens(groups: Sequence[RolloutGroup]) -> float:
    return float(sum(group.total_tokens for group in groups))


def _spread(name: str, values: Sequence[int]) -> dict[str, float]:
    return {
        f"{name}_min": float(min(values)),
        f"{name}_mean": sum(values) / len(values),
        f"{name}_max": float(max(values)),
    }


def update_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """replay/updates, and the mean (of `...max`: the maximum) of what the step's extra updates reported.

    Of what only some report, such as the seconds of a pass that others need not make, it is that of those.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for update in updates:
        for name, value in update.items():
            values[name].append(value)
    # As verl reduces its own metrics.
    reduce = {name: np.max if "max" in name else np.min if "min" in name else np.mean for name in values}
    reduced = {name: float(reduce[name](of)) for name, of in values.items()}
    return {"replay/updates": float(len(updates)), **reduced}


def part_seconds(driver: Mapping[str, float], updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of each part of the hook, summed over the step's extra updates.

    Args:
        driver: replay/seconds/{offer,draw,collate,update,record} as measured by the hook and the trainer.
        updates: metrics of each update, with the worker's replay/seconds/{log_prob,weigh,train}.

    Returns:
        all of them, replay/seconds (whole extra updates) and replay/bookkeeping_seconds (BUFFER_WORK).
    """
    total = dict(driver)
    for update in updates:
        for name, value in update.items():
            if name.startswith(SECONDS):
                total[name] = total.get(name, 0.0) + value
    total["replay/seconds"] = total.get(SECONDS + "update", 0.0)
    total["replay/bookkeeping_seconds"] = sum(total.get(SECONDS + part, 0.0) for part in BUFFER_WORK)
    return total
