"""Names of the first releases, which go on working."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .group import PromptIdentity, RolloutGroup, pad_groups, unpad_rows
from .importance import ImportanceStats, importance_ratios

collate = pad_groups
unit_ratios = importance_ratios
RatioMoments = ImportanceStats


def uncollate(
    identities: Sequence[PromptIdentity],
    step: int,
    *,
    ref_log_probs: Tensor | None = None,
    **rows: Tensor | None,
) -> list[RolloutGroup]:
    """``unpad_rows`` with the rows by keyword, where ref_log_prob is called ref_log_probs."""
    return unpad_rows(identities, step, {**rows, "ref_log_prob": ref_log_probs})
