"""Muon in float32: against its formula in float64, and against torch's, which rounds to bfloat16."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from data_prep.world.muon import Muon, orthogonalised

SHAPES = [(6, 6), (12, 5), (5, 12)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_singular_values(matrix: Tensor) -> Tensor:
    """U q(S) V^T of U S V^T of norm 1, where q is five times s -> 3.4445 s - 4.775 s^3 + 2.0315 s^5."""
    left, values, right = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_are_brought_near_one_and_nothing_else_changes(shape: tuple[int, int]) -> None:
    matrix = random(*shape)
    found = orthogonalised(matrix)
    torch.testing.assert_close(found, by_singular_values(matrix), rtol=1e-9, atol=1e-9)
    values = torch.linalg.svdvals(found)
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3
    torch.testing.assert_close(orthogonalised(matrix.float()), found.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_three_steps_are_the_formula_in_float64(shape: tuple[int, int]) -> None:
    weight = random(*shape, seed=1).float().requires_grad_()
    expected, average = weight.detach().double(), torch.zeros(*shape, dtype=torch.float64)
    optimiser = Muon([weight], lr=0.02, weight_decay=0.01)
    for step in range(3):
        gradient = random(*shape, seed=2 + step)
        weight.grad = gradient.float()
        optimiser.step()
        average = 0.95 * average + 0.05 * gradient
        direction = by_singular_values(0.05 * gradient + 0.95 * average)
        rate = 0.02 * math.sqrt(max(1, shape[0] / shape[1]))
        expected = (1 - 0.02 * 0.01) * expected - rate * direction
    torch.testing.assert_close(weight.detach(), expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_torchs_differs_by_its_rounding_alone(shape: tuple[int, int]) -> None:
    """bfloat16 has 8 bits: about 0.4 % of each entry in each of five iterations."""
    weights = [random(*shape, seed=1).float().requires_grad_() for _ in range(2)]
    before = weights[0].detach().clone()
    optimisers = [
        Muon([weights[0]], lr=0.02, weight_decay=0.01),
        torch.optim.Muon([weights[1]], lr=0.02, weight_decay=0.01),
    ]
    for step in range(3):
        for weight, optimiser in zip(weights, optimisers, strict=True):
            weight.grad = random(*shape, seed=2 + step).float()
            optimiser.step()
    here, torchs = (weight.detach() - before for weight in weights)
    assert float((here - torchs).norm() / here.norm()) < 0.03


def test_a_weight_without_a_gradient_stays() -> None:
    weight = random(3, 3).float().requires_grad_()
    before = weight.detach().clone()
    Muon([weight], lr=1.0, weight_decay=1.0).step()
    assert torch.equal(weight.detach(), before)
