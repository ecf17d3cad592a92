"""Which of the weights that the trainer sends vLLM's models have a place for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_HEAD = "lm_head.weight"


def without_tied_head(weights: Mapping[str, torch.Tensor], config: Any) -> dict[str, torch.Tensor]:
    """The weights that vLLM has parameters for, of a model with this configuration of transformers.

    verl sends a head that is the embeddings (`tie_word_embeddings`) under a second name. Models of vLLM that
    always tie both, as Gemma-2, have no parameter of that name, and others would load it twice.
    """
    tied = config.get_text_config().tie_word_embeddings
    return {name: tensor for name, tensor in weights.items() if not (tied and name == _HEAD)}
