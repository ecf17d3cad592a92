"""All attacks on all models: which pieces of work there are, and doing those that are not finished.

Changed models are made first, up to MOST_BYTES; one job of the engine then asks them together
with the models that were given, and they are deleted. Forward passes come last. A piece is an attack on a
model, or one fold and seed of it. What it found is kept at once, so that a command that was killed goes on
(`engine.answers`).
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from recipe.rerule import io
from recipe.rerule.evaluation.attacks.asking import asking, unchanged
from recipe.rerule.evaluation.attacks.attack import (
    CHANGED,
    Asking,
    Attack,
    Change,
    Material,
    Models,
    Options,
    Row,
)
from recipe.rerule.evaluation.attacks.forward import load_model
from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.attacks.summary import CONTROL, ORIGINAL
from recipe.rerule.evaluation.engine.answers import MODELS, Kept, digest, fingerprint
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Request
from recipe.rerule.evaluation.engine.run import Decoding, run_each
from recipe.rerule.process import Progress

MOST_BYTES = 8 * 2**30
"""Of changed models on the disk, from which on they are asked and deleted before the next one is made."""


@dataclass(frozen=True)
class Planned:
    """An attack with its options, and what it does to every model."""

    attack: Attack
    options: Options
    asking: Asking | None = None
    changes: Sequence[Change] = ()


@dataclass(frozen=True)
class Piece:
    """One piece of work; `key` is equal for pieces that find the same."""

    planned: Planned
    model: Model
    change: Change | None
    key: str

    @property
    def label(self) -> str:
        """For lines of progress, and the names of changed models."""
        label = f"{self.planned.attack.name} of {self.model.name}"
        return label if self.change is None else f"{label}, fold {self.change.fold}, seed {self.change.seed}"


def plan(attack: Attack, options: Options, material: Material) -> Planned:
    """What the attack does to every model. Raises ValueError where it cannot be done."""
    try:
        if attack.ask:
            return Planned(attack, options, asking=attack.ask(material, options))
        if attack.changes:
            return Planned(attack, options, changes=attack.changes(material, options))
        attack.check(material, options)
    except ValueError as error:
        raise ValueError(f"attack {attack.name}: {error}") from error
    return Planned(attack, options)


def pieces_of(
    plans: Sequence[Planned], models: Sequence[Model], material: Material, origin: Mapping[str, Any]
) -> list[Piece]:
    """All pieces, attack by attack.

    Args:
        models: among them the original and the never-knew model under the names that attacks need them by.
        origin: all that rows depend on besides attack, models and material.
    """
    known = {model.name: fingerprint(model.path) for model in models}
    found = []
    for planned in plans:
        attack = planned.attack
        # What forward passes see of the material, and other attacks do not.
        seen = {"seeds": material.seeds, "texts": dict(material.texts)} if attack.measure else {}
        for model in models:
            for change in planned.changes or (None,):
                parts = {
                    "attack": attack.name,
                    "options": dict(planned.options),
                    "fold": change and [change.fold, change.seed],
                    "model": known[model.name],
                    "others": {name: known[name] for name in sorted(attack.needs) if name in known},
                    "origin": {**origin, **seen},
                }
                found.append(Piece(planned, model, change, digest(parts)))
    return found


class Runner:
    """Does pieces, and keeps what they find."""

    def __init__(self, material: Material, decoding: Decoding, folder: Path, found: Kept) -> None:
        """`folder`: for answers and changed models; `found`: the pieces."""
        self._material, self._decoding, self._kept, self._found = material, decoding, folder, found
        self._attacks, self._left_out = set[str](), set[str]()

    def run(self, pieces: Sequence[Piece]) -> list[Row]:
        """Do all pieces that are not finished, and return the rows of all, with attack and model.

        An attack that a model does not allow is left out for all models, with a warning.

        Raises:
            ValueError: no attack is left.
            EngineError, OSError: a piece cannot be done; those that are finished are kept.
        """
        # Models with the same files have pieces with the same key.
        self._attacks = {one.planned.attack.name for one in pieces}
        left = list({one.key: one for one in pieces if one.key not in self._found.records}.values())
        for piece in pieces:
            # A command that was killed may have kept what it found, and not have deleted the models.
            if piece.change and piece.key in self._found.records:
                shutil.rmtree(self._folder(piece), ignore_errors=True)
        from transformers.utils import logging

        # transformers would draw one for every model between the lines of progress.
        logging.disable_progress_bar()
        self._ask_and_change([one for one in left if one.planned.asking], [one for one in left if one.change])
        paths = {piece.model.name: piece.model.path for piece in pieces}
        self._measure([piece for piece in left if piece.planned.attack.measure], paths)
        return [
            {"model": piece.model.name, "attack": piece.planned.attack.name, **row}
            for piece in pieces
            if piece.planned.attack.name not in self._left_out
            for row in self._found.records[piece.key]["rows"]
        ]

    def _keep(self, piece: Piece, rows: list[Row]) -> None:
        """Append a piece, which outlasts this process from here on."""
        self._found.add([{"key": piece.key, "label": piece.label, "rows": rows}])

    def _leave_out(self, piece: Piece, error: ValueError) -> None:
        """Of an attack that a model does not allow. Raises ValueError where no other attack is left."""
        self._left_out.add(piece.planned.attack.name)
        if self._attacks <= {*self._left_out, BEFORE}:
            raise ValueError(f"attack {piece.label}: {error}") from error
        io.warn(f"attack {piece.label}: {error}; the attack is left out for all models")

    def _folder(self, piece: Piece) -> Path:
        """Of its changed models."""
        return self._kept / MODELS / piece.key[:16]

    def _folders(self, piece: Piece) -> dict[str, Path]:
        """Of each of its changed models by setting."""
        assert piece.change is not None
        return {setting: self._folder(piece) / (setting or "model") for setting in piece.change.settings}

    def _ask_and_change(self, asked: list[Piece], changed: Sequence[Piece]) -> None:
        """Make changed models, and ask as many at a time as fit; the given ones with the first of them."""
        made: list[Piece] = []
        with Progress("attack: making changed models", len(changed), "changes") as progress:
            for piece in self._allowed(changed, progress):
                if made and io.size(self._kept / MODELS) >= MOST_BYTES:
                    progress.doing("the models so far are asked")
                    self._ask(asked, made)
                    asked, made = [], []
                    progress.doing(piece.label)
                folders = self._folders(piece)
                assert piece.change is not None
                # An earlier command may have finished them.
                try:
                    if not all((folder / CHANGED.marker).is_file() for folder in folders.values()):
                        piece.change.write(piece.model.path, folders)
                    made.append(piece)
                except ValueError as error:
                    self._leave_out(piece, error)
        self._ask(asked, made)

    def _allowed(self, pieces: Sequence[Piece], progress: Progress) -> Iterator[Piece]:
        """One piece after the other, without those of attacks that have been left out by then."""
        for piece in pieces:
            if piece.planned.attack.name not in self._left_out:
                progress.doing(piece.label)
                yield piece
            progress.advance()

    def _ask(self, asked: Sequence[Piece], made: Sequence[Piece]) -> None:
        """One job: the given models are asked what each attack asks, changed ones what no attack asks.

        The folders of changed models are then deleted.
        """
        # The engine needs the accelerator's memory.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        work: list[tuple[Piece, Model, str, Asking, Row]] = []
        for piece in asked:
            assert piece.planned.asking is not None
            work.append((piece, piece.model, piece.planned.attack.name, piece.planned.asking, {}))
        for piece in made:
            assert piece.change is not None
            plain = asking(replace(self._material, asked=piece.change.scored), {"": unchanged})
            for setting, folder in self._folders(piece).items():
                name = f"{piece.label[:80]} {setting} {piece.key[:8]}"
                more = {"setting": setting, "sample": piece.change.seed}
                work.append((piece, replace(piece.model, name=name, path=folder), BEFORE, plain, more))
        jobs: dict[str, tuple[Model, list[Request]]] = {}
        for _, model, attack, own, _ in work:
            # Under ids that no other attack has.
            named = [replace(request, id=f"{attack}/{request.id}") for request in own.requests]
            jobs.setdefault(model.name, (model, []))[1].extend(named)
        found = run_each(list(jobs.values()), self._decoding, self._kept) if jobs else {}
        rows: dict[str, list[Row]] = {}
        with Progress("attack: scoring the answers", len(work), "attacks") as progress:
            for piece, model, attack, own, more in work:
                read = own.read({one.id: found[model.name][f"{attack}/{one.id}"] for one in own.requests})
                rows.setdefault(piece.key, []).extend({**row, **more} for row in read)
                progress.advance()
        for piece in (*asked, *made):
            self._keep(piece, rows[piece.key])
        for piece in made:
            shutil.rmtree(self._folder(piece))

    def _measure(self, pieces: Sequence[Piece], paths: Mapping[str, Path]) -> None:
        """Forward passes, model by model; the models that were used last stay in memory."""
        dtype = getattr(torch, self._decoding.dtype)
        loaded = lru_cache(maxsize=3)(partial(load_model, dtype=dtype))
        others = [partial(loaded, paths[name]) if name in paths else None for name in (ORIGINAL, CONTROL)]
        by_model = sorted(pieces, key=lambda one: list(paths).index(one.model.name))
        with Progress("attack: forward passes", len(pieces), "attacks") as progress:
            for piece in self._allowed(by_model, progress):
                measure = piece.planned.attack.measure
                assert measure is not None
                models = Models(loaded(piece.model.path), *others)
                try:
                    self._keep(piece, measure(models, self._material, piece.planned.options))
                except ValueError as error:
                    self._leave_out(piece, error)
