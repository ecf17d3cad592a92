"""Rollout groups to test with, and what they hold in a form that compares with ==."""

from collections.abc import Iterable, Sequence

import torch

from recipe.rerule.replay import RolloutGroup, StoredGroup

PAPER_RULES = {"threshold_rule": "fixed", "threshold": 0.6, "require_signal": False, "sampling": "uniform"}
"""The paper's, where the defaults are ours."""


def make_group(
    index: int = 0,
    step: int = 1,
    rewards: Sequence[float] = (0.0, 1.0),
    lengths: Sequence[int] | None = None,
    prompt_length: int = 3,
    side: str = "forget",
    mode: str = "qa",
    with_ref: bool = True,
    advantages: Sequence[float] | None = None,
) -> RolloutGroup:
    """A group whose tensors are random but fixed by ``index`` and ``step``; ``advantages`` is one a row."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    lengths = [2 + row for row in range(len(rewards))] if lengths is None else list(lengths)
    tokens = sum(lengths)
    per_row = torch.tensor(rewards if advantages is None else advantages, dtype=torch.float32)

    def ids(count: int) -> torch.Tensor:
        return torch.randint(1, 500, (count,), generator=generator, dtype=torch.int32)

    def log_probs() -> torch.Tensor:
        return -torch.rand(tokens, generator=generator)

    return RolloutGroup(
        prompt_index=index,
        side=side,
        mode=mode,
        step=step,
        prompt_ids=ids(prompt_length),
        response_ids=ids(tokens),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        response_mask=torch.ones(tokens, dtype=torch.bool),
        old_log_probs=log_probs(),
        advantages=per_row.repeat_interleave(torch.tensor(lengths)),
        rewards=torch.tensor(rewards, dtype=torch.float32),
        ref_log_probs=log_probs() if with_ref else None,
    )


def contents(group: RolloutGroup) -> dict[str, object]:
    """Everything a group holds, bit for bit, as values that compare with ==."""
    scalars = (group.prompt_index, group.side, group.mode, group.step)
    planes = {name: (str(p.dtype), p.numpy().tobytes()) for name, p in group.planes().items()}
    return {"scalars": scalars, **planes}


def keys(groups: Iterable[RolloutGroup | StoredGroup]) -> list[tuple[int, int]]:
    """(prompt index, step) of each group."""
    return [(group.prompt_index, group.step) for group in groups]
