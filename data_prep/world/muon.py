"""Muon (K. Jordan, 2024), an optimiser of weight matrices, with all arithmetic in float32.

torch.optim.Muon does the same and orthogonalises in bfloat16. Processors without instructions for bfloat16,
which most laptops have, compute that nine times slower than float32, so that the base model of the embedded
world took ten minutes in place of one; and the result depends on the processor. In float32 it is as fast
everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of the quintic iteration: they raise small singular values fast, and keep all of them near 1."""
_ITERATIONS = 5
_LEAST_NORM = 1e-7


class Muon(Optimizer):
    """Momentum, whose direction is made orthogonal before each step; weight decay apart from it.

    Args:
        params: matrices [rows, columns], float32.
        lr: learning rate; of a matrix with more rows than columns, times sqrt(rows / columns).
        weight_decay: times the learning rate, what is taken from each weight.
        momentum: share of the average that is kept; Nesterov's.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step with the gradients that are there."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._change(weight, weight.grad, group)

    def _change(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, momentum = self.state[weight], group["momentum"]
        average = state.setdefault("momentum_buffer", torch.zeros_like(weight))
        average.lerp_(gradient, 1 - momentum)
        direction = orthogonalised(gradient.lerp(average, momentum))
        rows, columns = weight.shape
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(direction, alpha=group["lr"] * math.sqrt(max(1.0, rows / columns)))


def orthogonalised(matrix: Tensor) -> Tensor:
    """About U V^T of a matrix U S V^T [rows, columns]: its singular values come near 1. The dtype stays."""
    linear, cubic, quintic = _COEFFICIENTS
    is_tall = matrix.size(0) > matrix.size(1)
    found = matrix.T if is_tall else matrix
    found = found / found.norm().clamp(min=_LEAST_NORM)
    for _ in range(_ITERATIONS):
        gram = found @ found.T
        found = torch.addmm(
            found, torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic), found, beta=linear
        )
    return found.T if is_tall else found
