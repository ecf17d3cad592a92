"""The process that runs vLLM, seen from the one that asks.

It frees all its memory when it ends, and a crash in it is an error here rather than a hang. It runs
`python -m recipe.rerule.evaluation.engine.worker JOB.json`, which reports on its standard output, one JSON
object a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from recipe.rerule.process import Started, scratch_environment, scratch_folder

WORKER_COMMAND = (sys.executable, "-m", "recipe.rerule.evaluation.engine.worker")
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_LOG_TAIL_LINES = 15
_KILLED = (
    " (SIGKILL), as the system's out-of-memory killer ends it; if memory was used up, end what else runs "
    "there or, without an accelerator, lower VLLM_CPU_KVCACHE_SPACE"
)


class EngineError(RuntimeError):
    """A vLLM process failed; the message is one line with the model and the reason."""


def run_worker(job: dict[str, Any], defaults: Mapping[str, str]) -> Generator[dict[str, Any]]:
    """Run the worker on `job` and yield its events until closed, which ends the process.

    Its environment is the caller's, before the `defaults`.

    Raises:
        EngineError: the worker reported an error or ended before its last answer.
    """
    with scratch_folder() as folder:
        job_file, log_file = folder / "job.json", folder / "worker.log"
        job_file.write_text(json.dumps(job))
        environment = {**defaults, **os.environ, **_ENVIRONMENT, **scratch_environment(folder)}
        with log_file.open("w") as log, _worker_process(job_file, log, environment) as process:
            for event in _events(process):
                if "error" in event:
                    reason = event["error"]
                    break
                yield event
            else:
                reason = f"the process ended with exit code {process.wait()}"
                if process.returncode == -signal.SIGKILL:
                    reason += _KILLED
        _print_tail(log_file)
        raise EngineError(f"vLLM failed: {reason}")


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Events until the process ends; a line cut short by its end is none."""
    assert process.stdout is not None
    return (json.loads(line) for line in process.stdout if line.endswith("\n"))


@contextlib.contextmanager
def _worker_process(job_file: Path, log: Any, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The worker, logging to `log`; killed on leaving with all it started, so that nothing waits for vLLM.

    Its standard input is a pipe that nobody writes to: it closes with this process, and the worker then ends.
    """
    command = [*WORKER_COMMAND, str(job_file)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        text=True,
    )
    started = Started(process.pid)
    try:
        yield process
    finally:
        started.end(grace=0)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _print_tail(log_file: Path) -> None:
    lines = log_file.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    print("\n".join(["last lines of the vLLM log:", *lines]), file=sys.stderr)
