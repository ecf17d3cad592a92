"""Our training step against TRL's: python -m benchmarks.peer_trl [--steps N] ...

Runs GRPO with replay twice on this machine, with the same model, prompts, batch, response limit, temperature,
reward, learning rate and reference KL, and the same environment of threads: ours as
`python -m recipe.rerule.main` (verl, FSDP2, vLLM), and TRL 1.10.0's GRPO trainer with replay buffer
(transformers generation). TRL is installed without its dependencies into a folder of its own. Prints one JSON
object on its last line:
    ours_seconds, trl_seconds   median seconds from the end of a training step to the end of the next, without
                                start-up, the first steps and our steps that have no replay update
    ratio                       ours_seconds / trl_seconds
    ours_parts                  median seconds of each part of our step
    ours_steps, trl_steps       how many steps the medians are of
    ours_tokens, trl_tokens     median tokens of a response
Our replay is an extra update on stored groups. TRL's buffer puts stored groups into the places of the step's
groups without signal, in the one update of the step.
A model that earns the same reward everywhere, as an untrained one does, ends TRL's run: its buffer is empty.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.tofu import tofu
from benchmarks.workload import Workload
from benchmarks.world import world
from recipe.rerule.platform import select
from recipe.rerule.runs.history import read_metrics

ROOT = Path(__file__).resolve().parents[1]
TRL = "trl==1.10.0"
LEFT_OUT = 4
"""First steps of a run: memory is allocated, kernels chosen, and our buffer filled."""
LAST = 1
"""Our last step saves a checkpoint."""
PARTS = ("gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights")


class PeerError(ValueError):
    """A side of the comparison could not run; the message is one line and says where to look."""


def main() -> None:
    """Run both sides and print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_trl", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    what = "a model that knows rows of TOFU's files there (default: the embedded world's, built if missing)"
    parser.add_argument("--tofu", type=Path, metavar="FOLDER", help=what)
    parser.add_argument("--response-limit", type=int, default=24, help="tokens (default: 24)")
    parser.add_argument("--steps", type=int, default=24, help="training steps of each side (default: 24)")
    parser.add_argument("--cache", type=Path, default=ROOT / "outputs" / "peer_trl", help="where TRL goes")
    arguments = parser.parse_args()
    if arguments.steps < LEFT_OUT + LAST + 1:
        sys.exit(f"error: --steps must be at least {LEFT_OUT + LAST + 1}: the first {LEFT_OUT} are left out")
    try:
        print(json.dumps(compare(arguments)))
    except PeerError as error:
        sys.exit(f"error: {error}")


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both sides' figures, TRL's first: it is quicker to fail."""
    site = install_trl(arguments.cache / TRL)
    data = tofu(arguments.tofu) if arguments.tofu else world()
    load = Workload(f"{data / 'model'}", f"{data / 'train.parquet'}", response_limit=arguments.response_limit)
    select("cpu")  # what it puts into the environment, both sides inherit
    with tempfile.TemporaryDirectory() as folder:
        trl = run_trl(load, arguments.steps, site, Path(folder))
        ours = run_ours(load, arguments.steps, Path(folder))
    return {"ratio": round(ours["ours_seconds"] / trl["trl_seconds"], 3), **ours, **trl}


def install_trl(site: Path) -> Path:
    """The folder with TRL alone in it, installed on the first call.

    Raises:
        PeerError: pip could not install it.
    """
    if not (site / "trl").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), TRL]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
            raise PeerError(f"cannot install {TRL} into {site}: {reason}")
    return site


def run_trl(load: Workload, steps: int, site: Path, folder: Path) -> dict[str, float]:
    """TRL's figures, of `benchmarks.trl_loop` in a process that sees `site`. Raises PeerError."""
    log = folder / "trl.log"
    arguments = ["-m", "benchmarks.trl_loop", json.dumps(asdict(load)), "--steps", str(steps)]
    process = start(arguments, log, {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])})
    require_success(process, log, "TRL's run")
    result = json.loads(log.read_text().splitlines()[-1])
    seconds = [later - earlier for earlier, later in pairwise(result["ends"])][LEFT_OUT - 1 :]
    return {
        "trl_seconds": round(median(seconds), 3),
        "trl_steps": len(seconds),
        "trl_tokens": round(median(result["tokens"][LEFT_OUT:]), 1),
    }


