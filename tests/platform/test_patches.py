"""Stand-ins for names of verl give what verl's own give."""

from __future__ import annotations

import pytest
import torch
from verl.utils import torch_functional

from recipe.rerule.platform import patches


@pytest.mark.parametrize("shape", [(7,), (2, 3)])
def test_log_probs_of_labels(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Against log_softmax and its gradient (one-hot minus softmax), in float64."""
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", None)  # put back after the test
    patches.score_labels_at_once()
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
