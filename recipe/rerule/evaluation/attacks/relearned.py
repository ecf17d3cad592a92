"""Attack by relearning: the model is trained a little on other facts, then asked about those that it was not.

Protocol: two folds over the forget facts. For each fold the model is trained on one half (or, for the other
kinds of rows, on rows without forget facts) and asked about the other half, so that every fact is scored once
a seed, by a model that was not trained on it. The loop is `relearning`: a constant rate after warm-up, all
steps states of one run. Variants are the steps; step 0 is the model before the attack. Rows are those of
--train: `forget_half` true answers in the training phrasings (where no row of --train asks a fact of the
half, the probes of that half themselves), `retain` rows of the retain side, `benign` a few pairs that have
nothing to do with the data, `wrong` the questions of the half with answers to other facts of it. A row that
holds a scored answer is left out before training; `leaks` refuses any that are left.

Models below SMALL parameters are trained whole in float32 with AdamW at rate 1e-3, larger ones by LoRA of
rank 16 at rate 1e-4 in bfloat16, which needs peft.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from recipe.rerule.evaluation.attacks import relearning_rows
from recipe.rerule.evaluation.attacks.benign_pairs import PAIRS
from recipe.rerule.evaluation.attacks.folds import Fold, two_folds
from recipe.rerule.evaluation.attacks.interface import Change, FolderAttack, Need, Options
from recipe.rerule.evaluation.attacks.material import Asked, Material
from recipe.rerule.evaluation.attacks.relearning import KIND, Lora, Settings, relearn_folder
from recipe.rerule.evaluation.attacks.relearning_rows import Row, scored_golds, true_answers, without_leaks
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.runs.weights import read_weights
from recipe.rerule.training.template_arguments import Template

SMALL = 100_000_000
"""Parameters up to which a model is trained whole."""
_WHOLE = {"learning_rate": 1e-3, "lora": None, "dtype": "float32"}
_ADAPTER = {"learning_rate": 1e-4, "lora": Lora(16, 32), "dtype": "bfloat16"}
Rows = Callable[[Material, Fold[Asked], int], list[Row]]
"""(material, fold, seed) -> rows to train on, before those that leak are left out."""


def _of_half(material: Material, fold: Fold[Asked]) -> list[Probe]:
    """Rows of --train on the facts of the half that is trained on, or else the probes of the half."""
    facts = {material.fact(asked.probe) for asked in fold.trained}
    rows = [row for row in material.train if row.section == "forget" and material.fact(row) in facts]
    return rows or [asked.probe for asked in fold.trained]


def _forget_half(material: Material, fold: Fold[Asked], seed: int) -> list[Row]:
    return true_answers(_of_half(material, fold))


def _retain(material: Material, fold: Fold[Asked], seed: int) -> list[Row]:
    return relearning_rows.retained(material.train)


def _benign(material: Material, fold: Fold[Asked], seed: int) -> list[Row]:
    return relearning_rows.benign(PAIRS)


def _wrong(material: Material, fold: Fold[Asked], seed: int) -> list[Row]:
    return relearning_rows.wrong_answers(_of_half(material, fold), material.fact, seed)


def _changes(kind: str, rows: Rows, material: Material, options: Options) -> list[Change]:
    return [
        _change(kind, rows, material, options["steps"], fold, number, seed)
        for seed in range(material.seeds)
        for number, fold in enumerate(
            two_folds(material.asked, lambda asked: material.fact(asked.probe), seed)
        )
    ]


def _change(
    kind: str,
    rows: Rows,
    material: Material,
    steps: Sequence[int],
    fold: Fold[Asked],
    number: int,
    seed: int,
) -> Change:
    """Raises ValueError where no row is left to train on."""
    golds = scored_golds([asked.probe for asked in fold.scored])
    trained = without_leaks(rows(material, fold, seed), golds)
    if not trained:
        raise ValueError(
            f"relearning on {kind} rows has nothing to train on: every row holds an answer that is scored"
        )
    write = partial(_write, trained, golds, tuple(steps), seed, material.template)
    return Change(number, seed, tuple(fold.scored), tuple(map(str, steps)), write)


def _write(
    rows: Sequence[Row],
    golds: Sequence[str],
    steps: Sequence[int],
    seed: int,
    template: Template,
    model: Path,
    out: Path,
) -> dict[str, Path]:
    """Folders that an earlier command finished are used again, if all of them are there."""
    folders = {step: out / f"step_{step}" for step in steps}
    if not all((folder / KIND.marker).is_file() for folder in folders.values()):
        settings = replace(settings_for(model, seed), template=template)
        folders = relearn_folder(model, rows, golds, settings, steps, out, overwrite=True)
    return {f"{step}": folder for step, folder in folders.items()}


def settings_for(model: Path, seed: int) -> Settings:
    """How a model of this size is trained. Raises WeightsError where the folder holds no whole model."""
    shapes = read_weights(model, "trained further").shapes().values()
    small = sum(map(math.prod, shapes)) <= SMALL
    return Settings(**(_WHOLE if small else _ADAPTER), seed=seed)


def _attack(kind: str, rows: Rows, title: str, tells: str, default: bool, train: bool) -> FolderAttack:
    needs: frozenset[Need] = frozenset({"train"} if train else ())
    return FolderAttack(
        name=f"relearn_{kind}",
        title=title,
        tells=tells,
        cost="training of 32 steps for each of two folds, 64 steps and three seeds with the full budget",
        default=default,
        quick={"steps": (8, 32)},
        full={"steps": (1, 2, 4, 8, 16, 32, 64)},
        needs=needs,
        curve=True,
        changes=partial(_changes, kind, rows),
    )


ATTACKS = (
    _attack(
        "forget_half",
        _forget_half,
        "relearn: half",
        "The model is trained on true answers to half of the facts and asked about the other half.",
        default=True,
        train=True,
    ),
    _attack(
        "retain",
        _retain,
        "relearn: retain",
        "The model is trained on retain rows alone.",
        default=True,
        train=True,
    ),
    _attack(
        "benign",
        _benign,
        "relearn: benign",
        "The model is trained on a few pairs that have nothing to do with the data.",
        default=False,
        train=False,
    ),
    _attack(
        "wrong",
        _wrong,
        "relearn: wrong",
        "The model is trained on wrong answers, which undo refusing and can teach nothing.",
        default=False,
        train=True,
    ),
)
