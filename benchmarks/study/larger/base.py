"""A base model, trained once, going on after a stop from its last checkpoint as if it had not stopped."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, get_linear_schedule_with_warmup

from benchmarks.study.larger.machine import Machine
from benchmarks.study.larger.progress import Progress
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
SAVE_EVERY = 300.0
"""Seconds between two checkpoints."""


class Training:
    """A training between two steps, which can be kept and gone on from.

    Attributes:
        steps: of an epoch, and `all_steps` of the whole training.
        done: how many are done.
        seconds: that they took, on whatever machines.
        losses: of the last epoch's steps, in nats per answer token.
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
        self.steps = ceil(len(self.examples) / config.batch_size)
        self.all_steps = config.epochs * self.steps
        self.schedules = [
            get_linear_schedule_with_warmup(optimiser, round(WARMUP_SHARE * self.all_steps), self.all_steps)
            for optimiser in self.optimisers
        ]
        self.done, self.seconds = 0, 0.0
        self.losses: deque[float] = deque(maxlen=self.steps)
        self._batches: list[Batch] = []

    def next_step(self) -> None:
        """One step, on the batches in the order of base and epoch."""
        began = time.perf_counter()
        epoch, place = divmod(self.done, self.steps)
        if place == 0 or not self._batches:
            order = self.config.seed * self.config.epochs + epoch
            self._batches = make_batches(self.examples, self.config.batch_size, order)
        self.losses.append(self.step(self._batches[place]))
        self.done += 1
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
        """All that the next step depends on."""
        return {
            "model": self.model.state_dict(),
            "optimisers": [one.state_dict() for one in self.optimisers],
            "schedules": [one.state_dict() for one in self.schedules],
            "done": {"steps": self.done, "seconds": self.seconds, "losses": list(self.losses)},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave, on whatever device."""
        self.model.load_state_dict(state["model"])
        for own, kept in zip(
            [*self.optimisers, *self.schedules], [*state["optimisers"], *state["schedules"]], strict=True
        ):
            own.load_state_dict(kept)
        self.done, self.seconds, losses = (state["done"][name] for name in ("steps", "seconds", "losses"))
        self.losses.extend(losses)


def trained(training: Training, checkpoint: Path, key: str, title: str) -> Training:
    """The training with all its steps done; checkpoints are written as it goes, and gone on from.

    key: what the checkpoint has to be of.

    Raises:
        StudyError: the checkpoint is damaged, or of another base model.
    """
    if checkpoint.is_file():
        training.load(_read(checkpoint, key))
        print(f"{title}: goes on after step {training.done} of {training.all_steps}", flush=True)
    tell, saved = Progress(0, first=training.done / training.all_steps), time.monotonic()
    while training.done < training.all_steps:
        training.next_step()
        tell(training.done / training.all_steps)
        epoch, place = divmod(training.done, training.steps)
        if place == 0:
            print(
                f"{title}: epoch {epoch} of {training.config.epochs}, loss {mean(training.losses):.3f}",
                flush=True,
            )
        if place == 0 or time.monotonic() - saved >= SAVE_EVERY:
            _write(checkpoint, {"key": key, **training.state()})
            saved = time.monotonic()
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
