"""Where a study computes: on which device, and in which numbers its forward passes are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.study.ideas import IDEAS
from benchmarks.study.loop import Run, Settings
from benchmarks.study.policy import Policy
from benchmarks.study.runs import StudyError
from data_prep.contract import Row
from recipe.rerule.minimal import Batch

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Machine:
    """A device, and the numbers of forward passes; weights and optimisers are float32 always."""

    device: str = "cpu"
    dtype: str = "float32"

    def check(self) -> None:
        """Raises StudyError where torch has no such device."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise StudyError("torch sees no GPU here; take --device cpu")

    def precision(self) -> AbstractContextManager[Any]:
        """Within it, forward passes are in `dtype`, by torch's autocast."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device, getattr(torch, self.dtype))

    def run(self, model: Any, reference: Any, tokenizer: Any, settings: Settings) -> Run:
        """A run of the study's loop whose policy computes so."""
        run = IDEAS[settings.idea](model, reference, tokenizer, settings)
        run.policy = MachinePolicy(self, model, tokenizer, settings.response_limit, settings.temperature)
        return run


class MachinePolicy(Policy):
    """The study's policy, its forward passes in the machine's numbers."""

    def __init__(self, machine: Machine, *parts: Any) -> None:
        super().__init__(*parts)
        self.machine = machine

    def respond(self, rows: Sequence[Row], copies: int, greedy: bool = False) -> Batch:
        """As `minimal.Policy.respond`."""
        with self.machine.precision():
            return super().respond(rows, copies, greedy)

    def log_probs(self, batch: Batch, model: Any = None) -> Tensor:
        """As `minimal.Policy.log_probs`."""
        with self.machine.precision():
            return super().log_probs(batch, model)
