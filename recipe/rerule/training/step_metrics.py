"""Metrics of one training step as verl logs them, and its line for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.utils.metric import reduce_metrics

from recipe.rerule.replay.group import SIDES


def metrics_before_save(batch: DataProto, output: DataProto, use_critic: bool) -> dict[str, Any]:
    """What verl adds of a step's batch and of the actor's update, and only when it logs the step."""
    return reduce_metrics(dict(output.meta_info["metrics"])) | compute_data_metrics(batch, use_critic)


_IF_ANY = ("named", "leaked_thought", "empty", "cut")
_SHARES = ("refused", "leaked", "right", "mixed", *_IF_ANY)
"""Shares in the line, in this order; the last ones only where they are not 0, to keep the line short."""


def progress_line(step: int, total: int, metrics: Mapping[str, Any]) -> str:
    """One line a step for a person: each side, the KL, hard groups and tau, buffer, extra updates."""
    parts = [f"step {step}/{total}", *filter(None, (_side(side, metrics) for side in SIDES))]
    if (kl := metrics.get("actor/kl_loss")) is not None:
        parts.append(f"KL {np.mean(kl):.2g}")
    if (hard := metrics.get("replay/hard_share")) is not None:
        parts.append(f"hard groups {hard:.0%} (below {metrics['replay/threshold']:.2g})")
    if "replay/size" in metrics:
        parts.append(f"buffer {metrics['replay/size']:.0f}")
    if metrics.get("replay/drawn_groups"):
        parts.append(f"replayed {metrics['replay/drawn_groups']:.0f} groups")
    elif metrics.get("replay/updates"):
        parts.append("updated on the step's own groups")
    return "  ".join(parts)


def start_line(validation: Mapping[str, float], metrics: Mapping[str, float]) -> str | None:
    """Where a stage 2 starts: of its validation before training where it had one, else of its first step.

    None where the reward function does not say what is refused and right.
    """
    of = {
        name: validation.get(
            f"val-health/{name}", metrics.get(f"{name.split('/')[1]}/{name.split('/')[0]}/mean")
        )
        for name in ("forget/refused", "retain/right")
    }
    if None in of.values():
        return None
    where = "by validation" if validation else "in step 1"
    return (
        f"start: forget refused {of['forget/refused']:.0%}, retain right {of['retain/right']:.0%} ({where}), "
        f"{metrics['mixed/mean']:.0%} of groups mixed"
    )


def _side(side: str, metrics: Mapping[str, float]) -> str:
    """A side's part of the line; "" where the step had no prompt of the side."""
    if (reward := metrics.get(f"reward/{side}/mean")) is None:
        return ""
    words = [f"{side}: reward {reward:.2f}"]
    for name in _SHARES:
        share = metrics.get(f"{name}/{side}/mean")
        if share is not None and (share > 0 or name not in _IF_ANY):
            words.append(f"{name.replace('_', ' ')} {share:.0%}")
    if (tokens := metrics.get(f"tokens/{side}/mean")) is not None:
        words.append(f"{tokens:.0f} tokens")
    return " ".join(words)
