"""A rollout group: one prompt, its n sampled responses, and all that a later update needs of them.

`pad_groups` makes of groups the padded rows a trainer works on, `unpad_rows` of such rows groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIDES = ("forget", "retain")
# Rewards are float32: a mean this close to the threshold equals it, and a group at the threshold is not hard.
REWARD_RESOLUTION = 1e-6
ROW_PLANES = {"lengths": torch.int32, "rewards": torch.float32}
TOKEN_PLANES = {
    "response_ids": torch.int32,
    "response_mask": torch.bool,
    "old_log_probs": torch.float32,
    "ref_log_probs": torch.float32,
    "advantages": torch.float32,
}
PLANES = {"prompt_ids": torch.int32, **ROW_PLANES, **TOKEN_PLANES}
PADDED = {
    "old_log_probs": "old_log_probs",
    "advantages": "advantages",
    "ref_log_prob": "ref_log_probs",
}
"""Numbers of each response token: a trainer's name for the padded rows, and the plane's name."""


class PromptIdentity(NamedTuple):
    """Which prompt a group belongs to; see ``RolloutGroup`` for the fields."""

    prompt_index: int
    side: str
    mode: str


@dataclass(frozen=True, eq=False)
class RolloutGroup:
    """The n responses sampled for one prompt at one step, unpadded, on the CPU.

    L is the number of response tokens of all rows together; rows are concatenated in order. The constructor
    takes the tensors over; ``unpad_rows`` copies. Nothing in this package writes to them.

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

    Raises ValueError: a tensor is missing, has another dtype or shape, holds NaN or infinity, or no response
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


