"""Parts 3 and 4: the recipe itself, in separate processes, since verl chooses its platform on import."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_check.lines import Line

STEPS = 2
_RANK = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
}


def check_worker(device: str, small: bool) -> Iterator[Line]:
    """`ReplayActorWorker.update_actor_replay` on one rank; see `verl_worker`.

    Raises:
        subprocess.CalledProcessError: the worker failed; its output is above.
    """
    command = [sys.executable, "-m", "benchmarks.gpu_check.verl_worker", device]
    environment = os.environ | _RANK | {"MASTER_PORT": str(_free_port())}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    for fields in json.loads(output.splitlines()[-1]):
        yield Line(**fields)


def check_stages(device: str, small: bool) -> Iterator[Line]:
    """The quickstart's commands on this platform, stage 2 with replay for a few steps: seconds of each.

    Raises:
        subprocess.CalledProcessError: a command failed; its output is above.
    """
    platform = "gpu" if device == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        for name, command in _stages(Path(folder), platform).items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", *command], check=True, stdout=sys.stderr)
            yield Line("quickstart's stages", f"{name}: seconds", time.perf_counter() - start, "s")


def _stages(folder: Path, platform: str) -> dict[str, list[str]]:
    world, stage1, run = folder / "world", folder / "stage1", folder / "run"
    one = [f"platform={platform}", "trainer.n_gpus_per_node=1", "experiment=tiny"]
    sft = ["recipe.rerule.sft", f"model.path={world}/model", f"data.train_files={world}/sft.parquet"]
    main = [
        "recipe.rerule.main",
        f"actor_rollout_ref.model.path={stage1}/model",
        f"data.train_files={world}/train.parquet",
        f"data.val_files={world}/val.parquet",
        f"trainer.total_training_steps={STEPS}",
        "replay.warmup_steps=1",
        "replay.min_groups=1",
        "replay.require_signal=false",
    ]
    evaluate = [
        "recipe.rerule.evaluate",
        "model",
        "--platform",
        platform,
        "--probes",
        f"{world}/probes.parquet",
    ]
    return {
        "world and base model": ["data_prep", "world", "--out", str(world)],
        "stage 1": [*sft, *one, f"trainer.default_local_dir={stage1}"],
        f"stage 2, {STEPS} steps": [*main, *one, f"trainer.default_local_dir={run}"],
        "evaluation": [*evaluate, "--model", f"rerule={run}", "--out", str(folder / "evaluation")],
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
