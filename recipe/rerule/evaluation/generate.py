"""Greedy generation with vLLM, each engine in a process of its own.

The process frees all its memory when it ends, and a crash in it is an error here rather than a hang. It runs
`python -m recipe.rerule.evaluation.worker JOB.json` and reports on its standard output, one JSON object a
line.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recipe.rerule.evaluation.models import Model, engine_key
from recipe.rerule.evaluation.probes import Probe

WORKER_COMMAND = (sys.executable, "-m", "recipe.rerule.evaluation.worker")
RAW_STOP = ("\n",)
"""What ends the response to a raw prompt: a base model goes on with the next question of its own."""
_LOG_TAIL_LINES = 15


class EngineError(RuntimeError):
    """A vLLM process failed; the message is one line with the model and the reason."""


@dataclass(frozen=True)
class Decoding:
    """How responses are generated, besides always greedily.

    Attributes:
        platform: "gpu" or "cpu". On CPU the engine computes in float32 and swaps weights between models of
            one architecture; on GPU it takes the model's own dtype and every model gets a fresh engine.
        max_tokens: most new tokens a response.
    """

    platform: str
    max_tokens: int

    @property
    def dtype(self) -> str:
        return "float32" if self.platform == "cpu" else "auto"

    @property
    def swaps_weights(self) -> bool:
        return self.platform == "cpu"


def generate(models: Sequence[Model], probes: Sequence[Probe], decoding: Decoding) -> dict[str, list[str]]:
    """Responses of every model, one a probe in order: {model name: [response]}, models in the given order.

    Raises:
        EngineError: a vLLM process failed.
    """
    responses: dict[str, list[str]] = {}
    for group in engine_groups(models, decoding):
        responses |= _generate_group(group, probes, decoding)
    return {model.name: responses[model.name] for model in models}


def engine_groups(models: Sequence[Model], decoding: Decoding) -> list[list[Model]]:
    """Models grouped by the engine that serves them, in order of first appearance."""
    groups: dict[str, list[Model]] = {}
    for model in models:
        groups.setdefault(engine_key(model) if decoding.swaps_weights else model.name, []).append(model)
    return list(groups.values())


def _generate_group(models: list[Model], probes: Sequence[Probe], decoding: Decoding) -> dict[str, list[str]]:
    job = {
        "models": [str(model.path.resolve()) for model in models],
        "prompts": [{"messages": probe.messages, "raw": probe.raw} for probe in probes],
        "raw_stop": list(RAW_STOP),
        "max_tokens": decoding.max_tokens,
        "dtype": decoding.dtype,
    }
    print(f"starting vLLM for {', '.join(model.name for model in models)} ...", file=sys.stderr, flush=True)
    with contextlib.closing(run_worker(job)) as events:
        return {model.name: _follow(events, model, len(probes)) for model in models}


def _follow(events: Iterator[dict[str, Any]], model: Model, total: int) -> list[str]:
    """Responses of the worker's next model, showing progress until they are there."""
    try:
        event = next(events)
        # The engine has started only by now: the bar's rate is that of generation alone.
        with tqdm(total=total, desc=model.name, unit="probe") as bar:
            while "responses" not in event:
                bar.update(event["done"])
                event = next(events)
    except EngineError as error:
        raise EngineError(f"model {model.name}: {error}") from error
    return event["responses"]


def run_worker(job: dict[str, Any]) -> Generator[dict[str, Any]]:
    """Run the worker on `job` and yield its events until closed, which ends the process.

    Raises:
        EngineError: the worker reported an error or ended before its last answer.
    """
    with tempfile.TemporaryDirectory(prefix="rerule-evaluate-") as folder:
        job_file, log_file = Path(folder, "job.json"), Path(folder, "worker.log")
        job_file.write_text(json.dumps(job))
        with log_file.open("w") as log, _worker_process(job_file, log) as process:
            for event in _events(process):
                if "error" in event:
                    reason = event["error"]
                    break
                yield event
            else:
                reason = f"the process ended with exit code {process.wait()}"
        _print_tail(log_file)
        raise EngineError(f"vLLM failed: {reason}")


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Events until the process ends; a line cut short by its end is none."""
    assert process.stdout is not None
    return (json.loads(line) for line in process.stdout if line.endswith("\n"))


@contextlib.contextmanager
def _worker_process(job_file: Path, log: Any) -> Iterator[subprocess.Popen[str]]:
    """The worker, logging to `log`; killed on leaving, so that nothing waits for vLLM's own exit."""
    command = [*WORKER_COMMAND, str(job_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=_environment(), text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _environment() -> dict[str, str]:
    """The caller's environment, with vLLM in one process and, by default, on all cores and quiet."""
    defaults = {
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
        # Binding threads to fixed cores would put two processes of one machine on the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    required = {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return defaults | dict(os.environ) | required


def _print_tail(log_file: Path) -> None:
    lines = log_file.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    print("\n".join(["last lines of the vLLM log:", *lines]), file=sys.stderr)
