"""Runs our commands as a user does: as processes, with a time limit."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 400


class Command:
    """A started `python ...` process; its output goes to a file, and whatever it started ends with it."""

    def __init__(self, arguments: list[str], log: Path, **place: Any) -> None:
        """place: another `cwd` or `env` than this project's folder and this process's environment."""
        self.log = log
        self._descendants: dict[int, psutil.Process] = {}
        self.seen: set[str] = set()
        """Names of all processes it was seen to start."""
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **{"cwd": ROOT, "env": os.environ | {"HF_HUB_OFFLINE": "1"}, **place},
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def descendants(self) -> list[psutil.Process]:
        """Processes started by the command, remembered so that they can be ended by their id."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        self._descendants.update({process.pid: process for process in found})
        for process in found:
            with contextlib.suppress(psutil.Error):
                self.seen.add(process.name())
        return found

    def named(self, name: str) -> list[psutil.Process]:
        """The descendants that have `name` in their command line or as their own name."""
        found = []
        for one in self.descendants():
            with contextlib.suppress(psutil.Error):
                if name in " ".join([one.name(), *one.cmdline()]):
                    found.append(one)
        return found

    def alive(self) -> list[str]:
        """Command lines of the descendants seen so far that still run."""
        lines = []
        for process in self._descendants.values():
            with contextlib.suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    lines.append(" ".join(process.cmdline()))
        return lines

    def wait_until(self, condition: Callable[[], Any], limit: float = LIMIT_SECONDS) -> None:
        """Wait for `condition`; fails with the log's end when the command ends or the limit passes first."""
        deadline = time.monotonic() + limit
        while not condition():
            self.descendants()
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{condition} not met; the log ends:\n{self.output[-3000:]}")
            time.sleep(0.2)

    def wait(self, limit: float = LIMIT_SECONDS) -> int:
        """Exit code; fails when the command is still running after `limit` seconds."""
        deadline = time.monotonic() + limit
        while self.process.poll() is None:
            self.descendants()
            if time.monotonic() > deadline:
                pytest.fail(f"still running after {limit} s; the log ends:\n{self.output[-3000:]}")
            time.sleep(0.2)
        return self.process.returncode

    def finish(self, limit: float = LIMIT_SECONDS) -> str:
        """The output of a command that must end with exit code 0."""
        assert self.wait(limit) == 0, self.output[-3000:]
        return self.output

    def error(self) -> str:
        """The one line with which a command ended, without `error: ` before it."""
        (line,) = [line for line in self.output.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")

    def assert_all_have_ended(self, seconds: float = 0.0) -> None:
        """Whatever the command started ends within `seconds`."""
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not (left := self.alive()), left

    def end(self) -> None:
        self.descendants()
        for process in [psutil.Process(self.process.pid)] if self.process.poll() is None else []:
            process.kill()
        for process in self._descendants.values():
            with contextlib.suppress(psutil.NoSuchProcess):  # also where another process has its id by now
                process.kill()
        self.process.wait()


PAPER_RULES = "replay.threshold_rule=fixed replay.require_signal=false replay.sampling=uniform"
"""What the paper stores and draws, but for the threshold; few groups of an untrained model have signal."""


PARITY = f"reward.custom_reward_function.path={ROOT}/tests/e2e/parity_reward.py"
"""By the benchmark's own reward no group of so small a model may have different rewards, by chance."""


def free_address(ip: str = "127.0.0.1") -> str:
    """The address with a port that is free now."""
    with socket.socket() as probe:
        probe.bind((ip, 0))
        return f"{ip}:{probe.getsockname()[1]}"


def stage2_arguments(world: Path, run_folder: Path, *overrides: str) -> list[str]:
    """Arguments of a stage 2 on the micro world: 4 prompts x 4 rollouts a step, nearly every group hard."""
    usual = (
        f"experiment=tiny actor_rollout_ref.model.path={world}/model data.train_files={world}/train.parquet "
        f"data.val_files={world}/val.parquet trainer.default_local_dir={run_folder} trainer.logger=[file] "
        "data.train_batch_size=4 actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=4 "
        f"{PAPER_RULES} replay.threshold=0.9 replay.min_groups=6 replay.warmup_steps=1 replay.capacity=12 "
        "replay.groups_per_update=4"
    )
    return [*usual.split(), *overrides]


def finish(log: Path, *arguments: object, **place: Any) -> str:
    """Run `python *arguments` to its end, which must be a success; returns its output."""
    command = Command([str(a) for a in arguments], log, **place)
    try:
        return command.finish()
    finally:
        command.end()


def torchrun(script: str, ranks: int, job: Mapping[str, Any], folder: Path) -> None:
    """Run a script of this folder by torch's launcher, with the job as a JSON file."""
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    finish(folder / "torchrun.txt", *launcher, ROOT / "tests" / "e2e" / script, path, env=environment)


def bash(*words: str, **environment: str) -> tuple[str, float]:
    """Run bash with this Python first on its path, which must succeed; what it printed, and the seconds."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    started = time.monotonic()
    done = subprocess.run(
        ["bash", *words],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout, time.monotonic() - started


def run_script(name: str, **environment: str) -> float:
    """Run a script of examples/ to its end; returns the seconds it took."""
    return bash(f"examples/{name}", **environment)[1]
