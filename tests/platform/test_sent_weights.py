"""Which of the trainer's weights the engine loads."""

from __future__ import annotations

import torch
from transformers import Gemma2Config, Gemma3Config, LlamaConfig

from recipe.rerule.platform.sent_weights import without_tied_head

WEIGHTS = {"model.embed_tokens.weight": torch.zeros(2), "lm_head.weight": torch.zeros(2)}


def test_a_head_that_is_the_embeddings_is_left_out() -> None:
    for config in (Gemma2Config(), Gemma3Config(), LlamaConfig(tie_word_embeddings=True)):
        assert list(without_tied_head(WEIGHTS, config)) == ["model.embed_tokens.weight"]
    assert without_tied_head(WEIGHTS, LlamaConfig(tie_word_embeddings=False)) == WEIGHTS
