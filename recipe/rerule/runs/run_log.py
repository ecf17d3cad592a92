"""What a run keeps beside its checkpoints: its configuration, per-step metrics and per-prompt rewards.

<run>/config.yaml             the resolved configuration, without the values of environment variables in it
<run>/records/metrics.jsonl   verl's file logger: {"step": int, "data": {metric: number}}; a resumed run
                              writes metrics.1.jsonl, metrics.2.jsonl ... and later files win where
                              steps overlap
<run>/records/metrics_at_save.jsonl  what was known of the metrics of a step when its checkpoint was saved;
                              verl logs the step after that, so a run killed in between has them here alone;
                              metrics_at_save.N.jsonl beside metrics.N.jsonl, which counts first
<run>/records/prompts.jsonl   {"step": int, "prompts": [{"index", "type", "mode", "subject", "rewards",
                              "prompt_tokens", "response_tokens"}]}; appended to, the last line of a step
                              counts
<run>/records/validation.jsonl  rewards of the validation prompts, a line a validation: as prompts.jsonl, with
                              "query" in place of the tokens
<run>/records/replay.jsonl    what replay stored, let go and drew, a line a step, as StepLog.record gives it;
                              groups are [prompt index, step of storing]; appended to likewise
<run>/records/signal.jsonl    stage 1: what sampled responses say, a line a sampling (training/signal.py)
<run>/records/rollouts/N.jsonl  the responses of step N, a line each: {"index", "step", "side", "mode",
                              "prompt", "response", "response_ids", "reward"}
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from recipe.rerule import io

if TYPE_CHECKING:  # the report reads records without importing torch
    from omegaconf import DictConfig

    from recipe.rerule.replay import RolloutGroup, StepLog

LOGGED = "metrics"
"""Stem of the files that verl's logger writes."""
AT_SAVE = "metrics_at_save"
"""Stem of the files of metrics that were kept when a step was saved."""


def start(config: DictConfig) -> None:
    """Make the records folder, keep the configuration, and point verl's file logger into it."""
    run_folder = Path(config.trainer.default_local_dir)
    records = run_folder / "records"
    records.mkdir(parents=True, exist_ok=True)
    for name in ("prompts.jsonl", "validation.jsonl", "replay.jsonl", "signal.jsonl"):
        io.drop_torn_line(records / name)
    io.write(run_folder / "config.yaml", OmegaConf.to_yaml(_without_variables(config)).encode())
    # verl's file logger truncates the file that it opens.
    os.environ["VERL_FILE_LOGGER_PATH"] = str(records / _numbered(LOGGED, _starts(records)))


def _without_variables(config: DictConfig) -> DictConfig:
    """A copy without the values of the workers' environment variables, which may be keys."""
    kept = copy.deepcopy(config)
    variables = OmegaConf.select(kept, "ray_kwargs.ray_init.runtime_env.env_vars")
    for name in variables if OmegaConf.is_dict(variables) else ():
        variables[name] = "(not kept)"
    return kept


def metrics_files(run_folder: Path) -> list[Path]:
    """The run's metrics files, later ones counting where steps overlap: two for each start."""
    folder = run_folder / "records"
    starts = range(_starts(folder))
    names = [name for number in starts for name in (_numbered(AT_SAVE, number), _numbered(LOGGED, number))]
    return [folder / name for name in names if (folder / name).is_file()]


def _starts(folder: Path) -> int:
    """How often the run was started, by its metrics files."""
    found = [path.name.split(".")[1] for stem in (LOGGED, AT_SAVE) for path in folder.glob(f"{stem}.*jsonl")]
    counts = [
        1 if part == "jsonl" else int(part) + 1 for part in found if part == "jsonl" or part.isdecimal()
    ]
    return max(counts, default=0)


def _numbered(stem: str, start: int) -> str:
    return f"{stem}.{start}.jsonl" if start else f"{stem}.jsonl"


def keep_metrics(step: int, metrics: Mapping[str, Any]) -> None:
    """Keep the metrics of a step that is being saved, and put all records so far on the disk.

    To be called after `start`, in the same process, before the step's checkpoint counts. What is no number is
    left out.
    """
    logged = Path(os.environ["VERL_FILE_LOGGER_PATH"])
    numbers = {
        name: float(value) if math.isfinite(value) else None
        for name, value in metrics.items()
        if isinstance(value, Real)
    }
    name = logged.name.replace(LOGGED, AT_SAVE, 1)
    _append(logged.parents[1], name, {"step": step, "data": numbers})
    for path in logged.parent.glob("*.jsonl"):
        io.flush(path)
    io.flush(logged.parent)


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


def append_validation(
    run_folder: str, step: int, prompts: Iterable[Mapping[str, Any]], rewards: Iterable[float]
) -> None:
    """Append the rewards of every prompt of one validation.

    Args:
        prompts: of each response, "index", "type", "mode", "subject" and "query" of its prompt.
        rewards: of each response.
    """
    found: dict[int, dict[str, Any]] = {}
    for prompt, reward in zip(prompts, rewards, strict=True):
        found.setdefault(prompt["index"], {**prompt, "rewards": []})["rewards"].append(round(reward, 6))
    _append(run_folder, "validation.jsonl", {"step": step, "prompts": [*found.values()]})


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
    (folder / f"{step}.jsonl").write_text(io.json_lines(lines, nan=True), encoding="utf-8")


def append_replay(run_folder: str, log: StepLog) -> None:
    """Append what replay did at one step."""
    _append(run_folder, "replay.jsonl", log.record())


def _append(run_folder: str | Path, name: str, record: Mapping[str, Any]) -> None:
    io.append_line(Path(run_folder) / "records" / name, record)
