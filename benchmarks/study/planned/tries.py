"""Other ways to spend compute than replay, which the plan tries on the models for tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, no_grad

from benchmarks.study.loop import Run
from data_prep.contract import Row
from recipe.rerule.minimal import Batch, Metrics
from recipe.rerule.replay import RolloutGroup, pad_groups

ROUNDS = 3
"""Most times that `Resampled` asks prompts at one step; DAPO's filter has such a limit too."""


class Epochs(Run):
    """Several updates on the same responses, with PPO's clip from the second on."""

    epochs = 2

    def _update(self, batch: Batch, log_probs: Tensor) -> float:
        norm = super()._update(batch, log_probs)
        for _ in range(self.epochs - 1):
            norm = super()._update(batch, self.policy.log_probs(batch))
        return norm


class FourEpochs(Epochs):
    """Four of them."""

    epochs = 4


class Resampled(Run):
    """DAPO's dynamic sampling: asks more prompts until a batch of groups with signal is full.

    Attributes:
        more: gives that many further prompts; set before the first step.
    """

    more: Callable[[int], Sequence[Row]]

    def step(self, rows: Sequence[Row], step: int) -> tuple[Metrics, list[RolloutGroup]]:
        """One training step; groups without signal are generated and left out of the update."""
        every: list[RolloutGroup] = []
        answers: list[Row] = []
        for number in range(ROUNDS):
            found = self._asked(rows if number == 0 else self.more(len(rows)), step)
            every, answers = every + found[0], answers + found[1]
            if len(with_signal(every)) >= len(rows):
                break
        chosen = (with_signal(every) or every)[: len(rows)]
        batch = self._padded(chosen)
        norm = self._update(batch, self.policy.log_probs(batch))
        spent = {"compute": self.cost.tokens, "asked": float(len(every))}
        return self._metrics(every, answers) | spent | {"grad_norm": norm}, every

    def _asked(self, rows: Sequence[Row], step: int) -> tuple[list[RolloutGroup], list[Row]]:
        batch = self.policy.respond(rows, self.settings.rollouts)
        with no_grad():
            log_probs = self.policy.log_probs(batch)
        return self._rollouts(batch, log_probs, rows, step)

    def _padded(self, groups: list[RolloutGroup]) -> Batch:
        rows = pad_groups(groups, self.policy.tokenizer.pad_token_id)
        return {name: plane.to(self.policy.model.device) for name, plane in rows.items()}


def with_signal(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """Those that carry a policy gradient."""
    return [group for group in groups if group.has_signal]
