"""WHP against values that are known without it: three tokens by hand, and float64 autograd."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, tensor

from recipe.rerule.unlearning import whp

DOUBLE = torch.float64
START = tensor([[2.0, 1.0, 0.0]], dtype=DOUBLE)
REINFORCED = tensor([[2.5, 0.0, 0.5]], dtype=DOUBLE)
"""It raises the first and the last token by a half, and lowers the other, which therefore stays."""


def some(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def close(found: Tensor, expected: Tensor | list[float] | float) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=DOUBLE), rtol=1e-12, atol=1e-12)


def test_generic_logits_lower_what_was_raised_and_leave_the_rest() -> None:
    close(whp.generic_logits(START, REINFORCED, 5.0)[0], [-0.5, 1.0, -2.5])
    close(whp.generic_logits(START, REINFORCED, 1.0)[0], [1.5, 1.0, -0.5])


def test_the_loss_of_three_tokens_by_hand() -> None:
    generic = whp.generic_logits(START, REINFORCED, 5.0)
    probabilities = [0.5, 0.25, 0.25]
    logits = tensor([probabilities], dtype=DOUBLE).log() + 3  # shifts of logits change nothing
    close(whp.loss_by_position(generic, logits, "argmax"), [2 * math.log(2)])
    weights = [math.exp(z) for z in (-0.5, 1.0, -2.5)]
    soft = -sum(w * math.log(p) for w, p in zip(weights, probabilities, strict=True)) / sum(weights)
    close(whp.loss_by_position(generic, logits, "soft"), [soft])


@pytest.mark.parametrize(("alpha", "reinforced"), [(0.0, REINFORCED), (5.0, START), (1e9, START)])
def test_without_alpha_or_a_difference_the_labels_are_the_start_models(
    alpha: float, reinforced: Tensor
) -> None:
    generic = whp.generic_logits(START, reinforced, alpha)
    assert torch.equal(generic, START)
    log_p = START.log_softmax(-1)
    close(whp.loss_by_position(generic, START, "argmax"), [-log_p[0, 0].item()])
    entropy = -(log_p.exp() * log_p).sum().item()
    close(whp.loss_by_position(generic, START, "soft"), [entropy])


def test_the_gradient_is_the_difference_of_probabilities_and_labels() -> None:
    """And none reaches the frozen models."""
    start, reinforced, logits = (some(seed, 2, 3, 7).requires_grad_() for seed in range(3))
    generic = whp.generic_logits(start, reinforced, 0.7)
    labels = {
        "argmax": torch.nn.functional.one_hot(generic.argmax(-1), 7).to(DOUBLE),
        "soft": generic.softmax(-1),
    }
    for name, wanted in labels.items():
        loss = whp.loss_by_position(generic, logits, name)
        assert loss.shape == (2, 3)
        found, *frozen = torch.autograd.grad(
            loss.sum(), (logits, start, reinforced), retain_graph=True, allow_unused=True
        )
        close(found, (logits.softmax(-1) - wanted).detach())
        assert frozen == [None, None]


WRONG: list[tuple[str, Callable[[], Tensor]]] = [
    (r"start is \[1, 3\], but reinforced \[1, 2\]", lambda: whp.generic_logits(START, START[:, :2], 1.0)),
    ("alpha is -1", lambda: whp.generic_logits(START, START, -1.0)),
    ("alpha is nan", lambda: whp.generic_logits(START, START, math.nan)),
    ("alpha is inf", lambda: whp.generic_logits(START, START, math.inf)),
    (r"generic is \[1, 3\], but logits \[3\]", lambda: whp.loss_by_position(START, START[0], "soft")),
    ("labels is 'hard'; choose one of argmax, soft", lambda: whp.loss_by_position(START, START, "hard")),
]


@pytest.mark.parametrize(("named", "call"), WRONG)
def test_what_does_not_fit_is_refused_and_named(named: str, call: Callable[[], Tensor]) -> None:
    with pytest.raises(ValueError, match=named):
        call()
