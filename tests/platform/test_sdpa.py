"""`sdpa` in verl's configuration, and the stand-ins it installs."""

from __future__ import annotations

import pytest
import torch
from omegaconf import OmegaConf
from verl.utils import torch_functional

from recipe.rerule.platform import sdpa


@pytest.mark.parametrize("shape", [(7,), (2, 3)])
def test_log_probs_of_labels(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Against log_softmax and its gradient (one-hot minus softmax), in float64."""
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", None)  # put back after the test
    sdpa.install()
    torch.manual_seed(0)
    logits = (torch.randn(*shape, 11, dtype=torch.float64) * 5).requires_grad_()
    labels = torch.randint(0, 11, shape)
    found = torch_functional.logprobs_from_logits(logits, labels)
    assert found.shape == shape
    softmax = logits.detach().exp() / logits.detach().exp().sum(-1, keepdim=True)
    one_hot = torch.eye(11, dtype=torch.float64)[labels]
    torch.testing.assert_close(found.detach(), (softmax * one_hot).sum(-1).log())
    found.sum().backward()
    torch.testing.assert_close(logits.grad, one_hot - softmax)


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({"attn_implementation": "sdpa"}, True),
        ({"attn_implementation": "flash_attention_2"}, False),
        ({}, False),
    ],
)
def test_which_attention_is_chosen(settings: dict[str, str], chosen: bool) -> None:
    assert sdpa.is_chosen(OmegaConf.create({"override_config": settings})) == chosen
