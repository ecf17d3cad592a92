"""TRL's side of `benchmarks.peer_trl`: GRPO with a replay buffer, as TRL documents it; with --plain, without.

Run as a process of its own, with the folder that holds TRL on PYTHONPATH. On its last line it prints a JSON
object: "ends", when each step ended (time.time), and "tokens", the mean length of a step's responses.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer

from benchmarks.workload import Workload
from reward.score import compute_score

LENGTH = "completions/mean_length"


class StepClock(TrainerCallback):
    """Remembers when each training step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.time())


def rewards(
    completions: list[list[dict[str, str]]],
    reward_model: list[dict[str, Any]],
    extra_info: list[dict[str, Any]],
    **columns: Any,
) -> list[float]:
    """The project's reward of each completion, in TRL's form of a reward function."""
    return [
        compute_score("", completion[-1]["content"], of["ground_truth"], asked)["score"]
        for completion, of, asked in zip(completions, reward_model, extra_info, strict=True)
    ]


def configuration(load: Workload, steps: int, folder: str, plain: bool) -> GRPOConfig:
    """The workload in TRL's names: float32, KL to the starting model, one optimiser step a training step."""
    kind, buffer = GRPOConfig, {}
    if not plain:
        kind, buffer = GRPOWithReplayBufferConfig, {"replay_buffer_size": load.replay_groups}
    rows = load.prompts * load.rollouts
    return kind(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        max_steps=steps,
        per_device_train_batch_size=load.pass_rows or rows,
        gradient_accumulation_steps=rows // (load.pass_rows or rows),
        num_generations=load.rollouts,
        max_completion_length=load.response_limit,
        temperature=load.temperature,
        learning_rate=load.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.01,
        max_grad_norm=1.0,
        beta=load.kl_coef,
        epsilon=0.2,
        epsilon_high=0.3,
        gradient_checkpointing=False,
        **buffer,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )


def main() -> None:
    """Train for some steps and print when each ended."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trl_loop", description=__doc__)
    parser.add_argument("workload", help="a Workload as JSON")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--plain", action="store_true", help="GRPO without a replay buffer")
    arguments = parser.parse_args()
    load = Workload(**json.loads(arguments.workload))
    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = (GRPOTrainer if arguments.plain else GRPOWithReplayBufferTrainer)(
            model=str(Path(load.model).resolve()),
            reward_funcs=rewards,
            args=configuration(load, arguments.steps, folder, arguments.plain),
            train_dataset=Dataset.from_parquet(load.train),
            callbacks=[clock],
        )
        trainer.train()
    tokens = [entry[LENGTH] for entry in trainer.state.log_history if LENGTH in entry]
    print(json.dumps({"ends": clock.ends, "tokens": tokens}))


if __name__ == "__main__":
    main()
