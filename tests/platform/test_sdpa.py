"""`sdpa` in verl's configuration, and the stand-ins it installs."""

from __future__ import annotations

import pytest
import torch
from omegaconf import OmegaConf
from verl.utils import torch_functional

from recipe.rerule.platform import sdpa


def test_log_probs_of_labels_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", None)  # put back after the test
    sdpa.install()
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 11, dtype=torch.float64) * 5, torch.randint(0, 11, (2, 3))
    expected = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(torch_functional.logprobs_from_logits(logits, labels), expected)


@pytest.mark.parametrize(("given", "chosen"), [("sdpa", True), ("flash_attention_2", False), (None, False)])
def test_which_attention_is_chosen(given: str | None, chosen: bool) -> None:
    settings = {"override_config": {"attn_implementation": given} if given else {}}
    assert sdpa.is_chosen(OmegaConf.create(settings)) == chosen
