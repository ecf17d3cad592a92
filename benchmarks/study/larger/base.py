"""A base model, trained once on one machine, going on after a stop from its last whole epoch."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, get_linear_schedule_with_warmup

from benchmarks.study.larger.machine import Machine
from benchmarks.study.larger.progress import minutes
from benchmarks.study.runs import StudyError
from data_prep.world.config import WorldConfig
from data_prep.world.model import (
    Batch,
    encode_pairs,
    make_batches,
    make_model,
    make_optimisers,
    train_step,
)

WARMUP_SHARE = 0.05


class Training:
    """A training between two epochs, which can be kept and gone on from.

    Attributes:
        epoch: how many are done.
        seconds: that they took, on whatever machines.
        loss: mean of the last one, in nats per answer token.
    """

    def __init__(
        self,
        config: WorldConfig,
        tokenizer: PreTrainedTokenizerFast,
        pairs: Sequence[tuple[str, str]],
        machine: Machine,
    ) -> None:
        self.config, self.machine = config, machine
        self.examples = encode_pairs(tokenizer, list(pairs))
        self.model: LlamaForCausalLM = make_model(config, tokenizer).to(machine.device)
        self.optimisers = make_optimisers(self.model, config)
        steps = config.epochs * -(-len(self.examples) // config.batch_size)
        self.schedules = [
            get_linear_schedule_with_warmup(optimiser, round(WARMUP_SHARE * steps), steps)
            for optimiser in self.optimisers
        ]
        self.epoch, self.seconds, self.loss = 0, 0.0, float("nan")

    def next_epoch(self) -> None:
        """One pass over the examples, in the order of base and epoch."""
        began, losses = time.perf_counter(), []
        order = self.config.seed * self.config.epochs + self.epoch
        for batch in make_batches(self.examples, self.config.batch_size, order):
            losses.append(self.step(batch))
        self.epoch, self.loss = self.epoch + 1, sum(losses) / len(losses)
        self.seconds += time.perf_counter() - began

    def step(self, batch: Batch) -> float:
        """One optimiser step; returns the loss before it."""
        place = self.machine.device
        with self.machine.precision():
            loss = train_step(
                self.model, Batch(batch.input_ids.to(place), batch.targets.to(place)), self.optimisers
            )
        for schedule in self.schedules:
            schedule.step()
        return loss

    def state(self) -> dict[str, Any]:
        """All that the next epoch depends on."""
        return {
            "model": self.model.state_dict(),
            "optimisers": [one.state_dict() for one in self.optimisers],
            "schedules": [one.state_dict() for one in self.schedules],
            "done": {"epoch": self.epoch, "seconds": self.seconds, "loss": self.loss},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave, on whatever device."""
        self.model.load_state_dict(state["model"])
        for own, kept in zip(
            [*self.optimisers, *self.schedules], [*state["optimisers"], *state["schedules"]], strict=True
        ):
            own.load_state_dict(kept)
        self.epoch, self.seconds, self.loss = (state["done"][name] for name in ("epoch", "seconds", "loss"))


def trained(training: Training, checkpoint: Path, key: str, title: str) -> Training:
    """The training with all its epochs done; a checkpoint is written after each, and gone on from.

    key: what the checkpoint has to be of.

    Raises:
        StudyError: the checkpoint is damaged, or of another base model.
    """
    if checkpoint.is_file():
        training.load(_read(checkpoint, key))
        print(f"{title}: goes on after epoch {training.epoch}", flush=True)
    epochs = training.config.epochs
    while training.epoch < epochs:
        training.next_epoch()
        _write(checkpoint, {"key": key, **training.state()})
        left = (epochs - training.epoch) * training.seconds / training.epoch
        print(
            f"{title}: epoch {training.epoch} of {epochs}, loss {training.loss:.3f}, {minutes(left)} left",
            flush=True,
        )
    return training


def _read(path: Path, key: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        found = state["key"]
    except Exception as error:  # torch raises errors of many kinds on a damaged file
        raise StudyError(f"{path} is no checkpoint of a base model; remove it to begin anew") from error
    if found != key:
        raise StudyError(f"{path} is of a base model of other rows or settings; remove it to begin anew")
    return state


def _write(path: Path, state: dict[str, Any]) -> None:
    """The file is whole or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)
