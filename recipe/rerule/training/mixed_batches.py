"""One batch of a step's own rows and of stored groups, for verl's on-policy update; the driver's side.

The worker's side is `mixed_update`, which tells the two kinds of rows apart by the column REPLAYED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from verl import DataProto

from recipe.rerule.replay import ReplayConfig, RolloutGroup, pad_groups
from recipe.rerule.replay.mixed import Part

MIXED = "rerule_mixed"
"""Mark in an update's data: the Mixture of its rows. In the update's metrics: those of the stored rows."""
REPLAYED = "rerule_replayed"
"""Column of a mixed batch, bool [rows]: whether a row is a stored one."""
_LEFT = ("prompts",)
_RIGHT = (
    "responses",
    "response_mask",
    "old_log_probs",
    "advantages",
    "ref_log_prob",
    "rollout_is_weights",
)
"""What verl's update of the actor reads of a row, by the side from which a plane starts."""


@dataclass(frozen=True)
class Mixture:
    """What a worker must know of a mixed batch besides its own rows.

    Attributes:
        config: of the replay.
        fresh, replayed: how much of the whole batch is of each kind.
    """

    config: ReplayConfig
    fresh: Part
    replayed: Part

    @property
    def rows(self) -> int:
        """Rows of the whole batch."""
        return self.fresh.rows + self.replayed.rows


def mixed_batch(
    sent: DataProto,
    kept: Sequence[int],
    drawn: Sequence[RolloutGroup],
    config: ReplayConfig,
    pad_token_id: int,
    ranks: int,
) -> DataProto:
    """The batch of a mixed update.

    Args:
        sent: the step's rows, as workers get them.
        kept: which of them are trained on.
        drawn: stored groups, of as many rows for each rank.
        ranks: data-parallel size; every rank gets as many rows of each kind as every other.

    Raises:
        ValueError: the step's rows have what stored groups lack, such as reference log-probs.
    """
    own = _own_rows(sent, kept)
    stored = _stored_rows(drawn, own, pad_token_id)
    prompt, response = (
        max(part[name].shape[1] for part in (own, stored)) for name in ("prompts", "responses")
    )
    parts = [_widened(part, prompt, response, pad_token_id) for part in (own, stored)]
    order = dealt(len(own["responses"]), len(stored["responses"]), ranks)
    rows = {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}
    rows[REPLAYED] = order >= len(own["responses"])
    mixture = Mixture(config, _part(own), _part(stored))
    attended = rows["attention_mask"].sum(dim=-1).tolist()
    meta_info = {**sent.meta_info, "global_token_num": attended, MIXED: mixture}
    return DataProto.from_dict(tensors=rows, meta_info=meta_info)


def dealt(own: int, stored: int, ranks: int) -> Tensor:
    """int64 [own + stored], row numbers so that each rank's even share of them has as many of each kind.

    The step's own rows have the numbers from 0, the stored ones those after them; both stay in order.
    """
    numbers = torch.arange(own).view(ranks, own // ranks)
    return torch.cat([numbers, torch.arange(own, own + stored).view(ranks, stored // ranks)], dim=1).flatten()


def _own_rows(sent: DataProto, kept: Sequence[int]) -> dict[str, Tensor]:
    if sent.non_tensor_batch:
        raise ValueError(
            f"the rows of the step have {', '.join(sent.non_tensor_batch)}, which stored rollouts lack; "
            "replay.update=mixed cannot join them"
        )
    rows = torch.tensor(kept, dtype=torch.int64)
    names = (*_LEFT, *_RIGHT, "attention_mask")
    return {name: sent.batch[name][rows] for name in names if name in sent.batch.keys()}  # noqa: SIM118


def _stored_rows(
    drawn: Sequence[RolloutGroup], own: dict[str, Tensor], pad_token_id: int
) -> dict[str, Tensor]:
    """The drawn groups' rows with the columns and dtypes of the step's own."""
    stored = pad_groups(drawn, pad_token_id)
    if "rollout_is_weights" in own:  # of the step's own sampling; a stored row has its importance weight
        stored["rollout_is_weights"] = torch.ones_like(stored["advantages"])
    if missing := own.keys() - stored.keys():
        raise ValueError(
            f"the stored rollouts lack {', '.join(sorted(missing))}, which the step's rows have; go on with "
            "the settings of the run that stored them, or pass replay.restore=false"
        )
    return {name: stored[name].to(plane.dtype) for name, plane in own.items()}


def _widened(rows: dict[str, Tensor], prompt: int, response: int, pad_token_id: int) -> dict[str, Tensor]:
    """The rows with prompts and responses of these widths, and what verl derives of them."""
    left, right = prompt - rows["prompts"].shape[1], response - rows["responses"].shape[1]
    fill = {"prompts": pad_token_id, "responses": pad_token_id}
    wide = {name: functional.pad(rows[name], (left, 0), value=fill[name]) for name in _LEFT}
    wide |= {
        name: functional.pad(rows[name], (0, right), value=fill.get(name, 0))
        for name in _RIGHT
        if name in rows
    }
    wide["attention_mask"] = functional.pad(rows["attention_mask"], (left, right))
    wide["input_ids"] = torch.cat([wide["prompts"], wide["responses"]], dim=1)
    wide["position_ids"] = (wide["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    return wide


def _part(rows: dict[str, Tensor]) -> Part:
    return Part(len(rows["responses"]), int(rows["response_mask"].sum()))


class FreshPrompts:
    """verl's loader of training batches, of whose prompts only the first ones that a step wants are given.

    The others are left out of that epoch. The order of the rows, the batches of an epoch and what is saved of
    the loader are verl's own, so that a resumed run takes the same prompts.
    """

    def __init__(self, loader: Any, wanted: Callable[[], int | None]) -> None:
        self._loader, self._wanted = loader, wanted

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._loader:
            wanted = self._wanted()
            yield {name: column[:wanted] for name, column in batch.items()}

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
