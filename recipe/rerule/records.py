"""What a run keeps beside its checkpoints: its configuration, per-step metrics and per-prompt rewards.

<run>/config.yaml             the resolved configuration
<run>/records/metrics.jsonl   verl's file logger: {"step": int, "data": {metric: number}}; a resumed run
                              writes metrics.1.jsonl, metrics.2.jsonl ... and later files win where
                              steps overlap
<run>/records/prompts.jsonl   {"step": int, "prompts": [{"index", "type", "mode", "subject", "rewards",
                              "prompt_tokens", "response_tokens"}]}; appended to, the last line of a step
                              counts
<run>/records/replay.jsonl    what replay stored, let go and drew, a line a step, as StepLog.record gives it;
                              groups are [prompt index, step of storing]; appended to likewise
<run>/records/rollouts/N.jsonl  the responses of step N, a line each: {"index", "step", "side", "mode",
                              "prompt", "response", "response_ids", "reward"}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from recipe.rerule.run_folder import begin

if TYPE_CHECKING:  # the report reads records without importing torch
    from omegaconf import DictConfig

    from recipe.rerule.replay import RolloutGroup, StepLog


def start(config: DictConfig) -> None:
    """Make the records folder, keep the configuration, and point verl's file logger into it."""
    run_folder = Path(config.trainer.default_local_dir)
    begin(run_folder, stage=2)
    (run_folder / "records").mkdir(exist_ok=True)
    OmegaConf.save(config, run_folder / "config.yaml")
    os.environ["VERL_FILE_LOGGER_PATH"] = str(_unused_metrics_file(run_folder))


def metrics_files(run_folder: Path) -> list[Path]:
    """The run's metrics files in the order they were written: one for each start."""
    folder = run_folder / "records"
    resumed = sorted(folder.glob("metrics.*.jsonl"), key=lambda path: int(path.name.split(".")[1]))
    return [path for path in (folder / "metrics.jsonl", *resumed) if path.is_file()]


def _unused_metrics_file(run_folder: Path) -> Path:
    # verl's file logger truncates the file it opens.
    number = len(metrics_files(run_folder))
    return run_folder / "records" / (f"metrics.{number}.jsonl" if number else "metrics.jsonl")


def append_prompts(
    run_folder: str, step: int, groups: Iterable[RolloutGroup], subjects: Mapping[int, str]
) -> None:
    """Append raw rewards and token counts of every prompt of one step; `subjects` by prompt index."""
    prompts = [
        {
            "index": group.prompt_index,
            "type": group.side,
            "mode": group.mode,
            "subject": subjects[group.prompt_index],
            "rewards": [round(reward, 6) for reward in group.rewards.tolist()],
            "prompt_tokens": len(group.prompt_ids),
            "response_tokens": group.lengths.tolist(),
        }
        for group in groups
    ]
    _append(run_folder, "prompts.jsonl", {"step": step, "prompts": prompts})


def write_rollouts(
    run_folder: str, step: int, groups: Sequence[RolloutGroup], queries: Mapping[int, str], tokenizer: Any
) -> None:
    """Write the responses of one step as text, special tokens left out, and as the tokens that were sampled.

    `queries` by prompt index. Text alone would not say what was sampled: other tokens may spell it too.

    A step that is done again after a resume replaces what was written before.
    """
    rows = [ids.tolist() for group in groups for ids in group.response_ids.split(group.lengths.tolist())]
    texts, ids = iter(tokenizer.batch_decode(rows, skip_special_tokens=True)), iter(rows)
    lines = [
        {
            "index": group.prompt_index,
            "step": step,
            "side": group.side,
            "mode": group.mode,
            "prompt": queries[group.prompt_index],
            "response": next(texts),
            "response_ids": next(ids),
            "reward": round(reward, 6),
        }
        for group in groups
        for reward in group.rewards.tolist()
    ]
    folder = Path(run_folder) / "records" / "rollouts"
    folder.mkdir(exist_ok=True)
    with open(folder / f"{step}.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def append_replay(run_folder: str, log: StepLog) -> None:
    """Append what replay did at one step."""
    _append(run_folder, "replay.jsonl", log.record())


def _append(run_folder: str, name: str, record: Mapping[str, Any]) -> None:
    with open(Path(run_folder) / "records" / name, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
