"""A rollout group: one prompt, its n sampled responses, and all that a later update needs of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIDES = ("forget", "retain")
ROW_PLANES = {"lengths": torch.int32, "rewards": torch.float32}
TOKEN_PLANES = {
    "response_ids": torch.int32,
    "response_mask": torch.bool,
    "old_log_probs": torch.float32,
    "ref_log_probs": torch.float32,
    "advantages": torch.float32,
}
PLANES = {"prompt_ids": torch.int32, **ROW_PLANES, **TOKEN_PLANES}


class PromptIdentity(NamedTuple):
    """Which prompt a group belongs to; see ``RolloutGroup`` for the fields."""

    prompt_index: int
    side: str
    mode: str


@dataclass(frozen=True, eq=False)
class RolloutGroup:
    """The n responses sampled for one prompt at one step, unpadded, on the CPU.

    L is the number of response tokens of all rows together; rows are concatenated in order. The constructor
    takes the tensors over; ``uncollate`` copies. Nothing in this package writes to them.

    Attributes:
        prompt_index: stable number of the prompt (``extra_info.index``).
        side: "forget" or "retain".
        mode: kind of prompt ("qa", "fb", ...).
        step: training step at which the group was sampled and stored.
        prompt_ids: int32 [P].
        response_ids: int32 [L].
        lengths: int32 [n], tokens of each row.
        response_mask: bool [L], True for tokens the policy is trained on (False: text put in by a tool).
        old_log_probs: float32 [L], log pi_old of the policy that sampled the rows.
        advantages: float32 [L].
        rewards: float32 [n], raw scores before any KL penalty.
        ref_log_probs: float32 [L], log pi_ref, or None where the run has no reference policy.

    Raises:
        ValueError: a tensor is missing, has another dtype or shape, holds NaN or infinity, or no response
            token is valid.
    """

    prompt_index: int
    side: str
    mode: str
    step: int
    prompt_ids: Tensor
    response_ids: Tensor
    lengths: Tensor
    response_mask: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    rewards: Tensor
    ref_log_probs: Tensor | None = None

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            self._refuse(f"side is {self.side!r}, not one of {', '.join(SIDES)}")
        for name, dtype in PLANES.items():
            if name != "ref_log_probs" or self.ref_log_probs is not None:
                self._check_tensor(name, dtype)
        self._check_shapes()
        if not self.response_mask.any():
            self._refuse("response_mask holds no valid token")

    @property
    def n(self) -> int:
        """Number of rollouts."""
        return len(self.lengths)

    @property
    def total_tokens(self) -> int:
        """Tokens of all rows as a model sees them: the prompt once a rollout, and the responses."""
        return self.n * len(self.prompt_ids) + len(self.response_ids)

    @property
    def mean_reward(self) -> float:
        """Mean raw reward of the group."""
        return float(self.rewards.double().mean())

    @property
    def has_signal(self) -> bool:
        """Whether the group tells better from worse: its valid advantages are not all one number.

        A constant advantage has no policy gradient in expectation, as E[grad log pi] = 0. It need not be 0:
        the float32 mean of equal rewards can be one rounding off, which GRPO divides by 1e-6 (0.03 for eight
        rewards of 0.3), and estimators that whiten over the batch shift it. With a single rollout there is
        nothing to compare with, and any advantage but 0 counts.
        """
        valid = self.advantages[self.response_mask]
        return bool(valid.any()) if self.n == 1 else bool(valid.min() != valid.max())

    @property
    def signal(self) -> float:
        """Mean advantage magnitude over the valid tokens, 0 without signal: the policy gradient to expect."""
        if not self.has_signal:
            return 0.0
        return float(self.advantages[self.response_mask].abs().double().mean())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(plane.numel() * plane.element_size() for plane in self.planes().values())

    def planes(self) -> dict[str, Tensor]:
        """The group's own tensors by attribute name, for reading only."""
        present = {name: getattr(self, name) for name in PLANES}
        return {name: plane for name, plane in present.items() if plane is not None}

    def _check_tensor(self, name: str, dtype: torch.dtype) -> None:
        plane = getattr(self, name)
        if plane is None:
            self._refuse(f"{name} is missing, and replay needs it of the policy that sampled the responses")
        if not isinstance(plane, Tensor) or plane.dtype != dtype or plane.dim() != 1:
            self._refuse(f"{name} is {describe(plane)}, not a one-dimensional {dtype} tensor")
        if plane.is_floating_point() and not torch.isfinite(plane).all():
            self._refuse(f"{name} holds NaN or infinity")

    def _check_shapes(self) -> None:
        if self.n < 1 or len(self.prompt_ids) < 1:
            self._refuse("it has no rollout or no prompt token")
        if len(self.rewards) != self.n:
            self._refuse(f"it has {len(self.rewards)} rewards for {self.n} rollouts")
        if (self.lengths < 0).any():
            self._refuse("lengths holds a negative number")
        tokens = int(self.lengths.sum())
        planes = self.planes()
        for name in TOKEN_PLANES:
            if name in planes and len(planes[name]) != tokens:
                self._refuse(f"{name} has {len(planes[name])} values for {tokens} response tokens")

    def _refuse(self, reason: str) -> None:
        raise ValueError(f"{group_name(self.prompt_index, self.step)}: {reason}")


def group_name(prompt_index: int, step: int) -> str:
    """How messages name a group."""
    return f"rollout group of prompt {prompt_index} at step {step}"


def describe(value: Any) -> str:
    """How messages tell what a value is: its dtype and shape, or its type."""
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__}"