def pad_groups(groups: Sequence[RolloutGroup], pad_token_id: int) -> dict[str, Tensor]:
    """Pad the rows of the groups, in order; every tensor is a fresh copy.

    R is the number of rows of all groups, P the longest prompt, T the longest response.

    Returns:
        prompts int64 [R, P] (left-padded), responses int64 [R, T] (right-padded), input_ids and
        attention_mask and position_ids int64 [R, P + T], response_mask int64 [R, T], old_log_probs and
        advantages float32 [R, T] (0 where padded), rewards float32 [R], and ref_log_prob float32 [R, T]
        when every group has it.

    Raises ValueError: no groups.
    """
    if not groups:
        raise ValueError("there are no rollout groups to pad")
    prompt_lengths = torch.tensor([len(group.prompt_ids) for group in groups for _ in range(group.n)])
    prompt_valid = _first(prompt_lengths).flip(-1)
    valid = _first(torch.cat([group.lengths for group in groups]))
    prompts = [group.prompt_ids.repeat(group.n) for group in groups]
    responses = [group.response_ids for group in groups]
    rows = {
        "prompts": _padded(prompts, prompt_valid, pad_token_id, torch.int64),
        "responses": _padded(responses, valid, pad_token_id, torch.int64),
        "attention_mask": torch.cat([prompt_valid, valid], dim=1).long(),
        "response_mask": _padded([group.response_mask for group in groups], valid, 0, torch.int64),
    }
    rows["input_ids"] = torch.cat([rows["prompts"], rows["responses"]], dim=1)
    rows["position_ids"] = (rows["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    for name, plane in PADDED.items():
        values = [group.planes()[plane] for group in groups if plane in group.planes()]
        if len(values) == len(groups):
            rows[name] = _padded(values, valid, 0, torch.float32)
    return rows | {"rewards": torch.cat([group.rewards for group in groups])}


def _padded(parts: Sequence[Tensor], valid: Tensor, fill: int, dtype: torch.dtype) -> Tensor:
    """The parts one after the other at the valid places of [rows, width], `fill` elsewhere."""
    rows = torch.full(valid.shape, fill, dtype=dtype)
    rows[valid] = torch.cat(list(parts)).to(dtype)
    return rows


def _first(lengths: Tensor) -> Tensor:
    """bool [R, max length], True for the first ``lengths[i]`` places of row i."""
    return torch.arange(int(lengths.max())) < lengths[:, None]


def unpad_rows(
    identities: Sequence[PromptIdentity], step: int, rows: Mapping[str, Tensor | None]
) -> list[RolloutGroup]:
    """Copy the padded rows of G groups of n rollouts, on any device and of any width, into groups.

    The inverse of ``pad_groups``. The rows of a group are neighbours, groups in the order of their
    identities. All groups are unpadded at once, so their planes share one fresh copy of the batch.

    Args:
        identities: the G prompts.
        step: training step at which the rows were sampled.
        rows: by name, where others are ignored
            prompts: integer [G * n, P], left-padded, the same prompt in every row of a group.
            responses: integer [G * n, T], right-padded.
            attention_mask: [G * n, P + T], non-zero for real tokens of prompt and response.
            response_mask, old_log_probs, advantages: [G * n, T]; values where response_mask is 0 are not
                kept (stored as 0).
            ref_log_prob: [G * n, T] likewise; None or missing where the run has no reference policy.
            rewards: [G * n].

    Raises ValueError: as ``RolloutGroup``; or one of the rows is missing, shapes do not fit together, a
    group's rows have different prompts, or rows are padded on the wrong side.
    """
    given = {name: plane.detach().cpu() for name, plane in rows.items() if plane is not None}
    _check_rows(given, len(identities), step)
    _check_layout(given, identities, step)
    pieces = _unpadded(given, len(identities))
    planes = [dict(zip(pieces, own, strict=True)) for own in zip(*pieces.values(), strict=True)]
    return [
        RolloutGroup(*identity, step=step, **own) for identity, own in zip(identities, planes, strict=True)
    ]


def _unpadded(rows: Mapping[str, Tensor], group_count: int) -> dict[str, Sequence[Any]]:
    """The planes by name, each as one piece a group; a plane that is missing is None for every group."""
    n = len(rows["responses"]) // group_count
    prompt_valid, valid = _valid(rows)
    trained, first, lengths = rows["response_mask"].bool(), prompt_valid[::n], valid.sum(dim=1)
    # Indexing with a mask copies, row by row in order.
    flat = {
        "prompt_ids": rows["prompts"][::n][first],
        "response_ids": rows["responses"][valid],
        "lengths": lengths,
        "response_mask": trained[valid],
        "rewards": rows["rewards"].clone(),
    }
    for name, plane in PADDED.items():
        if name in rows:
            flat[plane] = torch.where(trained, rows[name], 0.0)[valid]
    tokens = lengths.view(group_count, n).sum(dim=1).tolist()
    sizes: dict[str, Any] = {"prompt_ids": first.sum(dim=1).tolist()}
    sizes |= dict.fromkeys(ROW_PLANES, n) | dict.fromkeys(TOKEN_PLANES, tokens)
    pieces = {name: plane.to(PLANES[name]).split(sizes[name]) for name, plane in flat.items()}
    missing = dict.fromkeys(PADDED.values(), [None] * group_count)
    return {**missing, **pieces}


def _valid(rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """bool [G * n, P] and [G * n, T]: real tokens of the prompts and of the responses."""
    attended = rows["attention_mask"].bool()
    width = rows["prompts"].shape[1]
    return attended[:, :width], attended[:, width:]


def _check_rows(rows: Mapping[str, Tensor], group_count: int, step: int) -> None:
    """Refuse missing rows, and another shape: silently broadcast rows would store the wrong rollouts."""

    def refuse(reason: str) -> None:
        raise ValueError(f"rollout groups of step {step}: {reason}")

    for name in ("prompts", "responses", "attention_mask", "response_mask", "advantages", "rewards"):
        if name not in rows:
            refuse(f"{name} is missing")
    for name in ("prompts", "responses"):
        if rows[name].dim() != 2:
            refuse(f"{name} is {describe(rows[name])}, not [rows, width]")
    count = len(rows["responses"])
    if not group_count or not count or count % group_count:
        refuse(f"{count} rows cannot be {group_count} groups of equal size")
    width, prompt_width = rows["responses"].shape[1], rows["prompts"].shape[1]
    shapes: dict[str, tuple[int, ...]] = {
        "prompts": (count, prompt_width),
        "attention_mask": (count, prompt_width + width),
        "response_mask": (count, width),
        **dict.fromkeys(PADDED, (count, width)),
        "rewards": (count,),
    }
    for name, shape in shapes.items():
        if name in rows and rows[name].shape != shape:
            refuse(f"{name} has shape {list(rows[name].shape)}, not {list(shape)}")


def _check_layout(rows: Mapping[str, Tensor], identities: Sequence[PromptIdentity], step: int) -> None:
    def refuse_any(bad: Tensor, reason: str) -> None:
        """``bad``: bool [G * n, width]."""
        if bad.any():
            group = int(bad.view(len(identities), -1).any(dim=1).nonzero()[0])
            raise ValueError(f"{group_name(identities[group].prompt_index, step)}: {reason}")

    prompt_valid, valid = _valid(rows)
    refuse_any(prompt_valid[:, :-1] & ~prompt_valid[:, 1:], "prompts are not left-padded")
    refuse_any(valid[:, 1:] & ~valid[:, :-1], "responses are not right-padded")
    refuse_any(rows["response_mask"].bool() & ~valid, "response_mask covers padding")
    # Padding has no token: -1 is none's number.
    tokens = rows["prompts"].where(prompt_valid, -1).view(len(identities), -1, prompt_valid.shape[1])
    refuse_any(tokens != tokens[:, :1], "its rows have different prompts")
