"""Which of the trainer's weights the engine loads."""

from __future__ import annotations

import torch
from torch import nn

from recipe.rerule.platform.sent_weights import without_missing_head

WEIGHTS = {"model.embed_tokens.weight": torch.zeros(2), "lm_head.weight": torch.zeros(2)}


def test_a_head_is_left_out_only_where_the_engines_model_has_none() -> None:
    without = nn.ModuleDict({"model": nn.ModuleDict({"embed_tokens": nn.Embedding(2, 1)})})
    head = nn.ModuleDict({**without, "lm_head": nn.Linear(1, 2)})
    assert list(without_missing_head(WEIGHTS, without)) == ["model.embed_tokens.weight"]
    assert without_missing_head(WEIGHTS, head) == WEIGHTS
    assert without_missing_head(WEIGHTS, nn.ModuleDict({"language_model": head})) == WEIGHTS
