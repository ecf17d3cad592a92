"""Models answer requests, with vLLM in a process of its own for each engine; answers are kept as they come.

What is wrong with a request shows before any engine starts. The process frees all its memory when it ends,
and a crash in it is an error here rather than a hang (`worker` says how it is spoken to).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recipe.rerule.evaluation.engine.answers import (
    KeptAnswers,
    answer_of,
    check_store,
    kept_answers,
    locked,
)
from recipe.rerule.evaluation.engine.encoding import Encoded, RequestError, check_requests, encode
from recipe.rerule.evaluation.engine.models import Model, engine_key
from recipe.rerule.evaluation.engine.requests import Answers, Request
from recipe.rerule.process import Started, scratch_environment, scratch_folder

WORKER_COMMAND = (sys.executable, "-m", "recipe.rerule.evaluation.engine.worker")
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_LOG_TAIL_LINES = 15
_NAMED = 8
"""Models that the line before an engine's start names."""
_KILLED = (
    " (SIGKILL), as the system's out-of-memory killer ends it; if memory was used up, end what else runs "
    "there or, without an accelerator, lower VLLM_CPU_KVCACHE_SPACE"
)


class EngineError(RuntimeError):
    """A vLLM process failed; the message is one line with the model and the reason."""


@dataclass(frozen=True)
class Decoding:
    """Where and how vLLM runs.

    Attributes:
        platform: "gpu" or "cpu".
        chosen_dtype: what all models compute in; None: float32 on CPU, bfloat16 on GPU. vLLM's own choice
            would be each model's config.json, so that the models of one table could differ in it.
        tensor_parallel_size: GPUs that one model is divided over.
        gpu_memory_utilization: share of each GPU's memory that vLLM takes; None is vLLM's own default.

    Raises ValueError: a value out of range, or an option for GPUs on the CPU.
    """

    platform: str
    chosen_dtype: str | None = None
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float | None = None

    def __post_init__(self) -> None:
        share = self.gpu_memory_utilization
        if self.tensor_parallel_size < 1:
            raise ValueError(f"--tensor-parallel-size is {self.tensor_parallel_size}; give a number of GPUs")
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"--gpu-memory-utilization is {share:g}; give a share above 0, at most 1")
        if self.platform == "cpu" and (self.tensor_parallel_size > 1 or share is not None):
            raise ValueError(
                "--tensor-parallel-size and --gpu-memory-utilization are for GPUs; leave them out with "
                "--platform cpu"
            )

    @property
    def dtype(self) -> str:
        """vLLM's name of the dtype."""
        return self.chosen_dtype or ("float32" if self.platform == "cpu" else "bfloat16")

    @property
    def engine_arguments(self) -> dict[str, Any]:
        """Arguments of vLLM's `LLM` that are chosen here."""
        arguments: dict[str, Any] = {"dtype": self.dtype, "tensor_parallel_size": self.tensor_parallel_size}
        if self.gpu_memory_utilization is not None:
            arguments["gpu_memory_utilization"] = self.gpu_memory_utilization
        return arguments

    @property
    def environment(self) -> dict[str, str]:
        """Of vLLM's process, where the caller's says nothing else: little in the log; on CPU all cores."""
        if self.platform != "cpu":
            return {"VLLM_LOGGING_LEVEL": "WARNING"}
        return {
            "VLLM_LOGGING_LEVEL": "WARNING",
            "OMP_NUM_THREADS": str(os.cpu_count() or 1),
            # Binding threads to fixed cores would put two processes of one machine on the same cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # vLLM compiles a few helpers also where the model runs eagerly: 5 to 15 s, and a C++ compiler.
            "TORCH_COMPILE_DISABLE": "1",
        }


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --dtype, --tensor-parallel-size and --gpu-memory-utilization."""
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"),
        help="dtype in which all models of the table compute (default: bfloat16, on cpu float32)",
    )  # fmt: skip
    parser.add_argument(
        "--tensor-parallel-size", type=int, default=1, metavar="N",
        help="GPUs that one model is divided over (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--gpu-memory-utilization", type=float, metavar="X",
        help="share of each GPU's memory that vLLM takes (default: vLLM's own)",
    )  # fmt: skip


def decoding_of(options: argparse.Namespace) -> Decoding:
    """What the command line chose. Raises ValueError."""
    return Decoding(
        options.platform, options.dtype, options.tensor_parallel_size, options.gpu_memory_utilization
    )


@dataclass(frozen=True)
class _Task:
    """What one model is asked, and where its answers go.

    Attributes:
        requests: of all models of its engine.
        encoded: `requests`, as its tokenizer has them.
        missing: numbers of those that are not answered yet; of two alike, one.
    """

    model: Model
    requests: Sequence[Request]
    encoded: list[Encoded]
    kept: KeptAnswers
    missing: list[int]


def run(
    models: Sequence[Model], requests: Sequence[Request], decoding: Decoding, store: Path | None = None
) -> dict[str, Answers]:
    """Every model's answer to every request: {model name: {request id: answer}}, both in the given order.

    As `run_each`, where all models are asked the same.
    """
    return run_each([(model, requests) for model in models], decoding, store)


def run_each(
    asked: Sequence[tuple[Model, Sequence[Request]]], decoding: Decoding, store: Path | None = None
) -> dict[str, Answers]:
    """Every model's answers to its own requests: {model name: {request id: answer}}, in the given order.

    Models that one engine can serve are asked in one job, whatever each of them is asked.

    Args:
        asked: models with different names. Requests with one id are the same request; every model could be
            asked all of them.
        decoding: where vLLM runs.
        store: folder that keeps answers as they come; those already there are not asked again.

    Raises:
        ValueError: a request that cannot be asked, or a store that cannot be used; no engine has started, or
            the store refused an answer.
        EngineError: a vLLM process failed. Answers that came before are in the store.
    """
    together: dict[str, Request] = {}
    for of_model in {id(own): own for _, own in asked}.values():
        check_requests(of_model)
        for request in of_model:
            if together.setdefault(request.id, request) != request:
                raise RequestError(f"request {request.id}: two different requests have this id")
    requests = list(together.values())
    encoded = encode([model for model, _ in asked], requests)
    places = {request.id: number for number, request in enumerate(requests)}
    with contextlib.ExitStack() as stack:
        if store is None:
            store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rerule-evaluate-")))
        folder = stack.enter_context(locked(store, check_store))
        tasks = {}
        for model, of_model in asked:
            kept = kept_answers(folder, model, {"platform": decoding.platform, "dtype": decoding.dtype})
            missing: dict[str, int] = {}
            for request in of_model:
                number = places[request.id]
                if (key := encoded[model.name][number].key) not in kept.answers:
                    missing.setdefault(key, number)
            tasks[model.name] = _Task(model, requests, encoded[model.name], kept, list(missing.values()))
        groups: dict[str, list[_Task]] = {}  # by engine; one for several models was tried on one device alone
        for name, task in tasks.items():
            if task.missing:
                engine = engine_key(task.model) if decoding.tensor_parallel_size == 1 else name
                groups.setdefault(engine, []).append(task)
        for group in groups.values():
            _ask(group, decoding)
        return {
            model.name: {
                one.id: tasks[model.name].kept.answers[encoded[model.name][places[one.id]].key]
                for one in of_model
            }
            for model, of_model in asked
        }


def _ask(tasks: list[_Task], decoding: Decoding) -> None:
    """Have one engine answer what is missing of each task."""
    names = ", ".join(task.model.name for task in tasks[:_NAMED])
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    print(f"starting vLLM for {names}{more} ...", file=sys.stderr, flush=True)
    encoded = tasks[0].encoded  # models that share an engine share a tokenizer
    job = {
        "models": [{"path": str(task.model.path.resolve()), "ask": task.missing} for task in tasks],
        "requests": [asdict(one) | {"seed": one.engine_seed} for one in encoded],
        "max_model_len": max(encoded[number].length for task in tasks for number in task.missing),
        "engine": decoding.engine_arguments,
    }
    with contextlib.closing(run_worker(job, decoding.environment)) as events:
        for task in tasks:
            try:
                event = next(events)
                # The engine has started only by now: the bar's rate is that of answering alone.
                total = sum(encoded[number].sequences for number in task.missing)
                with tqdm(total=total, desc=task.model.name, unit="answer") as bar:
                    while True:
                        _keep(event["answers"], task)
                        bar.update(sum(encoded[told["request"]].sequences for told in event["answers"]))
                        if bar.n == total:
                            break
                        event = next(events)
            except EngineError as error:
                raise EngineError(f"model {task.model.name}: {error}") from error


def _keep(told: Sequence[Mapping[str, Any]], task: _Task) -> None:
    """Append answers of the worker to the file of the task."""
    named = {}
    for fields in told:
        request, answer = task.requests[fields["request"]], answer_of(fields)
        if not all(map(math.isfinite, answer.log_probs)):
            raise EngineError(f"request {request.id}: a log-likelihood is not finite; are the weights?")
        named[task.encoded[fields["request"]].key] = request.id, answer
    task.kept.add(named)


def run_worker(job: dict[str, Any], defaults: Mapping[str, str]) -> Generator[dict[str, Any]]:
    """Run the worker on `job` and yield its events until closed, which ends the process.

    Its environment is the caller's, before the `defaults`. Its standard input is a pipe that nobody writes
    to: it closes with this process, and the worker then ends.

    Raises EngineError: the worker reported an error or ended before its last answer.
    """
    with scratch_folder() as folder:
        job_file, log_file = folder / "job.json", folder / "worker.log"
        job_file.write_text(json.dumps(job))
        environment = {**defaults, **os.environ, **_ENVIRONMENT, **scratch_environment(folder)}
        with log_file.open("w") as log:
            process = subprocess.Popen(
                [*WORKER_COMMAND, str(job_file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )
        started = Started(process.pid)
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            for line in process.stdout:
                event = json.loads(line) if line.endswith("\n") else {}  # cut short by the end of the process
                if "error" in event:
                    reason = event["error"]
                    break
                if event:
                    yield event
            else:
                reason = f"the process ended with exit code {process.wait()}"
                if process.returncode == -signal.SIGKILL:
                    reason += _KILLED
        finally:
            # With all that it started, so that nothing waits for vLLM.
            started.end(grace=0)
            process.wait()
            process.stdin.close()
            process.stdout.close()
        lines = log_file.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        print("\n".join(["last lines of the vLLM log:", *lines]), file=sys.stderr)
        raise EngineError(f"vLLM failed: {reason}")
