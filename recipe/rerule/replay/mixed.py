"""The mixed update: stored groups join a step's own rollouts, and both are trained on in one optimiser step.

    loss = w_fresh * L_fresh + w_replayed * L_replayed

L_fresh is the trainer's own policy loss of the step's rows, L_replayed the replay loss of the stored rows.
Each is aggregated over the rows of its own kind alone, of all micro-batches and ranks, in the way the trainer
aggregates: "token-mean" divides by the valid response tokens of the kind, the "seq-mean" ways by its rows.
The weights are those of ``part_weights``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .config import ReplayConfig
from .group import RolloutGroup


@dataclass(frozen=True)
class Part:
    """How much of a mixed batch is of one kind, over all ranks.

    Attributes:
        rows: rollouts.
        tokens: valid response tokens.
    """

    rows: int
    tokens: int


def part_weights(fresh: Part, replayed: Part, aggregation: str, weight: float | None) -> tuple[float, float]:
    """(w_fresh, w_replayed) of a mixed loss.

    With ``weight`` None every token, or every row, counts as in one batch: the weights are the parts' shares
    of the tokens ("token-mean") or of the rows (the "seq-mean" ways), and both are 1 where the aggregation is
    a sum ("token-sum"). The loss is then the aggregation over all rows of the batch.

    Args:
        aggregation: verl's name of it (`loss_agg_mode`).
        weight: w_replayed in [0, 1], w_fresh is then 1 minus it; or None.
    """
    if weight is not None:
        return 1.0 - weight, weight
    if aggregation == "token-sum":
        return 1.0, 1.0
    sizes = [part.tokens if aggregation == "token-mean" else part.rows for part in (fresh, replayed)]
    return sizes[0] / sum(sizes), sizes[1] / sum(sizes)


def fresh_prompts(config: ReplayConfig, prompts: int) -> int:
    """How many of a step's ``prompts`` are sampled where stored groups take the places of the others."""
    return round(config.fresh_share * prompts)


def places(config: ReplayConfig, prompts: int, groups: Sequence[RolloutGroup]) -> int:
    """How many stored groups a step asks for.

    Args:
        prompts: of a batch that is sampled whole.
        groups: the step's own, of which there may be fewer.
    """
    if config.mixed_places == "added":
        return config.groups_per_update
    unsampled = prompts - len(groups)
    without = len(_without_signal(groups)) if config.mixed_places == "no_signal" else 0
    return min(unsampled + without, config.groups_per_update)


def filled(groups: Sequence[RolloutGroup], drawn: Sequence[RolloutGroup]) -> int:
    """How many places drawn groups take: that of one group for as many rollouts as each of ``groups`` has."""
    return sum(group.n for group in drawn) // groups[0].n if groups else 0


def left_out(config: ReplayConfig, prompts: int, groups: Sequence[RolloutGroup], drawn: int) -> list[int]:
    """Which of the step's groups are not trained on, because stored groups took their places.

    The first ones without signal in the order of the batch, as many as there are more drawn groups than
    unsampled prompts.

    Args:
        prompts, groups: as of ``places``.
        drawn: how many groups were drawn; see ``filled``.
    """
    if config.mixed_places != "no_signal":
        return []
    return _without_signal(groups)[: max(0, drawn - (prompts - len(groups)))]


def _without_signal(groups: Sequence[RolloutGroup]) -> list[int]:
    return [place for place, group in enumerate(groups) if not group.has_signal]
