"""The off-policy identity by enumeration: every response of a small policy, weighed by its probability.

Without clipping and normalisation, E_old[rho A grad log pi_theta] over responses of the old policy equals
E_theta[A grad log pi_theta], where rho is the ratio of whole responses (the paper's equation of J_off).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from recipe.rerule.replay import ImportanceConfig, replay_loss, weigh
from recipe.rerule.replay.loss import log_ratios

VOCABULARY, LENGTH, END = 3, 3, 2
RESPONSES = [
    (*body, END)[:LENGTH]
    for length in range(LENGTH + 1)
    for body in itertools.product(range(END), repeat=length)
]
"""All responses of at most LENGTH tokens: a response ends with END or at the limit."""


def log_probs(logits: Tensor) -> Tensor:
    """[responses, LENGTH] of a policy with logits [place, token before, token]."""
    rows = []
    for response in RESPONSES:
        before = (END, *response)
        places = [
            torch.log_softmax(logits[place, before[place]], -1)[token] for place, token in enumerate(response)
        ]
        rows.append(torch.stack([*places, *[logits.new_zeros(())] * (LENGTH - len(response))]))
    return torch.stack(rows)


@pytest.mark.parametrize(("level", "holds"), [("sequence_sum", True), ("token", False)])
def test_the_gradient_under_the_old_policy_is_that_under_the_new_one(level: Any, holds: bool) -> None:
    torch.manual_seed(7)
    shape = (LENGTH, VOCABULARY, VOCABULARY)
    old, logits = (torch.randn(shape, dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    advantages = torch.randn(len(RESPONSES), 1, dtype=torch.float64).expand(-1, LENGTH)
    mask = torch.tensor([[place < len(response) for place in range(LENGTH)] for response in RESPONSES])
    behaviour, current = log_probs(old), log_probs(logits)
    assert float(behaviour.sum(-1).exp().sum()) == pytest.approx(1, abs=1e-15)

    on_policy = current.detach().sum(-1).exp() * advantages[:, 0] * current.sum(-1)
    (expected,) = torch.autograd.grad(-on_policy.sum(), logits, retain_graph=True)

    config = ImportanceConfig(level=level, clip_low=0.0, clip_high=math.inf, normalize=False)
    rho, _ = weigh(log_ratios(current, behaviour, mask), mask, config)
    chance = behaviour.sum(-1).exp()
    loss = replay_loss(current, rho, advantages, mask, lambda values, _: (chance[:, None] * values).sum())
    (found,) = torch.autograd.grad(loss.total, logits)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12) == holds
