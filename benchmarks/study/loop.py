"""The study's loop: `recipe.rerule.minimal`, and what a study asks of it beyond the method.

That is the cost in tokens, the policy of policy.py, more metrics, and the control for more updates. What
ideas.py changes are single methods of `Run`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.study.policy import Policy
from data_prep.contract import Row
from recipe.rerule import minimal
from recipe.rerule.minimal import Batch, Metrics
from recipe.rerule.replay import ReplayConfig, RolloutGroup, is_hard, low_var_kl, token_mean

DUAL_CLIP = 3.0
"""verl's clip_ratio_c: bound on the ratio where the advantage is negative."""


@dataclass(frozen=True)
class Settings(minimal.Settings):
    """One run. Defaults are RULE's, and `experiment=tiny`'s sizes.

    compute: where given, the run goes on until it has cost that much (see `Cost`), whatever `steps` is.
    clip_low, clip_high: of PPO's clip, which acts where a batch is updated on again.
    reward: the paper's form, which all studies ran with.
    hard_below: mean reward below which measures count a group as hard, whatever replay's threshold is.
    idea: what `trial` changes of the loop, see `ideas.IDEAS`.
    """

    compute: float | None = None
    clip_low: float = 0.2
    clip_high: float = 0.3
    seed: int = 0
    reward: Mapping[str, Any] = field(default_factory=lambda: {"form": "additive", "rouge": "recall"})
    hard_below: float = 0.6
    idea: str = ""
    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(enable=False))


@dataclass
class Cost:
    """Tokens through the model, a forward pass as 1 and a backward pass as 2.

    As the verl recipe does it: generation, old and reference log-probs 1 each, an update 3.

    generated: tokens of sampled responses.
    """

    tokens: float = 0.0
    generated: int = 0

    def rollout(self, tokens: int, generated: int) -> None:
        """Generation and both log-probs of so many tokens, of which `generated` are responses."""
        self.tokens += 3 * tokens
        self.generated += generated

    def update(self, tokens: int) -> None:
        """One update on so many tokens."""
        self.tokens += 3 * tokens


class Run(minimal.Run):
    """A run of stage 2: `step` by `step`, with everything a study asks of it."""

    settings: Settings

    def __init__(self, model: Any, reference: Any, tokenizer: Any, settings: Settings) -> None:
        super().__init__(model, reference, tokenizer, settings)
        self.policy = Policy(model, tokenizer, settings.response_limit, settings.temperature)
        self.cost = Cost()

    def goes_on(self, step: int) -> bool:
        """Whether a step follows this one: by compute where that is given, else by number."""
        limit = self.settings.compute
        return step < self.settings.steps if limit is None else self.cost.tokens < limit

    def step(self, rows: Sequence[Row], step: int) -> tuple[Metrics, list[RolloutGroup]]:
        """One training step on these prompts, with its seconds and the cost of the run up to here."""
        start = time.perf_counter()
        metrics, groups = super().step(rows, step)
        return metrics | {"compute": self.cost.tokens, "seconds": time.perf_counter() - start}, groups

    def _rollouts(
        self, batch: Batch, log_probs: Tensor, rows: Sequence[Row], step: int
    ) -> tuple[list[RolloutGroup], list[Row]]:
        self.cost.rollout(tokens_of(batch), int(batch["response_mask"].sum()))
        return super()._rollouts(batch, log_probs, rows, step)

    def _metrics(self, groups: Sequence[RolloutGroup], answers: Sequence[Row]) -> Metrics:
        """Mean reward by side, shares of groups that are hard and that carry a gradient, and of refusals."""
        threshold = self.settings.hard_below
        return super()._metrics(groups, answers) | {
            "hard_share": mean([is_hard(group.mean_reward, threshold) for group in groups]),
            "signal_share": mean([group.has_signal for group in groups]),
            "refused": mean([answer["refused"] for answer in answers]),
        }

    def _update(self, batch: Batch, log_probs: Tensor) -> float:
        self.cost.update(tokens_of(batch))
        return super()._update(batch, log_probs)

    def _loss(self, batch: Batch, log_probs: Tensor) -> Tensor:
        """RULE's with PPO's clip, for a second update on the same batch."""
        mask = batch["response_mask"]
        loss = ppo_loss(log_probs, batch["old_log_probs"], batch["advantages"], mask, self.settings)
        divergence = torch.where(mask.bool(), low_var_kl(log_probs, batch["ref_log_prob"]), 0.0)
        return loss + self.settings.kl_coef * token_mean(divergence, mask)

    def _extra_update(self, drawn: list[RolloutGroup], batch: Batch) -> Metrics:
        """A replay update, or its control; nothing while the gate is closed."""
        if not drawn or self.settings.replay.update == "stored":
            return super()._extra_update(drawn, batch)
        norm = self._update(batch, self.policy.log_probs(batch))
        return {"replay/grad_norm": norm, "replay/updates": 1.0}

    def _replay_update(self, drawn: list[RolloutGroup]) -> Metrics:
        self.cost.update(sum(group.total_tokens for group in drawn))
        signal_share = mean([group.has_signal for group in drawn])
        return super()._replay_update(drawn) | {"replay/signal_share": signal_share}


def tokens_of(batch: Batch) -> int:
    """Tokens of all rows, prompts and responses."""
    return int(batch["attention_mask"].sum())


def ppo_loss(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, settings: Settings) -> Tensor:
    """PPO's clipped loss with verl's dual clip, mean over tokens. At the first update the ratio is 1."""
    ratio = torch.where(mask.bool(), log_probs - old, 0.0).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    worst = torch.maximum(-advantages * ratio, -advantages * clipped)
    bounded = torch.where(advantages < 0, torch.minimum(worst, -advantages * DUAL_CLIP), worst)
    return token_mean(bounded, mask)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; NaN where there are none."""
    return sum(values) / len(values) if values else float("nan")
