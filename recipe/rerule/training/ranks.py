"""The ranks of a command on verl's SFT trainer: one in this process, or several through torch's launcher."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from omegaconf import DictConfig

from recipe.rerule import io, process
from recipe.rerule.process import Started
from recipe.rerule.runs import run_folder, run_log


class RankError(RuntimeError):
    """A rank failed in a process that this one had started; the message is one line."""


def start(config: DictConfig, module: str, what: str, train: Callable[[DictConfig], None], lock: int) -> None:
    """Run `train` in every rank; all of them have ended when this returns or raises.

    Args:
        config: with trainer.n_gpus_per_node and trainer.nnodes.
        module: the command that each of several ranks runs, with this process's arguments.
        what: what is being trained, for the message.
        train: trains as the one rank, in this process.
        lock: of the run folder, as `run_folder.held` gives it. The launcher of several ranks keeps it too, so
            that no other run begins while they go on without this process.

    Raises RankError: a rank failed, and has said why.
    """
    if config.trainer.n_gpus_per_node == 1 and config.trainer.nnodes == 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ.update(rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        return train(config)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = f"--nproc-per-node={config.trainer.n_gpus_per_node}"
    command += [ranks, "-m", module, *sys.argv[1:]]
    with subprocess.Popen(command, pass_fds=[lock], env={**os.environ, process.RANK: "1"}) as launcher:
        started = Started(launcher.pid)
        with started.followed(), process.last_act(started.kill):
            try:
                run_folder.name_owner(lock, launcher.pid)
                exit_code = launcher.wait()
            finally:
                started.end(grace=0)
    if exit_code:
        raise RankError(
            f"a rank of {what} failed (exit code {exit_code}); its own error stands above. exitcode -9 there "
            "says that it was killed, often for its memory: lower data.micro_batch_size_per_gpu or "
            "data.max_token_len_per_gpu"
        )


@contextlib.contextmanager
def as_rank(config: DictConfig) -> Iterator[None]:
    """What verl's SFT trainer needs around it in one rank: platform, attention, the records of the run.

    verl's trainer is to be imported within the block.

    Raises DiskFullError: the run folder's disk is full.
    """
    from recipe.rerule.platform import sdpa

    if config.platform.name == "cpu":
        from recipe.rerule.platform import patches

        patches.install_in_engine()
    if sdpa.is_chosen(config.model):
        sdpa.install()
    if os.environ["RANK"] == "0":
        run_log.start(config)
    with io.naming_full_disk(config.trainer.default_local_dir):
        yield


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """A temporary folder for this process and its ranks, until the block is left."""
    with process.scratch_folder() as folder:
        own, usual = process.scratch_environment(folder), tempfile.tempdir
        before = {name: os.environ[name] for name in own if name in os.environ}
        os.environ.update(own)
        tempfile.tempdir = str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = usual
            for name in own:
                os.environ.pop(name, None)
            os.environ.update(before)
