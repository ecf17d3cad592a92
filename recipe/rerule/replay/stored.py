"""A stored rollout group: its tensors as one immutable block of bytes, and what strategies ask of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .group import PLANES, ROW_PLANES, TOKEN_PLANES, RolloutGroup

# The one-byte plane comes last, so that every other plane starts at a multiple of its four bytes.
_LAYOUT = sorted(PLANES, key=lambda name: PLANES[name] == torch.bool)


@dataclass(slots=True)
class StoredGroup:
    """One group in the buffer; everything but ``draws`` stays as it was stored.

    Bytes rather than tensors: nothing that shares memory with a stored group can exist, and a group costs a
    few hundred bytes beyond its tensors' own, where nine small tensors cost several thousand.

    Attributes:
        prompt_index, side, mode, step: as in RolloutGroup.
        mean_reward: mean raw reward.
        signal: as of RolloutGroup.
        n, prompt_length, tokens: rollouts, prompt tokens, response tokens of all rollouts together.
        has_ref: whether reference log-probs are there.
        data: the planes of RolloutGroup, one after the other.
        draws: how often the group was drawn.
    """

    prompt_index: int
    side: str
    mode: str
    step: int
    mean_reward: float
    signal: float
    n: int
    prompt_length: int
    tokens: int
    has_ref: bool
    data: bytes
    draws: int = 0

    @classmethod
    def of(cls, group: RolloutGroup, draws: int = 0) -> StoredGroup:
        """Copy a group into a block of bytes."""
        planes = group.planes()
        return cls(
            prompt_index=group.prompt_index,
            side=group.side,
            mode=group.mode,
            step=group.step,
            mean_reward=group.mean_reward,
            signal=group.signal,
            n=group.n,
            prompt_length=len(group.prompt_ids),
            tokens=len(group.response_ids),
            has_ref=group.ref_log_probs is not None,
            data=b"".join(planes[name].numpy().tobytes() for name in _LAYOUT if name in planes),
            draws=draws,
        )

    def group(self) -> RolloutGroup:
        """The group again, in fresh memory."""
        block = torch.frombuffer(bytearray(self.data), dtype=torch.uint8)
        planes: dict[str, Tensor] = {}
        start = 0
        for name, length in self._lengths().items():
            end = start + length * PLANES[name].itemsize
            planes[name] = block[start:end].view(PLANES[name])
            start = end
        return RolloutGroup(
            prompt_index=self.prompt_index, side=self.side, mode=self.mode, step=self.step, **planes
        )

    def staleness(self, step: int) -> int:
        """Training steps since the group was stored."""
        return step - self.step

    @property
    def has_signal(self) -> bool:
        """As of RolloutGroup."""
        return self.signal > 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return len(self.data)

    def _lengths(self) -> dict[str, int]:
        lengths = {"prompt_ids": self.prompt_length}
        lengths |= dict.fromkeys(ROW_PLANES, self.n) | dict.fromkeys(TOKEN_PLANES, self.tokens)
        present = [name for name in _LAYOUT if self.has_ref or name != "ref_log_probs"]
        return {name: lengths[name] for name in present}


def priority(group: StoredGroup, step: int, half_life: float) -> float:
    """Expected signal: advantage magnitude, halved every ``half_life`` steps since storing."""
    return group.signal * math.exp2(-group.staleness(step) / half_life)
