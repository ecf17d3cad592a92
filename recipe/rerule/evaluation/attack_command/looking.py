"""Forward passes: each attack that needs them looks at each model, by transformers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.attack_command.checked import CONTROL, ORIGINAL, Command
from recipe.rerule.evaluation.attack_command.kept import Finished, KeptReadings
from recipe.rerule.evaluation.attack_command.pieces import Piece
from recipe.rerule.evaluation.attacks.interface import ForwardAttack, Models
from recipe.rerule.process import Progress


def look(command: Command, kept: KeptReadings, pieces: Sequence[Piece]) -> None:
    """Forward passes, model by model."""
    loaded = lru_cache(maxsize=3)(_load)
    paths = {model.name: model.path for model in command.models}

    def of(name: str) -> Any:
        return loaded(paths[name], command.decoding.platform, command.decoding.dtype)

    with Progress("attack: forward passes", len(pieces), "attacks") as progress:
        for piece in pieces:
            progress.doing(piece.label)
            attack = piece.planned.attack
            assert isinstance(attack, ForwardAttack)
            started = time.monotonic()
            models = Models(
                of(piece.model.name),
                (lambda: of(ORIGINAL)) if ORIGINAL in paths else None,
                (lambda: of(CONTROL)) if CONTROL in paths else None,
                piece.model.name,
            )
            try:
                readings = attack.measure(models, command.material, piece.planned.options)
            except ValueError as error:
                raise ValueError(f"attack {piece.label}: {error}") from error
            kept.add(piece.key, piece.label, Finished(readings, time.monotonic() - started))
            progress.advance()


def _load(path: Path, platform: str, dtype: str) -> Any:
    """A transformers model in evaluation mode, without gradients, on the platform's device."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
    if platform != "cpu" and torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    return model.eval().requires_grad_(False)
