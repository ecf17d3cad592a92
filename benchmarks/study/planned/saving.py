"""Replay that saves prompts: fewer new prompts a step, and stored groups in the places that are left.

One optimiser step a training step, on as many groups as RULE has. Its loss is the mean over all of its
tokens: RULE's loss of the new responses, and the replay loss of the stored ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.study.loop import Run, mean, tokens_of
from recipe.rerule.minimal import Batch, Metrics
from recipe.rerule.replay import RolloutGroup, log_ratios, pad_groups
from recipe.rerule.replay.buffer import StoredGroup

HALF_LIFE = 4.0
"""Training steps in which `use_and_age` halves."""
ALL = sys.maxsize
Order = Callable[[StoredGroup, int], float]
"""What a stored group is worth at a step; the largest are taken."""


def newest(group: StoredGroup, step: int) -> float:
    """The step at which the group was stored."""
    return float(group.step)


def use_and_age(group: StoredGroup, step: int) -> float:
    """Mean advantage magnitude, halved by each use and every HALF_LIFE steps."""
    return group.signal * 2.0 ** -(group.reuse_count + group.staleness(step) / HALF_LIFE)


@dataclass(frozen=True)
class Saving:
    """How a batch is made.

    Attributes:
        fresh: new prompts a step, once the buffer can fill the other places.
        filled: stored groups also take the places of new groups without signal.
        order: which stored groups are taken.
        rollouts: single responses take the places, those with the largest |advantage|, instead of groups.
    """

    fresh: int
    filled: bool = False
    order: Order = newest
    rollouts: bool = False


SAVINGS = {
    "half": Saving(8),
    "quarter": Saving(4),
    "half_filled": Saving(8, filled=True),
    "quarter_filled": Saving(4, filled=True),
    "half_priority": Saving(8, order=use_and_age),
    "quarter_priority": Saving(4, order=use_and_age),
    "half_rollouts": Saving(8, rollouts=True),
    "quarter_rollouts": Saving(4, rollouts=True),
}
"""By `Settings.idea`; of 16 places."""


@dataclass
class EarlierSampler:
    """Takes groups of earlier steps in an order, the later stored first among equals.

    places: how many, which the run says before each draw.
    """

    order: Order
    places: int = 0

    def sample(self, groups: Sequence[StoredGroup], k: int, step: int) -> list[StoredGroup]:
        """At most `places` groups, as `replay.selection.Sampler` wants it; `k` is not used."""
        earlier = [group for group in reversed(groups) if group.step < step]
        return sorted(earlier, key=lambda group: -self.order(group, step))[: self.places]


class SavingRun(Run):
    """A run of one of SAVINGS, which `settings.idea` names; `settings.prompts` is the number of places."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        assert self.replay is not None
        self.saving = SAVINGS[self.settings.idea]
        self.sampler = EarlierSampler(self.saving.order)
        self.replay._sampler = self.sampler

    @property
    def wanted(self) -> int:
        """New prompts for the next step: all that there are places while the buffer cannot fill the rest."""
        assert self.replay is not None
        left = self.settings.prompts - self.saving.fresh
        return self.saving.fresh if len(self.replay.buffer) >= left else self.settings.prompts

    def _update(self, batch: Batch, log_probs: Tensor) -> float:
        """Keeps what the step's one update needs of the new responses; `_extra_update` makes it."""
        rows = kept_rows(batch, self.settings.rollouts, self.saving.filled)
        self._own = {name: plane[rows] for name, plane in batch.items()}, log_probs[rows]
        self._left = self.settings.prompts - int(rows.sum()) // self.settings.rollouts
        self.sampler.places = ALL if self.saving.rollouts else self._left
        return float("nan")

    def _extra_update(self, drawn: list[RolloutGroup], batch: Batch) -> Metrics:
        """The one update, on the kept new responses and the stored ones."""
        own, log_probs = self._own
        self.cost.update(tokens_of(own))
        loss = self._loss(own, log_probs)
        if not drawn or self._left == 0:
            return {"grad_norm": self._descend(loss)}
        stored = self._stored_rows(drawn)
        self.cost.update(tokens_of(stored))
        replayed, metrics = self._stored_loss(stored)
        share = float(
            stored["response_mask"].sum() / (own["response_mask"].sum() + stored["response_mask"].sum())
        )
        norm = self._descend((1 - share) * loss + share * replayed)
        age = mean(self._ages())
        return metrics | {"grad_norm": norm, "replay/token_share": share, "replay/staleness": age}

    def _ages(self) -> list[float]:
        assert self.replay is not None
        return [float(age) for age in self.replay.log.draws[-1].staleness]

    def _stored_rows(self, drawn: list[RolloutGroup]) -> Batch:
        """The responses that take the places left, padded."""
        rows = pad_groups(drawn, self.policy.tokenizer.pad_token_id)
        if self.saving.rollouts:
            chosen = largest_rows(rows["advantages"], self._left * self.settings.rollouts)
            rows = {name: plane[chosen] for name, plane in rows.items()}
        return {name: plane.to(self.policy.model.device) for name, plane in rows.items()}

    def _stored_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """The replay loss of these responses, weighed as one batch, and the moments of their ratios."""
        log_probs = self.policy.log_probs(batch)
        log_ratio = log_ratios(log_probs, batch["old_log_probs"], batch["response_mask"])
        weights, moments = self._weigh(batch, log_ratio)
        return self._weighted_loss(batch, log_probs, weights, self.settings.kl_coef), moments


def kept_rows(batch: Batch, rollouts: int, filled: bool) -> Tensor:
    """bool [R]: the new responses to train on: all, or with `filled` those of groups with signal, if any."""
    alive = (batch["advantages"] != 0).any(1).view(-1, rollouts).any(1)
    kept = alive if filled and bool(alive.any()) else torch.ones_like(alive)
    return kept.repeat_interleave(rollouts)


def largest_rows(advantages: Tensor, count: int) -> Tensor:
    """Places of at most `count` rows of [R, T] with the largest |advantage|, the first among equals."""
    size = advantages.abs().amax(1)
    return torch.sort(size, descending=True, stable=True).indices[:count]
