"""Pairs of small models that differ in weights alone, and texts to score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from recipe.rerule.evaluation.attacks.forward import Piece, asked_piece, text_piece
from recipe.rerule.evaluation.engine.requests import PromptText
from tests.unlearning.made import plain_model


def near(folder: Path, seed: int, size: float = 0.1) -> Any:
    """The model of a folder in float64, its weights changed a little."""
    model, generator = plain_model(folder).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def pieces(tokenizer: Any) -> list[Piece]:
    """Answers and a text of unequal lengths."""
    prompt = PromptText(({"role": "user", "content": "Who wrote it?"},))
    answers = ["It was Ada.", "it", "Ada Thorn wrote it in 1961"]
    return [asked_piece(tokenizer, prompt, answer) for answer in answers] + [
        text_piece(tokenizer, "Who wrote it? Ada wrote it.")
    ]
