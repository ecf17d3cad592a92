"""Replays of our own that a study tries: each a small change of the loop.

What proves itself belongs in the replay package, as an option of its own; what is here was tried.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.study.loop import Run, tokens_of
from data_prep.contract import Row
from recipe.rerule.minimal import Batch, Metrics, identity
from recipe.rerule.replay import RolloutGroup
from recipe.rerule.replay.buffer import StoredGroup

_SIDES = ("forget", "retain")


class PositiveOnly(Run):
    """Replays the responses that were better than their group's mean, not those that were worse.

    To push down what the current policy may no longer say costs the most where the data are stalest.
    """

    def _replay_update(self, drawn: list[RolloutGroup]) -> Metrics:
        return super()._replay_update(
            [replace(group, advantages=group.advantages.clamp(min=0)) for group in drawn]
        )


class PooledAdvantages(Run):
    """Replays with advantages against the running mean reward of all prompts of the side.

    A group that always failed has no advantage within itself; against the side's mean all of it is bad.
    """

    momentum = 0.8

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._moments: dict[str, Tensor] = {}

    def _rollouts(self, *parts: Any) -> tuple[list[RolloutGroup], list[Row]]:
        groups, rewards = super()._rollouts(*parts)
        for side in _SIDES:
            own = [group.rewards for group in groups if group.side == side]
            if own:
                pooled = torch.cat(own)
                new = torch.stack([pooled.mean(), pooled.var(correction=0)])
                old = self._moments.get(side, new)
                self._moments[side] = self.momentum * old + (1 - self.momentum) * new
        return groups, rewards

    def _replay_update(self, drawn: list[RolloutGroup]) -> Metrics:
        return super()._replay_update([self._against_side(group) for group in drawn])

    def _against_side(self, group: RolloutGroup) -> RolloutGroup:
        mean, variance = self._moments[group.side]
        of_rows = (group.rewards - mean) / (variance.sqrt() + 1e-3)
        return replace(group, advantages=of_rows.repeat_interleave(group.lengths.long()))


class TrustRegion(Run):
    """Learns no more from a token that has moved as far as PPO lets it: better ones up, worse ones down.

    Clipping the weight bounds how much such a token counts; PPO's clipped objective ends its gradient.
    """

    def _weigh(self, batch: Batch, log_ratio: Tensor) -> tuple[Tensor, Metrics]:
        weight, moments = super()._weigh(batch, log_ratio)
        ratio, advantages = log_ratio.exp(), batch["advantages"]
        up = (advantages > 0) & (ratio > 1 + self.settings.clip_high)
        down = (advantages < 0) & (ratio < 1 - self.settings.clip_low)
        return weight * ~(up | down), moments


class Reestimated(Run):
    """GRPO's gradient of the stored prompts under today's policy, by self-normalised importance sampling.

    Within a group, shares proportional to pi_theta / pi_old of whole responses stand for today's policy: the
    mean and the spread of the reward are theirs, so that a prompt it has learnt since counts no more, and
    the advantages are not those of the policy that answered.
    """

    def _weigh(self, batch: Batch, log_ratio: Tensor) -> tuple[Tensor, Metrics]:
        _, moments = super()._weigh(batch, log_ratio)
        rewards = batch["rewards"].view(-1, self.settings.rollouts).to(log_ratio.dtype)
        share = log_ratio.sum(1).view_as(rewards).softmax(1)
        centred = rewards - (share * rewards).sum(1, keepdim=True)
        advantages = centred / ((share * centred.square()).sum(1, keepdim=True).sqrt() + 1e-6)
        batch["advantages"] = advantages.float().view(-1, 1).expand_as(log_ratio)
        weight = (share * self.settings.rollouts).view(-1, 1).expand_as(log_ratio)
        return weight * batch["response_mask"], moments


@dataclass(frozen=True)
class BalancedSampler:
    """Half of the draw from each side, uniformly within it; more from one where the other has too few."""

    rng: random.Random

    def sample(self, groups: Sequence[StoredGroup], k: int, step: int) -> list[StoredGroup]:
        """`k` different groups, as `replay.selection.Sampler` wants it."""
        forget, retain = ([group for group in groups if group.group().side == side] for side in _SIDES)
        of_forget = min(len(forget), max(k // 2, k - len(retain)))
        return self.rng.sample(forget, of_forget) + self.rng.sample(retain, k - of_forget)


class Balanced(Run):
    """Replays as many groups of each side."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        assert self.replay is not None
        self.replay._sampler = BalancedSampler(self.replay._rngs["sampling"])


class Merged(Run):
    """One optimiser step on the sum of both losses: replay without one more step."""

    def _update(self, batch: Batch, log_probs: Tensor) -> float:
        self._own = self._loss(batch, log_probs), batch
        return float("nan")

    def _extra_update(self, drawn: list[RolloutGroup], batch: Batch) -> Metrics:
        if drawn:
            return super()._extra_update(drawn, batch)
        self._descend(torch.zeros(()))
        return {}

    def _descend(self, loss: Tensor) -> float:
        own, own_batch = self._own
        self.cost.update(tokens_of(own_batch))
        return super()._descend(own + loss)


class Filled(Merged):
    """One update a step, as RULE: earlier groups take the places of the step's groups without signal."""

    def _update(self, batch: Batch, log_probs: Tensor) -> float:
        self._log_probs = log_probs
        return super()._update(batch, log_probs)

    def _extra_update(self, drawn: list[RolloutGroup], batch: Batch) -> Metrics:
        assert self.replay is not None
        copies = self.settings.rollouts
        alive = (batch["advantages"] != 0).any(1).view(-1, copies).any(1)
        earlier = [group for group in drawn if group.step < self.replay.log.step][: int((~alive).sum())]
        if earlier and alive.any():
            rows = alive.repeat_interleave(copies)
            kept = {name: plane[rows] for name, plane in batch.items()}
            self._own = self._loss(kept, self._log_probs[rows]), kept
        return super()._extra_update(earlier, batch)

    def _replay_loss(self, drawn: list[RolloutGroup]) -> tuple[Tensor, Metrics]:
        """Of all tokens that the step trains on, the stored ones' share."""
        loss, moments = super()._replay_loss(drawn)
        own, own_batch = self._own
        counts = [
            float(own_batch["response_mask"].sum()),
            float(sum(int(group.response_mask.sum()) for group in drawn)),
        ]
        self._own = own * counts[0] / sum(counts), own_batch
        return loss * counts[1] / sum(counts), moments


class FreshResponses(Run):
    """Replays the prompts: the drawn groups' prompts are answered anew, so that the update is on-policy."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._rows: dict[int, Row] = {}

    def step(self, rows: Sequence[Row], step: int) -> tuple[Metrics, list[RolloutGroup]]:
        self._rows |= {identity(row).prompt_index: row for row in rows}
        return super().step(rows, step)

    def _replay_update(self, drawn: list[RolloutGroup]) -> Metrics:
        rows = [self._rows[group.prompt_index] for group in drawn]
        batch = self.policy.respond(rows, self.settings.rollouts)
        log_probs = self.policy.log_probs(batch)
        self._rollouts(batch, log_probs.detach(), rows, drawn[0].step)
        return {"replay/grad_norm": self._update(batch, log_probs), "replay/updates": 1.0}


IDEAS: dict[str, type[Run]] = {
    "": Run,
    "positive_only": PositiveOnly,
    "pooled": PooledAdvantages,
    "balanced": Balanced,
    "trust_region": TrustRegion,
    "merged": Merged,
    "filled": Filled,
    "reestimated": Reestimated,
    "fresh": FreshResponses,
}
"""By `Settings.idea`."""
