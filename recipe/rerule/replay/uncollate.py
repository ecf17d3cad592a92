"""From the padded rows a trainer works on to unpadded groups: the inverse of ``collate``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .group import PromptIdentity, RolloutGroup, describe, group_name


def uncollate(
    identities: Sequence[PromptIdentity],
    step: int,
    *,
    prompts: Tensor,
    responses: Tensor,
    attention_mask: Tensor,
    response_mask: Tensor,
    old_log_probs: Tensor | None,
    advantages: Tensor,
    rewards: Tensor,
    ref_log_probs: Tensor | None = None,
) -> list[RolloutGroup]:
    """Copy the padded rows of G groups of n rollouts, on any device and of any width, into groups.

    The rows of a group are neighbours, groups in the order of their identities. All groups are unpadded at
    once, so their planes share one fresh copy of the batch.

    Args:
        identities: the G prompts.
        step: training step at which the rows were sampled.
        prompts: integer [G * n, P], left-padded, the same prompt in every row of a group.
        responses: integer [G * n, T], right-padded.
        attention_mask: [G * n, P + T], non-zero for real tokens of prompt and response.
        response_mask, old_log_probs, advantages, ref_log_probs: [G * n, T]; values where response_mask is 0
            are not kept (stored as 0).
        rewards: [G * n].

    Raises:
        ValueError: as ``RolloutGroup``; or shapes do not fit together, a group's rows have different prompts,
            or rows are padded on the wrong side.
    """
    rows = {
        "prompts": prompts,
        "responses": responses,
        "attention_mask": attention_mask,
        "response_mask": response_mask,
        "old_log_probs": old_log_probs,
        "advantages": advantages,
        "rewards": rewards,
        "ref_log_probs": ref_log_probs,
    }
    rows = {name: None if plane is None else plane.detach().cpu() for name, plane in rows.items()}
    _check_shapes(rows, len(identities), step)
    _check_layout(rows, identities, step)
    planes = _unpadded(rows, len(identities))
    return [
        RolloutGroup(*identity, step=step, **own) for identity, own in zip(identities, planes, strict=True)
    ]


def _unpadded(rows: dict[str, Any], group_count: int) -> Iterator[dict[str, Any]]:
    """The planes of each group; a plane that is None stays None."""
    n = len(rows["responses"]) // group_count
    prompt_valid, valid = _valid(rows)
    trained = rows["response_mask"].bool()
    lengths = valid.sum(dim=1)
    tokens = lengths.view(group_count, n).sum(dim=1).tolist()
    # Indexing with a mask copies, row by row in order.
    first = prompt_valid[::n]
    split = {
        "prompt_ids": _split(rows["prompts"][::n][first], first.sum(dim=1).tolist(), torch.int32),
        "response_ids": _split(rows["responses"][valid], tokens, torch.int32),
        "lengths": _split(lengths, n, torch.int32),
        "response_mask": _split(trained[valid], tokens, torch.bool),
        "rewards": _split(rows["rewards"].clone(), n, torch.float32),
    }
    for name in ("old_log_probs", "advantages", "ref_log_probs"):
        plane = rows[name]
        kept = None if plane is None else torch.where(trained, plane, 0.0)[valid]
        split[name] = [None] * group_count if kept is None else _split(kept, tokens, torch.float32)
    for values in zip(*split.values(), strict=True):
        yield dict(zip(split, values, strict=True))


def _split(flat: Tensor, sizes: int | list[int], dtype: torch.dtype) -> list[Tensor | None]:
    return list(flat.to(dtype).split(sizes))


def _valid(rows: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """bool [G * n, P] and [G * n, T]: real tokens of the prompts and of the responses."""
    attended = rows["attention_mask"].bool()
    width = rows["prompts"].shape[1]
    return attended[:, :width], attended[:, width:]


def _check_shapes(rows: dict[str, Any], group_count: int, step: int) -> None:
    """Refuse planes of another shape: silently broadcast rows would store the wrong rollouts."""

    def refuse(reason: str) -> None:
        raise ValueError(f"rollout groups of step {step}: {reason}")

    prompts, responses = rows["prompts"], rows["responses"]
    for name in ("prompts", "responses"):
        if rows[name].dim() != 2:
            refuse(f"{name} is {describe(rows[name])}, not [rows, width]")
    count = len(responses)
    if not group_count or not count or count % group_count:
        refuse(f"{count} rows cannot be {group_count} groups of equal size")
    expected = dict.fromkeys(rows, tuple(responses.shape))
    expected["prompts"] = (count, prompts.shape[1])
    expected["attention_mask"] = (count, prompts.shape[1] + responses.shape[1])
    expected["rewards"] = (count,)
    for name, plane in rows.items():
        if plane is not None and plane.shape != expected[name]:
            refuse(f"{name} has shape {list(plane.shape)}, not {list(expected[name])}")


def _check_layout(rows: dict[str, Any], identities: Sequence[PromptIdentity], step: int) -> None:
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
