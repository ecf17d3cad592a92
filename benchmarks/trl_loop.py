"""TRL's side of `benchmarks.peer_trl`: GRPO with a replay buffer, as TRL documents it; with --plain, without.

Run by peer_trl as a process of its own, with the folder that holds TRL on PYTHONPATH. On its last line it
prints a JSON object: "ends", when each step ended (time.time); "seconds", from the end of one training step
to the end of the next; "tokens", the mean length of a step's responses; "before", seconds from the beginning
of training to the end of the first step; and "scores", {step: mean reward of greedy answers to the rows of
--validate}. Seconds leave validation out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer

from benchmarks.workload import Workload
from reward.score import compute_score

LENGTH = "completions/mean_length"


class StepClock(TrainerCallback):
    """Remembers when each training step ended; it stands still while `paused` grows."""

    def __init__(self) -> None:
        self.paused = 0.0
        self.began = 0.0
        self.ends: list[float] = []

    def now(self) -> float:
        """Seconds of training from some moment on."""
        return time.perf_counter() - self.paused

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.began = self.now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(self.now())

    def seconds(self) -> list[float]:
        """Seconds of the second step, the third and so on; where the first began is not known."""
        return [later - earlier for earlier, later in zip(self.ends, self.ends[1:], strict=False)]


class HeldOut(TrainerCallback):
    """Asks the model rows that it is not trained on, and stops the clock meanwhile.

    every: steps between two validations. limit: tokens of an answer.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], every: int, limit: int, clock: StepClock) -> None:
        self.rows, self.every, self.limit, self.clock = rows, every, limit, clock
        self.scores: dict[int, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        if state.global_step % self.every:
            return
        began = time.perf_counter()
        answers = greedy(
            of["model"], of["processing_class"], [row["prompt"] for row in self.rows], self.limit
        )
        found = rewards(
            [[{"content": answer}] for answer in answers],
            *([row[column] for row in self.rows] for column in ("reward_model", "extra_info")),
        )
        self.scores[state.global_step] = sum(found) / len(found)
        self.clock.paused += time.perf_counter() - began


@torch.no_grad()
def greedy(model: Any, tokenizer: Any, prompts: Sequence[Any], limit: int) -> list[str]:
    """Greedy answers to chat prompts; the model's mode is restored."""
    training = model.training
    model.eval()
    batch = tokenizer.apply_chat_template(
        list(prompts), add_generation_prompt=True, padding=True, padding_side="left",
        return_dict=True, return_tensors="pt",
    )  # fmt: skip
    written = model.generate(**batch, do_sample=False, max_new_tokens=limit)
    model.train(training)
    return tokenizer.batch_decode(written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


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
    """Train for some steps and print their seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trl_loop", description=__doc__)
    parser.add_argument("workload", help="a Workload as JSON")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--plain", action="store_true", help="GRPO without a replay buffer")
    parser.add_argument("--validate", help="rows in parquet")
    parser.add_argument("--every", type=int, default=4, help="steps between validations (default: 4)")
    arguments = parser.parse_args()
    load = Workload(**json.loads(arguments.workload))
    clock = StepClock()
    rows = Dataset.from_parquet(arguments.validate).to_list() if arguments.validate else []
    held_out = HeldOut(rows, arguments.every, load.response_limit, clock)
    with tempfile.TemporaryDirectory() as folder:
        trainer = (GRPOTrainer if arguments.plain else GRPOWithReplayBufferTrainer)(
            model=str(Path(load.model).resolve()),
            reward_funcs=rewards,
            args=configuration(load, arguments.steps, folder, arguments.plain),
            train_dataset=Dataset.from_parquet(load.train),
            callbacks=[clock, *([held_out] if rows else [])],
        )
        trainer.train()
    tokens = [entry[LENGTH] for entry in trainer.state.log_history if LENGTH in entry]
    before = clock.ends[0] - clock.began
    ends = [time.time() + end - clock.now() for end in clock.ends] if not rows else []
    found = {
        "ends": ends,
        "seconds": clock.seconds(),
        "tokens": tokens,
        "before": before,
        "scores": held_out.scores,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
