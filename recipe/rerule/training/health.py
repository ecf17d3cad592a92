"""Whether a stage 2 does what it is for: warnings while it runs, and the score of a validation.

The numbers are those of `batches.Rollouts.side_metrics`. docs/evaluation.md#warnings-while-a-run-trains has
the rules.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe.rerule.replay.group import SIDES
from recipe.rerule.runs.history import mean

WINDOW = 4
"""Steps over which a mean is taken, so that no single batch gives a warning."""
MARGIN, ERRORS = 0.1, 3.0
"""What a share must have moved by: more than this, and more than so many standard errors."""
MOST_EMPTY, REFUSES_ALL, REFUSES_NONE = 0.1, 0.9, 0.02
LEARNT = 0.9
"""Mean reward from which a side without mixed groups has nothing left to learn."""
SCORE = "val-health/score"
_LOWER_RATE = "lower actor_rollout_ref.actor.optim.lr"


class Health:
    """Follows the metrics of a run step by step.

    Attributes:
        over_at: the step at which a fault had held for `stop_after` steps; None while none has.
        over_by: the warning of that fault.
    """

    def __init__(self, stop_after: int | None = None) -> None:
        self.over_at: int | None = None
        self.over_by = ""
        self._stop_after = stop_after
        self._values: dict[str, list[float]] = defaultdict(list)
        self._held: dict[str, int] = {}
        self._told: set[str] = set()

    def note(self, step: int, metrics: Mapping[str, Any]) -> list[str]:
        """Take the metrics of a step; returns the warnings that are new, one of each kind in a run."""
        for name, value in metrics.items():
            if name.endswith("/mean") and isinstance(value, int | float) and value == value:
                self._values[name].append(value)
        found = dict(self._faults())
        self._held = {kind: self._held.get(kind, 0) + 1 for kind in found}
        new = [f"step {step}: {text}" for kind, text in found.items() if kind not in self._told]
        self._told |= set(found)
        for kind, steps in self._held.items():
            if self.over_at is None and self._stop_after is not None and steps >= self._stop_after:
                self.over_at, self.over_by = step, found[kind]
        return new

    def _faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong now: a kind, and in words what is seen, the likely cause and what to do."""
        for side in SIDES:
            empty, mixed, reward = (
                self._recent(f"{name}/{side}/mean") for name in ("empty", "mixed", "reward")
            )
            if empty > MOST_EMPTY:
                yield (
                    f"empty {side}",
                    f"{empty:.0%} of the {side} responses of the last {WINDOW} steps have no word; the "
                    "reward pays for saying nothing, or the model is losing its language: use form=guarded "
                    f"(reward.custom_reward_function.reward_kwargs), or {_LOWER_RATE}",
                )
            if mixed == 0 and reward < LEARNT:
                yield (
                    f"mixed {side}",
                    f"no {side} group of the last {WINDOW} steps is mixed (mean reward {reward:.2f}): all "
                    "responses to a prompt earn the same, so nothing is learnt from them; start from a stage "
                    "1 that refuses some prompts and answers others, or raise "
                    "actor_rollout_ref.rollout.temperature or actor_rollout_ref.rollout.n",
                )
            first, last = self._moved(f"cut/{side}/mean")
            if last > first:
                yield (
                    f"cut {side}",
                    f"{side} responses cut at the limit of length rose from {first:.0%} in the first "
                    f"{WINDOW} steps to {last:.0%} in the last; the policy no longer ends its responses, "
                    "and the reward hardly sees what follows a refusal or a right answer: "
                    f"{_LOWER_RATE}, or raise actor_rollout_ref.actor.kl_loss_coef",
                )
        if (refused := self._recent("refused/retain/mean")) > REFUSES_ALL:
            yield (
                "refuses all",
                f"{refused:.0%} of the retain responses of the last {WINDOW} steps are refusals; the policy "
                f"refuses whatever it is asked: take an earlier step of stage 1, {_LOWER_RATE}, or give more "
                "retain prompts",
            )
        if (refused := self._recent("refused/forget/mean")) < REFUSES_NONE:
            yield (
                "refuses none",
                f"{refused:.0%} of the forget responses of the last {WINDOW} steps are refusals; stage 1 "
                "taught too few, or the reward pays more for something else: train stage 1 for more steps, "
                "and look at records/rollouts",
            )
        first, last = self._moved("right/retain/mean")
        if last < first:
            yield (
                "right",
                f"right answers to retain prompts fell from {first:.0%} in the first {WINDOW} steps to "
                f"{last:.0%} in the last; the policy is losing what it should keep: {_LOWER_RATE}, raise "
                "actor_rollout_ref.actor.kl_loss_coef or data.train_batch_size, or give more retain prompts",
            )
        first, last = self._moved("leaked/forget/mean")
        if last > first:
            yield (
                "leaked",
                f"forget responses with a right answer rose from {first:.0%} in the first {WINDOW} steps "
                f"to {last:.0%} in the last; the reward pays for an answer: use form=guarded "
                "(reward.custom_reward_function.reward_kwargs), and look at records/rollouts",
            )

    def _recent(self, name: str) -> float:
        """The mean over the last steps; nan, neither above nor below any bound, where there are too few."""
        values = self._values.get(name, [])
        return mean(values[-WINDOW:]) if len(values) >= WINDOW else math.nan

    def _moved(self, name: str) -> tuple[float, float]:
        """The means over the first and the last steps; nan where they do not differ by more than noise.

        The variance of one step is taken from the differences of neighbouring steps, which a trend hardly
        enters: half of their mean square.
        """
        values = self._values.get(name, [])
        if len(values) < 2 * WINDOW:
            return math.nan, math.nan
        first, last = mean(values[:WINDOW]), mean(values[-WINDOW:])
        variance = mean([(after - before) ** 2 for before, after in itertools.pairwise(values)]) / 2
        error = math.sqrt(2 * variance / WINDOW)
        has_moved = abs(last - first) > max(MARGIN, ERRORS * error)
        return (first, last) if has_moved else (math.nan, math.nan)


def answers_alone(parts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parts of the reward, of which a response that refuses is not right, whatever it says besides."""
    if not {"right", "refused"} <= parts.keys():
        return parts
    pairs = zip(parts["right"], parts["refused"], strict=True)
    return {**parts, "right": [right and not refused for right, refused in pairs]}


def validation_metrics(sides: Sequence[str], parts: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """What a validation says of each side, and the score of the step.

    Args:
        sides: of each response, forget or retain.
        parts: of each response, what the reward function returned; None where it failed.

    Returns:
        val-health/{side}/{part}, means of the parts of the reward; and, where refusals of both sides are
        known, val-health/score, the mean of forget/refused and retain/right.
    """
    found, parts = {}, answers_alone(parts)
    for side, names in (
        ("forget", ("refused", "leaked", "empty")),
        ("retain", ("refused", "right", "empty")),
    ):
        for name in names:
            column = zip(sides, parts.get(name, [None] * len(sides)), strict=True)
            values = [float(value) for of, value in column if of == side and value is not None]
            if values:
                found[f"val-health/{side}/{name}"] = mean(values)
    forget, retain = found.get("val-health/forget/refused"), found.get("val-health/retain/right")
    if forget is not None and retain is not None and "val-health/retain/refused" in found:
        found[SCORE] = (forget + retain) / 2
    return found
