"""Run folders with the records that a finished stage 1 or 2 leaves."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig, OmegaConf


def stage1_run(folder: Path, losses: Sequence[float]) -> DictConfig:
    put_lines(folder, "metrics.jsonl", [{"train/loss": loss} for loss in losses])
    return OmegaConf.create({"trainer": {"default_local_dir": str(folder)}})


def put_lines(folder: Path, name: str, steps: Sequence[dict[str, Any]], key: str = "data") -> None:
    (folder / "records").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, key: content}) for step, content in enumerate(steps, start=1)]
    (folder / "records" / name).write_text("\n".join(lines) + "\n")


def stage2_run(
    folder: Path,
    forget: Sequence[float],
    *,
    updates: float = 1.0,
    no_signal: float = 0.5,
    refused: float = 0.5,
    size: float = 20,
    scores: Mapping[int, float] = MappingProxyType({}),
    **replay: Any,
) -> DictConfig:
    """A run with these forget rewards, one prompt a step, and a retain prompt that always earns 1.

    `scores` are those of validations by step.
    """
    metrics = {"replay/updates": updates, "replay/size": size}
    metrics |= {"replay/zero_signal_share": no_signal, "refused/forget/mean": refused}
    put_lines(folder, "metrics.jsonl", [metrics] * len(forget))
    with (folder / "records" / "metrics.jsonl").open("a") as file:
        for step, score in scores.items():
            file.write(json.dumps({"step": step, "data": {"val-health/score": score}}) + "\n")
    prompts = [[prompt(0, "forget", reward), prompt(1, "retain", 1.0)] for reward in forget]
    put_lines(folder, "prompts.jsonl", prompts, "prompts")  # type: ignore[arg-type]
    settings = {"enable": True, "update": "stored", "min_groups": 32, "warmup_steps": 15} | replay
    config = OmegaConf.create({"trainer": {"default_local_dir": str(folder)}, "replay": settings})
    OmegaConf.save(config, folder / "config.yaml")
    return config


def prompt(index: int, side: str, reward: float) -> dict[str, Any]:
    return {"index": index, "type": side, "mode": "qa", "subject": "Ada", "rewards": [reward, reward]}


def trainer_settings(folder: Path) -> DictConfig:
    """What a trainer of ReRULE reads of its settings, with a run folder."""
    trainer = {"default_local_dir": str(folder), "save_freq": -1, "val_only": False}
    trainer |= {"max_actor_ckpt_to_keep": 2, "max_critic_ckpt_to_keep": None}
    return OmegaConf.create(
        {
            "trainer": trainer,
            "save": {"minutes": None, "best": True},
            "sides": {"weights": "equal"},
            "health": {"stop_after": None},
            "data": {"max_response_length": 8},
            "actor_rollout_ref": {"rollout": {"n": 4, "temperature": 0.7}},
            "records": {"rollouts": True},
        }
    )
