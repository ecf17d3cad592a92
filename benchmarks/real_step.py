"""A training step on a real model against TRL's: python -m benchmarks.real_step --model FOLDER --train FILE

Runs stage 2 with replay and TRL's GRPO on this machine, one after the other, with the same model, prompts,
batch (8 prompts x 8 responses), response limit, temperature, reward, learning rate and reference KL. FOLDER
holds a model of about 135 M parameters, and FILE the prompts that `python -m data_prep custom` wrote. TRL
computes the 64 responses of a step in passes of 16, so that their logits fit. Prints one JSON object on its
last line:
    ratio, ratio_without_replay   our seconds of a step over TRL's, with and without the replay update
    ours_seconds, trl_seconds     median seconds from the end of a step to the end of the next
    ours_cpu, trl_cpu             median processor seconds of a step, of all processes; with other work on the
                                  machine these say more than seconds
    ours_peak_gb, trl_peak_gb     most memory of all processes together (PSS)
    ours_parts                    median seconds of each part of our step
    ours_tokens, trl_tokens       median tokens of a response
The first two steps of each side are left out, and our last one, which saves a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import peer_trl
from benchmarks.workload import Workload
from recipe.rerule.platform import select
from recipe.rerule.runs.history import read_metrics

LEFT_OUT = 2
TRL_ROWS = 16


@dataclass
class Usage:
    """What a process and all that it started have used; sampled until it ends.

    Attributes:
        samples: moment (time.time), processor seconds until then.
        peak: bytes of memory, by proportional set size.
    """

    process: subprocess.Popen[bytes]
    every: float = 0.5
    samples: list[tuple[float, float]] = field(default_factory=list)
    peak: int = 0

    def follow(self) -> Usage:
        """Sample in a thread, which ends with the process."""
        threading.Thread(target=self._sample, daemon=True).start()
        return self

    def cpu_at(self, moment: float) -> float:
        """Processor seconds used until then."""
        return max((used for at, used in self.samples if at <= moment), default=0.0)

    def _sample(self) -> None:
        used: dict[int, float] = {}
        while self.process.poll() is None:
            memory = 0
            try:
                root = psutil.Process(self.process.pid)
                processes = [root, *root.children(recursive=True)]
            except psutil.Error:
                continue
            for each in processes:
                try:
                    memory += each.memory_full_info().pss
                    used[each.pid] = sum(each.cpu_times()[:2])
                except psutil.Error:  # it has ended
                    pass
            self.peak = max(self.peak, memory)
            self.samples.append((time.time(), sum(used.values())))
            time.sleep(self.every)


def main() -> None:
    """Run both sides and print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_step", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--train", required=True, help="prompts in parquet")
    parser.add_argument("--steps", type=int, default=6, help="training steps of each side (default: 6)")
    parser.add_argument(
        "--cache", type=Path, default=peer_trl.ROOT / "outputs" / "peer_trl", help="where TRL goes"
    )
    parser.add_argument("overrides", nargs="*", help="settings of our side, such as KEY=VALUE")
    arguments = parser.parse_args()
    if arguments.steps < LEFT_OUT + 2:
        sys.exit(
            f"error: --steps must be at least {LEFT_OUT + 2}: the first {LEFT_OUT} are left out, and the last"
        )
    load = Workload(
        model=arguments.model,
        train=arguments.train,
        prompts=8,
        response_limit=32,
        learning_rate=1e-6,
        pass_rows=TRL_ROWS,
    )
    try:
        site = peer_trl.install_trl(arguments.cache / peer_trl.TRL)
        select("cpu")  # what it puts into the environment, both sides inherit
        with tempfile.TemporaryDirectory() as folder:
            trl = of_trl(load, arguments.steps, site, Path(folder))
            ours = of_ours(load, arguments.steps, Path(folder), arguments.overrides)
    except peer_trl.PeerError as error:
        sys.exit(f"error: {error}")
    without = ours["ours_seconds"] - ours["ours_parts"]["replay"]
    ratios = {
        "ratio": round(ours["ours_seconds"] / trl["trl_seconds"], 2),
        "ratio_without_replay": round(without / trl["trl_seconds"], 2),
    }
    print(json.dumps(ratios | ours | trl))


def of_trl(load: Workload, steps: int, site: Path, folder: Path) -> dict[str, Any]:
    """TRL's figures. Raises PeerError."""
    log = folder / "trl.log"
    arguments = ["-m", "benchmarks.trl_loop", json.dumps(asdict(load)), "--plain", "--steps", str(steps)]
    process = peer_trl.start(arguments, log, {"PYTHONPATH": f"{peer_trl.ROOT}:{site}"})
    usage = Usage(process).follow()
    peer_trl.require_success(process, log, "TRL's run")
    found = json.loads(log.read_text().splitlines()[-1])
    return figures("trl", found["ends"], found["tokens"], usage)


def of_ours(load: Workload, steps: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Our figures, from a stage 2 as a user starts it. Raises PeerError."""
    run, log = folder / "run", folder / "ours.log"
    settings = [*peer_trl.stage2_arguments(load, steps, run, "custom"), *overrides]
    process = peer_trl.start(["-m", "recipe.rerule.main", *settings], log, {})
    usage = Usage(process).follow()
    lines = peer_trl.watch_lines(process, run / "records" / "metrics.jsonl")
    ends = [time.time() + moment - time.monotonic() for moment in lines]
    peer_trl.require_success(process, log, "our run")
    data = [of for _, of in sorted(read_metrics(run).items())][:-1]
    found = figures("ours", ends[: len(data)], [of["response_length/mean"] for of in data], usage)
    spans = [later - earlier for earlier, later in pairwise(ends)]
    parts = [
        peer_trl.part_seconds(seconds, {"replay/seconds": 0.0} | of)
        for seconds, of in zip(spans, data[1:], strict=False)
    ][LEFT_OUT - 1 :]
    return found | {"ours_parts": {name: round(median(of[name] for of in parts), 1) for name in parts[0]}}


def figures(side: str, ends: list[float], tokens: list[float], usage: Usage) -> dict[str, Any]:
    """Medians over the steps after the first LEFT_OUT.

    Args:
        ends: when each step ended (time.time). tokens: mean tokens of each step's responses.
    """
    kept = list(pairwise(ends))[LEFT_OUT - 1 :]
    return {
        f"{side}_seconds": round(median(later - earlier for earlier, later in kept), 1),
        f"{side}_cpu": round(
            median(usage.cpu_at(later) - usage.cpu_at(earlier) for earlier, later in kept), 1
        ),
        f"{side}_peak_gb": round(usage.peak / 1e9, 1),
        f"{side}_tokens": round(median(tokens[LEFT_OUT:]), 1),
        f"{side}_steps": len(kept),
    }


if __name__ == "__main__":
    main()
