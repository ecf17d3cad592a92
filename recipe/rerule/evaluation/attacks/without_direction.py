"""Attack by the refusal direction: the model without it is asked as the benchmark asks.

Protocol: `refusal_direction` finds the direction between training prompts to forget and to retain, and
`orthogonalisation` writes the model that cannot write it. The prompts are rows of --train that no probe
repeats, drawn once for all models. The variant `random` is the control: a random direction is removed in the
same way.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from recipe.rerule.evaluation.attacks.interface import Change, FolderAttack, Options
from recipe.rerule.evaluation.attacks.material import FORGET, RETAIN, Material
from recipe.rerule.evaluation.attacks.orthogonalisation import KIND, orthogonalise
from recipe.rerule.evaluation.attacks.refusal_direction import (
    Direction,
    check_prompts,
    prompt_states,
    random_direction,
    refusal_direction,
)
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.training.template_arguments import Template, bind


def _changes(material: Material, options: Options) -> list[Change]:
    """One change for each seed, which draws the control's direction. Raises DirectionError."""
    sides = [_prompts(material, side, options["prompts"]) for side in (FORGET, RETAIN)]
    check_prompts(*map(len, sides))
    return [
        Change(0, seed, material.asked, ("", "random"), partial(_write_both, sides, seed, material.template))
        for seed in range(material.seeds)
    ]


def _prompts(material: Material, side: str, most: int) -> list[Probe]:
    """Rows of --train of one side whose prompts no probe has, at most so many, drawn once for all models."""
    asked = [one.probe.messages for one in (*material.asked, *material.retained)]
    rows = [row for row in material.train if row.section == side and row.messages not in asked]
    return random.Random(f"prompts {side}").sample(rows, min(most, len(rows)))


def _write_both(
    sides: Sequence[Sequence[Probe]], seed: int, template: Template, model: Path, out: Path
) -> dict[str, Path]:
    """Folders that an earlier command finished are used again, if both are there."""
    folders = {"": out / "direction", "random": out / "random"}
    if all((folder / KIND.marker).is_file() for folder in folders.values()):
        return folders
    found = _direction_of(model, sides, template)
    orthogonalise(model, found, folders[""], overwrite=True)
    orthogonalise(model, random_direction(len(found.vector), seed), folders["random"], overwrite=True)
    return folders


def _direction_of(model: Path, sides: Sequence[Sequence[Probe]], template: Template) -> Direction:
    """Raises LayersError, DirectionError."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    if torch.accelerator.is_available():
        loaded.to(torch.accelerator.current_accelerator())
    tokenizer = bind(AutoTokenizer.from_pretrained(model), template)
    return refusal_direction(*(prompt_states(loaded, tokenizer, rows) for rows in sides))


ATTACKS = (
    FolderAttack(
        name="refusal_direction",
        title="direction",
        tells="The direction between prompts to forget and to retain is removed from all weights.",
        cost="one forward pass over the training prompts, two folders and one greedy answer a probe for each",
        default=True,
        quick={"prompts": 64},
        full={"prompts": 512},
        needs=frozenset({"train"}),
        changes=_changes,
    ),
)
