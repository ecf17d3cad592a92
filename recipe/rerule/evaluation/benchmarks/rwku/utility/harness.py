"""Run lm-eval on a model and a target's utility sets, with nothing from the network."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from recipe.rerule.evaluation.benchmarks.rwku.utility.target_files import Row
from recipe.rerule.evaluation.benchmarks.rwku.utility.tasks import UtilityTask, write_tasks

DEVICES = {"gpu": "cuda", "cpu": "cpu"}
MISSING = "lm-eval is not installed, which the utility sets need: pip install -e '.[utility]'"


@dataclass(frozen=True)
class Settings:
    """How lm-eval runs.

    Attributes:
        model: a Hugging Face model folder.
        platform: "gpu" or "cpu".
        chat: whether questions go through the chat template, as one user turn.
        limit: questions a set, the first ones; None for all.
    """

    model: Path
    platform: str = "gpu"
    chat: bool = True
    limit: int | None = None

    @property
    def dtype(self) -> str:
        return "float32" if self.platform == "cpu" else "auto"

    def check(self) -> None:
        """Raises ValueError for an unknown platform, or a limit below 1."""
        if self.platform not in DEVICES:
            raise ValueError(f"unknown platform {self.platform!r}; choose one of {', '.join(DEVICES)}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"the limit is {self.limit}; it must be at least 1")


@dataclass(frozen=True)
class UtilityResult:
    """metrics: {"utility/mmlu": fraction, ...}. samples: a record a question: task, prompt, answer, score."""

    metrics: dict[str, float]
    samples: list[dict[str, Any]]


def evaluate_utility(rows: Mapping[str, list[Row]], settings: Settings) -> UtilityResult:
    """Score a model on the utility sets of `target_files.utility_rows`.

    Raises:
        ValueError: lm-eval is missing, a setting is unknown, or a row is wrong.
    """
    settings.check()
    tasks_folder = _lm_eval_tasks()
    with TemporaryDirectory(prefix="rerule-utility-") as folder:
        tasks = write_tasks(rows, tasks_folder, Path(folder))
        found = _simple_evaluate(Path(folder), list(tasks), settings)
    return UtilityResult(_metrics(found, tasks), _samples(found, tasks))


def require_lm_eval() -> None:
    """Raises ValueError, saying what to install, where lm-eval is missing."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError(MISSING)


def _lm_eval_tasks() -> Path:
    require_lm_eval()
    import lm_eval.tasks

    return Path(lm_eval.tasks.__file__).parent


def _simple_evaluate(folder: Path, tasks: list[str], settings: Settings) -> dict[str, Any]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    return lm_eval.simple_evaluate(
        # lm-eval's vLLM backend does not find vLLM's build for CPU, and a target's questions are few.
        model="hf",
        model_args={"pretrained": str(settings.model.resolve()), "dtype": settings.dtype},
        device=DEVICES[settings.platform],
        tasks=tasks,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        apply_chat_template=settings.chat,
        limit=settings.limit,
        batch_size=8,
        bootstrap_iters=0,
        log_samples=True,
    )


def _metrics(found: dict[str, Any], tasks: Mapping[str, UtilityTask]) -> dict[str, float]:
    return {
        f"utility/{task.name}": float(found["results"][name][task.metric]) for name, task in tasks.items()
    }


def _samples(found: dict[str, Any], tasks: Mapping[str, UtilityTask]) -> list[dict[str, Any]]:
    return [
        {
            "task": task.name,
            "index": sample["doc_id"],
            "prompt": sample["arguments"][0][0],
            "target": sample["target"],
            "responses": sample["filtered_resps"],
            "score": float(sample[task.metric.split(",")[0]]),
        }
        for name, task in tasks.items()
        for sample in found["samples"][name]
        # One entry a filter: a metric belongs to one of them.
        if sample.get("filter", "none") == task.metric.split(",")[1]
    ]
