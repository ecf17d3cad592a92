"""E_old[rho A grad log pi] = grad E_pi[A] where nothing is clipped: each response of a policy is listed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from recipe.rerule.replay import ImportanceConfig, replay_loss, weigh
from recipe.rerule.replay.config import Level
from recipe.rerule.replay.loss import log_ratios

END, VOCABULARY, LENGTH = 0, 3, 3
"""A response ends with END, or after LENGTH tokens."""
RESPONSES = [
    tokens
    for length in range(1, LENGTH + 1)
    for tokens in itertools.product(range(VOCABULARY), repeat=length)
    if END not in tokens[:-1] and (tokens[-1] == END or length == LENGTH)
]
ONE_TOKEN = [(token,) for token in range(VOCABULARY)]


def log_probs_of(logits: Tensor, responses: list[tuple[int, ...]]) -> Tensor:
    """[responses, LENGTH]: log pi(token | place, token before), from a table of logits; 0 after the end."""
    table = logits.log_softmax(-1)
    rows = [
        [
            table[place, response[place - 1] if place else END, response[place]]
            if place < len(response)
            else torch.zeros((), dtype=torch.float64)
            for place in range(LENGTH)
        ]
        for response in responses
    ]
    return torch.stack([torch.stack(row) for row in rows])


@pytest.mark.parametrize(
    ("level", "responses"),
    [("sequence_sum", RESPONSES), ("sequence_sum", ONE_TOKEN), ("token", ONE_TOKEN), ("sequence", ONE_TOKEN)],
)
def test_the_weighted_gradient_under_the_old_policy_is_the_gradient_of_the_current_one(
    level: Level, responses: list[tuple[int, ...]]
) -> None:
    generator = torch.Generator().manual_seed(3)
    shape = (LENGTH, VOCABULARY, VOCABULARY)
    old_logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    advantages = torch.randn(len(responses), generator=generator, dtype=torch.float64)
    mask = torch.tensor([[float(place < len(response)) for place in range(LENGTH)] for response in responses])
    old, current = log_probs_of(old_logits, responses), log_probs_of(logits, responses)
    probability = old.sum(-1).exp()
    assert float(probability.sum()) == pytest.approx(1, abs=1e-12)  # all responses are listed

    config = ImportanceConfig(level=level, clip_low=0.0, clip_high=math.inf, normalize=False)
    rho, _ = weigh(log_ratios(current, old, mask), mask, config)

    def expected_under_old(values: Tensor, mask: Tensor) -> Tensor:
        return (probability[:, None] * values * mask).sum()

    loss = replay_loss(current, rho, advantages[:, None].expand_as(mask), mask, expected_under_old)
    (found,) = torch.autograd.grad(loss.total, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(-(current.sum(-1).exp() * advantages).sum(), logits)
    assert float(wanted.abs().max()) > 0.1
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
