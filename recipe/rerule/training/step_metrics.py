"""Metrics of one training step, put together from its extra updates, and its line for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.utils.metric import reduce_metrics

from recipe.rerule.replay.group import SIDES

SECONDS = "replay/seconds/"
BUFFER_WORK = ("offer", "draw", "collate", "weigh", "record")
"""Parts of a step that are work on the buffer rather than on the model."""


def update_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """replay/updates, and the mean (of `...max`: the maximum) of what the step's extra updates reported.

    Of what only some report, as a clip bound that was not needed in others, it is that of those.
    """
    values: dict[str, list[float]] = {}
    for update in updates:
        for name, value in update.items():
            values.setdefault(name, []).append(value)
    return {"replay/updates": float(len(updates)), **reduce_metrics(values)}


def part_seconds(driver: Mapping[str, float], updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of each part of the hook, summed over the step's extra updates.

    Args:
        driver: replay/seconds/{offer,draw,collate,update,record} as measured by the trainer.
        updates: metrics of each update, with the worker's replay/seconds/{log_prob,weigh,train}.

    Returns:
        all of them, replay/seconds (whole extra updates) and replay/bookkeeping_seconds (BUFFER_WORK).
    """
    total = dict(driver)
    for update in updates:
        for name, value in update.items():
            if name.startswith(SECONDS):
                total[name] = total.get(name, 0.0) + value
    total["replay/seconds"] = total.get(SECONDS + "update", 0.0)
    total["replay/bookkeeping_seconds"] = sum(total.get(SECONDS + part, 0.0) for part in BUFFER_WORK)
    return total


def metrics_before_save(batch: DataProto, output: DataProto, use_critic: bool) -> dict[str, Any]:
    """What verl adds of a step's batch and of the actor's update, and only when it logs the step."""
    return reduce_metrics(dict(output.meta_info["metrics"])) | compute_data_metrics(batch, use_critic)


def progress_line(step: int, total: int, metrics: Mapping[str, float]) -> str:
    """One line a step for a person: rewards by side, hard groups and tau, buffer, extra updates."""
    parts = [f"step {step}/{total}"]
    for side in SIDES:
        if (reward := metrics.get(f"reward/{side}/mean")) is not None:
            parts.append(f"reward {side} {reward:.2f}")
    parts.append(f"hard groups {metrics['replay/hard_share']:.0%} (below {metrics['replay/threshold']:.2g})")
    if "replay/size" in metrics:
        parts.append(f"buffer {metrics['replay/size']:.0f}")
    if metrics.get("replay/drawn_groups"):
        parts.append(f"replayed {metrics['replay/drawn_groups']:.0f} groups")
    elif metrics.get("replay/updates"):
        parts.append("on-policy update repeated")
    return "  ".join(parts)