def run_ours(load: Workload, steps: int, folder: Path) -> dict[str, Any]:
    """Our figures, from a stage 2 as a user starts it. Raises PeerError."""
    run, log = folder / "run", folder / "ours.log"
    process = start(["-m", "recipe.rerule.main", *stage2_arguments(load, steps, run)], log, {})
    ends = watch_lines(process, run / "records" / "metrics.jsonl")
    require_success(process, log, "our run")
    return our_figures(ends, [data for _, data in sorted(read_metrics(run).items())])


def stage2_arguments(load: Workload, steps: int, run: Path, experiment: str = "tiny") -> list[str]:
    """The workload in our names. Replay starts as early as it can; prompts have 128 tokens at most."""
    rollout = "actor_rollout_ref.rollout"
    return [
        f"experiment={experiment}",
        "platform=cpu",
        f"actor_rollout_ref.model.path={load.model}",
        f"data.train_files={load.train}",
        f"data.val_files={load.train}",
        f"data.train_batch_size={load.prompts}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={load.prompts}",
        f"{rollout}.n={load.rollouts}",
        f"{rollout}.temperature={load.temperature}",
        "data.max_prompt_length=128",
        f"{rollout}.max_model_len={128 + load.response_limit}",
        f"data.max_response_length={load.response_limit}",
        f"actor_rollout_ref.actor.optim.lr={load.learning_rate}",
        f"actor_rollout_ref.actor.kl_loss_coef={load.kl_coef}",
        f"replay.capacity={load.replay_groups}",
        f"replay.min_groups={load.prompts}",
        f"replay.groups_per_update={load.prompts}",
        "replay.admission=all",
        "replay.require_signal=false",
        "replay.sampling=uniform",
        "replay.warmup_steps=1",
        f"trainer.total_training_steps={steps}",
        "trainer.test_freq=-1",  # TRL does not validate either
        f"trainer.default_local_dir={run}",
        "trainer.logger=[file]",
    ]


def start(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A Python process in the project's folder, offline, its output going to `log`."""
    with open(log, "w") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def watch_lines(process: subprocess.Popen[bytes], path: Path) -> list[float]:
    """Waits for the process; the moment each line of `path` was there, in seconds of the monotonic clock."""
    seen: list[float] = []
    while process.poll() is None:
        lines = path.read_bytes().count(b"\n") if path.exists() else 0
        seen += [time.monotonic()] * (lines - len(seen))
        time.sleep(0.02)
    return seen


def require_success(process: subprocess.Popen[bytes], log: Path, what: str) -> None:
    """Waits for the process.

    Raises:
        PeerError: it failed; the message holds the last line it wrote.
    """
    if process.wait():
        lines = log.read_text(errors="replace").strip().splitlines() or ["it wrote nothing"]
        raise PeerError(f"{what} failed with exit code {process.returncode}: {lines[-1]}")


def our_figures(ends: Sequence[float], steps: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Medians over the steps with a replay update, without the first and the last.

    Args:
        ends: when each step's metrics were written, seconds. steps: each step's metrics, in order.

    Raises:
        PeerError: no step is left.
    """
    kept = [
        (ends[number] - ends[number - 1], data)
        for number, data in enumerate(steps[: len(steps) - LAST])
        if number >= LEFT_OUT and data.get("replay/updates")
    ]
    if not kept:
        raise PeerError(f"our run has no step with a replay update after step {LEFT_OUT}")
    parts = [part_seconds(total, data) for total, data in kept]
    return {
        "ours_seconds": round(median(total for total, _ in kept), 3),
        "ours_steps": len(kept),
        "ours_tokens": round(median(data["response_length/mean"] for _, data in kept), 1),
        "ours_parts": {name: round(median(part[name] for part in parts), 3) for name in parts[0]},
    }


def part_seconds(total: float, data: Mapping[str, float]) -> dict[str, float]:
    """Seconds of one step by part; `replay` is the replay update, `rest` what verl does not time."""
    parts = {name: data[f"timing_s/{name}"] for name in PARTS}
    rest = total - sum(parts.values())
    parts["update_actor"] -= data["replay/seconds"]
    return {**parts, "replay": data["replay/seconds"], "rest": rest}


if __name__ == "__main__":
    main()
