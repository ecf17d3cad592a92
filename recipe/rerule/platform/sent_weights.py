"""Which of the weights that the trainer sends vLLM's models have a place for."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_HEAD = "lm_head"


def without_missing_head(
    weights: Mapping[str, torch.Tensor], model: torch.nn.Module
) -> dict[str, torch.Tensor]:
    """The weights, without the head where vLLM's model has no module for it.

    verl sends a head that is the embeddings (`tie_word_embeddings`) under a second name. Gemma-2's model in
    vLLM reads the embeddings as its head and has no module of that name. Models that have one need the head
    sent: vLLM otherwise goes on sampling with the old one.
    """
    has_head = any(name.split(".")[-1] == _HEAD for name, _ in model.named_modules())
    return {name: tensor for name, tensor in weights.items() if has_head or name != f"{_HEAD}.weight"}
