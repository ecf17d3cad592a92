"""The losses at values that are known without them; test_loss has the loss and gradient of every method."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, tensor

from recipe.rerule.unlearning import losses

LN2 = math.log(2)
DOUBLE = torch.float64
LENGTHS = tensor([4, 2, 9])


def some(seed: int, rows: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -5 * torch.rand(rows, generator=generator, dtype=DOUBLE)


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(at), at)
    return found


def close(found: Tensor, expected: Tensor | list[float] | float, tolerance: float = 1e-10) -> None:
    wanted = torch.as_tensor(expected, dtype=DOUBLE)
    torch.testing.assert_close(found.to(DOUBLE), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("beta", [0.05, 0.1, 1.0, 4.5])
def test_at_the_reference_npo_and_dpo_are_constants_and_npo_falls_as_gradient_ascent(beta: float) -> None:
    s = some(0)
    close(losses.npo(s, s, beta), 2 / beta * LN2)
    close(losses.dpo(s, s, some(1), some(1), beta), LN2)
    close(gradient(lambda x: losses.npo(x, s, beta), s), [1 / 3] * 3)


@pytest.mark.parametrize("vocabulary", [2, 50, 32_000])
def test_a_uniform_model(vocabulary: int) -> None:
    s = -math.log(vocabulary) * LENGTHS.to(DOUBLE)
    close(losses.nll(s, LENGTHS), math.log(vocabulary))
    close(losses.ga(s, LENGTHS), -math.log(vocabulary))
    for beta, gamma in ((0.75, 0), (2.5, 0), (2.5, 0.6)):  # gamma stands outside of the product with beta
        expected = 2 / beta * math.log(1 + math.exp(gamma) * vocabulary**-beta)
        close(losses.simnpo(s, LENGTHS, beta, gamma), expected)


def test_gradient_ascent_averages_over_tokens_not_rows() -> None:
    close(losses.ga(tensor([-4.0, -2.0, -18.0], dtype=DOUBLE), LENGTHS), -24 / 15)
    close(gradient(lambda x: losses.ga(x, LENGTHS), some(0)), [1 / 15] * 3)


def test_wga_and_satimp_of_known_probabilities() -> None:
    log_probs = tensor([0.5, 0.9], dtype=DOUBLE).log()
    close(losses.wga(log_probs, 1.0), [-0.346574, -0.094824], 1e-6)
    close(losses.satimp(log_probs, 1.0, 1.0), [-0.173287, -0.009482], 1e-6)
    close(losses.satimp(log_probs, 5.0, 0.1), [-0.020210, -0.049419], 1e-6)
    close(losses.satimp(tensor([0.0, 1e-9]), 5.0, 0.1), [0.0, 0.0])


def test_undial_and_ceu_of_known_probabilities() -> None:
    even, sure = tensor([[0.5, 0.5]], dtype=DOUBLE).log(), tensor([[0.9, 0.1]], dtype=DOUBLE).log()
    close(losses.undial(even + 3, sure, tensor([0]), math.log(3)), [1.753279], 1e-6)
    assert not losses.undial(even.requires_grad_(), sure, tensor([0]), 1.0).requires_grad
    three = tensor([[0.5, 0.25, 0.25]], dtype=DOUBLE).log()
    close(losses.ceu(three - 3, tensor([0])), [2 * LN2])


def test_pdu_of_known_logits() -> None:
    close(losses.pdu(tensor([[3.0, 1.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0]], dtype=DOUBLE)), [2.25, 0.0])


def test_rmu_of_known_hidden_states() -> None:
    direction = tensor([0.6, 0.8, 0.0], dtype=DOUBLE)
    states = tensor([[3.0, 4.0, 3.0], [1.0, 2.0, 0.0]], dtype=DOUBLE)
    close(losses.rmu(states, direction, 5.0), [3.0, 8 / 3])
    wanted = states.clone().requires_grad_()
    found = losses.distance_by_position(states + 2, wanted)
    close(found, [4.0, 4.0])
    assert not found.requires_grad


def test_the_weight_grows_above_the_limit_and_never_falls_below_0() -> None:
    steps = ((100, 0.5), (1, 0.3), (1, 0))
    found = [losses.dual_ascent(weight, retain, 0.3, 5.0) for weight, retain in steps]
    assert found == pytest.approx([101, 1, 0], abs=1e-12)


@pytest.mark.parametrize(
    ("divergence", "value"), [("kl", 0.604837), ("pearson", 0.8025), ("tv", 0.212493), ("js", 0.409215)]
)
def test_flat_of_known_probabilities(divergence: str, value: float) -> None:
    """0.3 of the template answer, and 0.9 of the answer to forget."""
    known = [tensor([p, p], dtype=DOUBLE) for p in (0.3, 0.9)]
    close(losses.flat(*known, divergence), value, 5e-7)


def test_smoothing() -> None:
    assert losses.smoothing_weights(0.0, 4) == (1.0, 0.0)
    assert losses.smoothing_weights(0.4, 1) == pytest.approx((0.8, 0.2))
    for rate in (-0.4, 0.4, 1.0):
        for rows in range(1, 8):
            assert sum(losses.smoothing_weights(rate, rows)) == pytest.approx(1)


START = tensor([[2.0, 1.0, 0.0]], dtype=DOUBLE)
REINFORCED = tensor([[2.5, 0.0, 0.5]], dtype=DOUBLE)
"""It raises the first and the last token by a half, and lowers the other, which therefore stays."""


def test_generic_logits_of_whp_lower_what_was_raised_and_leave_the_rest() -> None:
    close(losses.generic_logits(START, REINFORCED, 5.0)[0], [-0.5, 1.0, -2.5])
    close(losses.generic_logits(START, REINFORCED, 1.0)[0], [1.5, 1.0, -0.5])
    close(losses.generic_logits(START, REINFORCED, 0.0), START)


def test_whp_of_three_tokens_by_hand() -> None:
    generic = losses.generic_logits(START, REINFORCED, 5.0)
    probabilities = [0.5, 0.25, 0.25]
    logits = tensor([probabilities], dtype=DOUBLE).log() + 3  # shifts of logits change nothing
    close(losses.loss_by_position(generic, logits, "argmax"), [2 * math.log(2)])
    weights = [math.exp(z) for z in (-0.5, 1.0, -2.5)]
    soft = -sum(w * math.log(p) for w, p in zip(weights, probabilities, strict=True)) / sum(weights)
    close(losses.loss_by_position(generic, logits, "soft"), [soft])
