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
import selectors
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recipe.rerule.evaluation.engine.answers import ANSWERS, Kept, answer_of, digest, identity_of
from recipe.rerule.evaluation.engine.encoding import Encoded, RequestError, encode
from recipe.rerule.evaluation.engine.models import Model, engine_key
from recipe.rerule.evaluation.engine.requests import Answers, Request
from recipe.rerule.process import Started, positive, scratch_environment, scratch_folder

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
        engines: that share the questions of a model, each in a process with GPUs of its own.
        cuda_graphs: whether vLLM compiles and captures a model before it answers. Each model then has an
            engine of its own, because vLLM does not capture anew where it loads other weights.

    Raises ValueError: a value out of range, an option for GPUs on the CPU, or fewer GPUs than are asked for.
    """

    platform: str
    chosen_dtype: str | None = None
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    engines: int = 1
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        share, size = self.gpu_memory_utilization, self.tensor_parallel_size
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"--gpu-memory-utilization is {share:g}; give a share above 0, at most 1")
        if self.platform == "cpu" and (max(size, self.engines) > 1 or share is not None or self.cuda_graphs):
            raise ValueError(
                "--tensor-parallel-size, --gpu-memory-utilization, --engines and --cuda-graphs are for GPUs; "
                "leave them out with --platform cpu"
            )
        _ = self.devices

    @property
    def devices(self) -> list[dict[str, str]]:
        """Of each engine's process, the variable that gives it its GPUs; a single one finds them itself."""
        if self.engines == 1:
            return [{}]
        import torch

        given, size = os.environ.get("CUDA_VISIBLE_DEVICES"), self.tensor_parallel_size
        there = given.split(",") if given else [str(number) for number in range(torch.cuda.device_count())]
        if len(there) < self.engines * size:
            raise ValueError(
                f"--engines is {self.engines} with {size} GPUs each (--tensor-parallel-size), but "
                f"{len(there)} are here; lower one of them"
            )
        own = [there[first : first + size] for first in range(0, self.engines * size, size)]
        return [{"CUDA_VISIBLE_DEVICES": ",".join(numbers)} for numbers in own]

    @property
    def dtype(self) -> str:
        """vLLM's name of the dtype."""
        return self.chosen_dtype or ("float32" if self.platform == "cpu" else "bfloat16")

    @property
    def engine_arguments(self) -> dict[str, Any]:
        """Arguments of vLLM's `LLM` that are chosen here."""
        arguments: dict[str, Any] = {
            "dtype": self.dtype,
            "tensor_parallel_size": self.tensor_parallel_size,
            "enforce_eager": not self.cuda_graphs,
        }
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
            "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
            # Binding threads to fixed cores would put two processes of one machine on the same cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # vLLM compiles a few helpers also where the model runs eagerly: 5 to 15 s, and a C++ compiler.
            "TORCH_COMPILE_DISABLE": "1",
        }


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `Decoding`."""
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"),
        help="dtype in which all models of the table compute (default: bfloat16, on cpu float32)",
    )  # fmt: skip
    parser.add_argument(
        "--tensor-parallel-size", type=positive, default=1, metavar="N",
        help="GPUs that one model is divided over (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--gpu-memory-utilization", type=float, metavar="X",
        help="share of each GPU's memory that vLLM takes (default: vLLM's own)",
    )  # fmt: skip
    parser.add_argument(
        "--engines", type=positive, default=1, metavar="N",
        help="vLLM processes that share the questions, each on GPUs of its own (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--cuda-graphs", action="store_true",
        help="let vLLM compile and capture each model: it starts later and answers faster, which pays for "
        "large models with many thousands of answers",
    )  # fmt: skip


def decoding_of(options: argparse.Namespace) -> Decoding:
    """What the command line chose. Raises ValueError."""
    return Decoding(
        options.platform,
        options.dtype,
        options.tensor_parallel_size,
        options.gpu_memory_utilization,
        options.engines,
        options.cuda_graphs,
    )


@dataclass(frozen=True)
class _Task:
    """What one model is asked, and where its answers go.

    Attributes:
        requests: of all models of its engine.
        encoded: `requests`, as its tokenizer has them.
        keys: of their answers in `Kept`.
        missing: numbers of those that are not answered yet; of two alike, one.
    """

    model: Model
    requests: Sequence[Request]
    encoded: list[Encoded]
    keys: list[str]
    missing: list[int]


def run(
    models: Sequence[Model], requests: Sequence[Request], decoding: Decoding, folder: Path
) -> dict[str, Answers]:
    """Every model's answer to every request: {model name: {request id: answer}}, both in the given order.

    As `run_each`, where all models are asked the same.
    """
    return run_each([(model, requests) for model in models], decoding, folder)


def run_each(
    asked: Sequence[tuple[Model, Sequence[Request]]], decoding: Decoding, folder: Path
) -> dict[str, Answers]:
    """Every model's answers to its own requests: {model name: {request id: answer}}, in the given order.

    Models that one engine can serve are asked in one job, whatever each of them is asked.

    Args:
        asked: models with different names. Requests with one id are the same request; every model could be
            asked all of them.
        decoding: where vLLM runs.
        folder: keeps answers as they come (`Kept`); those already there are not asked again.

    Raises:
        ValueError: a request that cannot be asked, or a folder that cannot keep answers; no engine has
            started, or the disk refused an answer.
        EngineError: a vLLM process failed. Answers that came before are kept.
    """
    together: dict[str, Request] = {}
    for _, of_model in asked:
        for request in of_model:
            if together.setdefault(request.id, request) != request:
                raise RequestError(f"request {request.id}: two different requests have this id")
    requests = list(together.values())
    encoded = encode([model for model, _ in asked], requests)
    places = {request.id: number for number, request in enumerate(requests)}
    with Kept(folder / ANSWERS) as kept:
        tasks = {}
        groups: dict[str, list[_Task]] = {}  # by engine; one for several models was tried on one device alone
        for model, of_model in asked:
            own = encoded[model.name]
            identity = identity_of(model, decoding.platform, decoding.dtype)
            keys = [digest([identity, one.key]) for one in own]
            missing: dict[str, int] = {}
            for request in of_model:
                number = places[request.id]
                if keys[number] not in kept.records:
                    missing.setdefault(keys[number], number)
            tasks[model.name] = _Task(model, requests, own, keys, list(missing.values()))
            if missing:
                shares = decoding.tensor_parallel_size == 1 and not decoding.cuda_graphs
                engine = engine_key(model) if shares else model.name
                groups.setdefault(engine, []).append(tasks[model.name])
        for group in groups.values():
            _ask(group, decoding, kept)
    return {
        model.name: {
            one.id: answer_of(kept.records[tasks[model.name].keys[places[one.id]]]) for one in of_model
        }
        for model, of_model in asked
    }


def _ask(tasks: list[_Task], decoding: Decoding, kept: Kept) -> None:
    """Have one engine answer what is missing of each task."""
    names = ", ".join(task.model.name for task in tasks[:_NAMED])
    more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
    print(f"starting vLLM for {names}{more} ...", file=sys.stderr, flush=True)
    encoded = tasks[0].encoded  # models that share an engine share a tokenizer
    job = {
        "models": [{"path": str(task.model.path.resolve()), "ask": task.missing} for task in tasks],
        "requests": [asdict(one) | {"seed": one.engine_seed} for one in encoded],
        "max_model_len": max(encoded[number].length for task in tasks for number in task.missing),
        "engine": {
            **decoding.engine_arguments,
            # Cached prefixes of one model's weights would be wrong for the next model's.
            "enable_prefix_caching": decoding.platform == "gpu" and len(tasks) == 1,
        },
    }
    left = [sum(encoded[number].sequences for number in task.missing) for task in tasks]
    bars: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(contextlib.closing(run_worker(job, decoding)))
        while any(left):
            task = next(task for task, count in zip(tasks, left, strict=True) if count)
            try:
                event = next(events)
                place = event["model"]
                task = tasks[place]
                kept.add([_record(task, fields) for fields in event["answers"]])
            except EngineError as error:
                raise EngineError(f"model {task.model.name}: {error}") from error
            if place not in bars:
                # The engine has started only by now: the bar's rate is that of answering alone.
                bar = tqdm(total=left[place], desc=task.model.name, unit="answer")
                bars[place] = stack.enter_context(bar)
            answered = sum(encoded[told["request"]].sequences for told in event["answers"])
            bars[place].update(answered)
            left[place] -= answered
            if not left[place]:
                bars[place].close()


def _record(task: _Task, fields: Mapping[str, Any]) -> dict[str, Any]:
    """An answer of the worker, as it is kept. Raises EngineError where it is no number."""
    number = fields["request"]
    if not all(map(math.isfinite, fields.get("log_probs", ()))):
        name = task.requests[number].id
        raise EngineError(f"request {name}: a log-likelihood is not finite; are the weights?")
    return {"key": task.keys[number], **fields, "request": task.requests[number].id}


@dataclass
class _Worker:
    """A process of vLLM: what it has begun to say, and where its log is."""

    process: subprocess.Popen[bytes]
    log: Path
    begun: bytes = b""


def run_worker(job: dict[str, Any], decoding: Decoding) -> Generator[dict[str, Any]]:
    """Run the worker on `job` and yield its events until closed, which ends the process.

    With several engines, each answers its part of what every model is asked, and events come as they are
    said. A process has the caller's environment, before that of `decoding`. Its standard input is a pipe that
    nobody writes to: it closes with this process, and the worker then ends.

    Raises EngineError: a worker reported an error or ended before its last answer.
    """
    devices = decoding.devices[: max(len(one["ask"]) for one in job["models"])]
    with scratch_folder() as folder, contextlib.ExitStack() as stack:
        workers = []
        for number, own in enumerate(devices):
            models = [one | {"ask": one["ask"][number :: len(devices)]} for one in job["models"]]
            job_file, log_file = folder / f"job{number}.json", folder / f"worker{number}.log"
            job_file.write_text(json.dumps({**job, "models": models}))
            variables = decoding.environment | dict(os.environ) | own | _ENVIRONMENT
            log = stack.enter_context(log_file.open("w"))
            process = subprocess.Popen(
                [*WORKER_COMMAND, str(job_file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**variables, **scratch_environment(folder)},
            )
            stack.callback(_end, process, Started(process.pid))
            workers.append(_Worker(process, log_file))
        failed, reason = yield from _events(workers)
        stack.close()
        lines = failed.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        print("\n".join(["last lines of the vLLM log:", *lines]), file=sys.stderr)
        raise EngineError(f"vLLM failed: {reason}")


def _events(workers: Sequence[_Worker]) -> Generator[dict[str, Any], None, tuple[_Worker, str]]:
    """The events of all workers, line by line; then which of them failed, and why."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        while True:
            for key, _ in selector.select():
                worker = key.data
                if said := os.read(key.fd, 2**20):
                    *lines, worker.begun = (worker.begun + said).split(b"\n")
                    for event in map(json.loads, lines):
                        if "error" in event:
                            return worker, event["error"]
                        yield event
                    continue
                selector.unregister(key.fileobj)
                code = worker.process.wait()
                if code or not selector.get_map():
                    killed = _KILLED if code == -signal.SIGKILL else ""
                    return worker, f"the process ended with exit code {code}{killed}"


def _end(process: subprocess.Popen[bytes], started: Started) -> None:
    """End a worker with all that it started, so that nothing waits for vLLM."""
    started.end(grace=0)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
