"""What replay costs: python -m benchmarks.replay_cost [RUN_FOLDER].

Measures a recorded run, or without one a short real run of its own on the embedded world (about two minutes),
in which every step replays as many rows as it samples. Prints one JSON object on its last line:
    replay_update_ratio  seconds a token of a replay update over those of old log-probs plus on-policy update
                         (a replay update does both passes)
    bookkeeping_share    work on the buffer (groups, offer, draw, collate, weigh, record) over the step
    replay_share         replay update over the step, at the steps that have one
    memory_ratio         process memory that 1,200 stored groups x 8 rollouts take over their unpadded tensors
    state_mb, save_seconds, load_seconds   of that buffer on disk
The first three are medians over the steps; the first two steps after a start are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from omegaconf import OmegaConf

from benchmarks.world import world
from recipe.rerule.replay import Replay, ReplayConfig, RolloutGroup, load, save
from recipe.rerule.runs.history import read_metrics

WARM_UP_STEPS = 2
GROUPS, ROLLOUTS, PROMPT_TOKENS, RESPONSE_TOKENS = 1200, 8, 20, 38
"""A full buffer of the paper's RWKU setting, with rows as long as TOFU's on average."""
RUN_STEPS = 12
EVERY_STEP_REPLAYS = (
    "replay.admission=all",
    "replay.require_signal=false",
    "replay.warmup_steps=1",
    "replay.min_groups=16",
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_cost", description=__doc__)
    parser.add_argument("run", nargs="?", type=Path, help="folder of a recorded stage-2 run")
    run = parser.parse_args().run
    if run is not None and not (run / "config.yaml").is_file():
        sys.exit(f"error: {run} is no run folder: it has no config.yaml")
    with tempfile.TemporaryDirectory() as folder:
        cost = run_cost(run or own_run(Path(folder) / "run"))
        print(json.dumps(cost | buffer_cost(Path(folder) / "state")))


def own_run(folder: Path) -> Path:
    """A stage 2 as a user starts it, from the world's base model."""
    data = world()
    arguments = [
        "experiment=tiny",
        f"actor_rollout_ref.model.path={data / 'model'}",
        f"data.train_files={data / 'train.parquet'}",
        f"data.val_files={data / 'val.parquet'}",
        f"trainer.default_local_dir={folder}",
        f"trainer.total_training_steps={RUN_STEPS}",
        "trainer.logger=[file]",
        *EVERY_STEP_REPLAYS,
    ]
    subprocess.run([sys.executable, "-m", "recipe.rerule.main", *arguments], check=True, stdout=sys.stderr)
    return folder


def run_cost(run: Path) -> dict[str, float]:
    """The three figures of a run folder; those of replay need a replay update after the warm-up steps."""
    steps = [data for _, data in sorted(read_metrics(run).items())][WARM_UP_STEPS:]
    bookkeeping = median(data["replay/bookkeeping_seconds"] / data["timing_s/step"] for data in steps)
    figures = {"bookkeeping_share": round(bookkeeping, 4)}
    replayed = [data for data in steps if data.get("replay/drawn_tokens")]
    if replayed:
        on_policy = median(_on_policy_seconds(data) / data["perf/total_num_tokens"] for data in steps)
        off_policy = median(data["replay/seconds"] / data["replay/drawn_tokens"] for data in replayed)
        share = median(data["replay/seconds"] / data["timing_s/step"] for data in replayed)
        figures["replay_update_ratio"] = round(off_policy / on_policy, 3)
        figures["replay_share"] = round(share, 3)
    elif OmegaConf.load(run / "config.yaml").replay.enable:
        sys.exit(f"error: {run} records no replay update after step {WARM_UP_STEPS}")
    return figures


def _on_policy_seconds(data: dict[str, float]) -> float:
    # verl times the whole of `_update_actor`, our hook included.
    hook = sum(data.get(f"replay/seconds/{part}", 0.0) for part in HOOK_PARTS)
    return data["timing_s/old_log_prob"] + data["timing_s/update_actor"] - hook


HOOK_PARTS = ("offer", "draw", "collate", "update", "record")


def buffer_cost(folder: Path) -> dict[str, float]:
    """Memory of a full buffer, and seconds and size of its state on disk."""
    replay, memory = full_replay()
    save_seconds = _seconds(lambda: save(replay, folder))
    size = sum(path.stat().st_size for path in folder.iterdir())
    load_seconds = _seconds(lambda: load(Replay(replay.config), folder))
    return {
        "memory_ratio": round(memory / sum(group.nbytes for group in replay.buffer), 3),
        "state_mb": round(size / 1e6, 2),
        "save_seconds": round(save_seconds, 2),
        "load_seconds": round(load_seconds, 2),
    }


def full_replay() -> tuple[Replay, int]:
    """A Replay with a full buffer, and the bytes of process memory that filling it took.

    One group is offered to another Replay before, since the first use of a function may import modules: those
    of numpy.quantile take 0.8 MB once, whatever the buffer holds.
    """
    Replay(ReplayConfig(admission="all")).offer([next(random_groups())], 1)
    replay = Replay(ReplayConfig(admission="all", capacity=GROUPS))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for step, group in enumerate(random_groups(), start=1):
        replay.offer([group], step)
    replay.offer([], GROUPS + 1)  # so that the last step's log holds no group
    del group
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return replay, taken


def random_groups() -> Iterator[RolloutGroup]:
    """GROUPS groups of random tokens, one a step, each of its own prompt."""
    generator = torch.Generator().manual_seed(0)
    for number in range(GROUPS):
        lengths = torch.randint(1, 2 * RESPONSE_TOKENS, (ROLLOUTS,), generator=generator, dtype=torch.int32)
        tokens = int(lengths.sum())
        rewards = torch.randint(0, 3, (ROLLOUTS,), generator=generator) / 2
        yield RolloutGroup(
            prompt_index=number,
            side="forget",
            mode="qa",
            step=number + 1,
            prompt_ids=torch.randint(0, 30000, (PROMPT_TOKENS,), generator=generator, dtype=torch.int32),
            response_ids=torch.randint(0, 30000, (tokens,), generator=generator, dtype=torch.int32),
            lengths=lengths,
            response_mask=torch.ones(tokens, dtype=torch.bool),
            old_log_probs=-torch.rand(tokens, generator=generator),
            ref_log_probs=-torch.rand(tokens, generator=generator),
            advantages=(rewards - rewards.mean()).repeat_interleave(lengths),
            rewards=rewards,
        )


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
