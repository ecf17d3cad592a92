"""Metrics of one training step as verl logs them, and its line for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl import DataProto
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.utils.metric import reduce_metrics

from recipe.rerule.replay.group import SIDES


def metrics_before_save(batch: DataProto, output: DataProto, use_critic: bool) -> dict[str, Any]:
    """What verl adds of a step's batch and of the actor's update, and only when it logs the step."""
    return reduce_metrics(dict(output.meta_info["metrics"])) | compute_data_metrics(batch, use_critic)


def progress_line(step: int, total: int, metrics: Mapping[str, float]) -> str:
    """One line a step for a person: rewards by side, hard groups and tau, buffer, extra updates."""
    parts = [f"step {step}/{total}"]
    for side in SIDES:
        if (reward := metrics.get(f"reward/{side}/mean")) is not None:
            parts.append(f"reward {side} {reward:.2f}")
    if (hard := metrics.get("replay/hard_share")) is not None:
        parts.append(f"hard groups {hard:.0%} (below {metrics['replay/threshold']:.2g})")
    if "replay/size" in metrics:
        parts.append(f"buffer {metrics['replay/size']:.0f}")
    if metrics.get("replay/drawn_rollouts"):
        parts.append(f"replayed {metrics['replay/drawn_rollouts']:.0f} responses")
    elif metrics.get("replay/drawn_groups"):
        parts.append(f"replayed {metrics['replay/drawn_groups']:.0f} groups")
    elif metrics.get("replay/updates"):
        parts.append("on-policy update repeated")
    return "  ".join(parts)
