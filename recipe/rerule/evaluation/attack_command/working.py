"""Doing the pieces of a command: changed models are made, all models are asked in as few jobs as can be.

Changed models are made first, as many as fit into MOST_BYTES; one job of the engine then asks them together
with the models that were given. Finished pieces are kept at once.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from recipe.rerule.evaluation.attack_command.checked import Command
from recipe.rerule.evaluation.attack_command.kept import ANSWERS, MODELS, Finished, KeptReadings
from recipe.rerule.evaluation.attack_command.looking import look
from recipe.rerule.evaluation.attack_command.pieces import Piece, folder_of
from recipe.rerule.evaluation.attacks.interface import Asking, ForwardAttack
from recipe.rerule.evaluation.attacks.questions import asking, unchanged
from recipe.rerule.evaluation.attacks.registry import BEFORE
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answers, Generation, Request
from recipe.rerule.evaluation.engine.run import Asked, run_each
from recipe.rerule.process import Progress

MOST_BYTES = 8 * 2**30
"""Of changed models that are on the disk at a time, beyond those of one piece."""


@dataclass(frozen=True)
class Made:
    """The changed models of a piece.

    Attributes:
        models: by variant.
        seconds: that making them took.
    """

    piece: Piece
    models: dict[str, Model]
    seconds: float


def work(command: Command, kept: KeptReadings) -> None:
    """Do all pieces that are not finished. Raises ValueError, EngineError and OSError."""
    unfinished = (piece for piece in command.pieces if not _is_finished(command, kept, piece))
    # Models with the same files have pieces with the same key.
    left = list({piece.key: piece for piece in unfinished}.values())
    forward = [piece for piece in left if isinstance(piece.planned.attack, ForwardAttack)]
    changes = [piece for piece in left if piece.change is not None]
    asked = [piece for piece in left if piece.planned.asking is not None]
    with _without_bars():
        _work(command, kept, asked, changes)
        look(command, kept, forward)


def _work(command: Command, kept: KeptReadings, asked: Sequence[Piece], changes: Sequence[Piece]) -> None:
    """Changed models are made and asked, in as many jobs as the disk needs."""
    for batch in _batches(changes) if changes else [[]]:
        made = _make(command, batch)
        _ask(command, kept, asked, made)
        asked = []
        if not command.places.keep_models:
            for one in made:
                shutil.rmtree(folder_of(one.piece, command.places.kept / MODELS))


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """No bars of transformers, which draws one for every model between the lines of progress."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _is_finished(command: Command, kept: KeptReadings, piece: Piece) -> bool:
    """Whether its readings are kept and, where changed models are to stay, those too."""
    if kept.get(piece.key) is None:
        return False
    return (
        piece.change is None
        or not command.places.keep_models
        or folder_of(piece, command.places.kept / MODELS).is_dir()
    )


def _batches(changes: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces whose changed models are on the disk together."""
    batch: list[Piece] = []
    size = 0
    for piece in changes:
        assert piece.change is not None
        needed = len(piece.change.variants) * sum(
            file.stat().st_size for file in piece.model.path.iterdir() if file.is_file()
        )
        if batch and size + needed > MOST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += needed
    yield batch


def _make(command: Command, batch: Sequence[Piece]) -> list[Made]:
    made = []
    with Progress("attack: making changed models", len(batch), "changes") as progress:
        for piece in batch:
            progress.doing(piece.label)
            made.append(_made(command, piece))
            progress.advance()
    _release()
    return made


def _release() -> None:
    """Give back the accelerator's memory, which the engine needs."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _made(command: Command, piece: Piece) -> Made:
    assert piece.change is not None
    started = time.monotonic()
    folders = piece.change.write(piece.model.path, folder_of(piece, command.places.kept / MODELS))
    models = {
        variant: replace(piece.model, name=_name(piece, variant), path=folder)
        for variant, folder in folders.items()
    }
    return Made(piece, models, time.monotonic() - started)


def _name(piece: Piece, variant: str) -> str:
    """Of a changed model, in messages and of its file of answers."""
    assert piece.change is not None
    parts = [piece.model.name[:40], piece.planned.attack.name, variant]
    whole = " ".join([*filter(None, parts), f"fold {piece.change.fold} seed {piece.change.seed}"])
    return f"{whole} {piece.key[:8]}"


def _ask(command: Command, kept: KeptReadings, asked: Sequence[Piece], made: Sequence[Made]) -> None:
    """One job: the given models are asked what each attack asks, changed ones what no attack asks."""
    by_model: dict[str, list[Piece]] = {}
    for piece in asked:
        by_model.setdefault(piece.model.name, []).append(piece)
    plain = {one.piece.key: _plain(command, one.piece) for one in made}
    jobs = [*map(_job_given, by_model.values()), *_jobs_made(made, plain)]
    if not jobs:
        return
    found = run_each(jobs, command.decoding, command.places.kept / ANSWERS)
    with Progress("attack: scoring the answers", len(by_model) + len(made), "models") as progress:
        for pieces in by_model.values():
            _read_given(kept, pieces, found[pieces[0].model.name])
            progress.advance()
        for one in made:
            _read_made(kept, one, plain[one.piece.key], found)
            progress.advance()


def _job_given(pieces: Sequence[Piece]) -> tuple[Model, list[Request]]:
    """What all attacks by requests ask of one model."""
    requests = [request for piece in pieces for request in _named(piece.planned.attack.name, _asking(piece))]
    return pieces[0].model, requests


def _jobs_made(made: Sequence[Made], plain: Mapping[str, Asking]) -> list[tuple[Model, list[Request]]]:
    return [(model, _named(BEFORE, plain[one.piece.key])) for one in made for model in one.models.values()]


def _asking(piece: Piece) -> Asking:
    assert piece.planned.asking is not None
    return piece.planned.asking


def _plain(command: Command, piece: Piece) -> Asking:
    """What the changed models of a piece are asked."""
    assert piece.change is not None
    return asking(replace(command.material, asked=piece.change.scored), {"": unchanged})


def _named(attack: str, of_attack: Asking) -> list[Request]:
    """The requests, under ids that no other attack has."""
    return [replace(request, id=f"{attack}/{request.id}") for request in of_attack.requests]


def _answers(attack: str, of_attack: Asking, answers: Answers) -> Answers:
    return {request.id: answers[f"{attack}/{request.id}"] for request in of_attack.requests}


def _read_given(kept: KeptReadings, pieces: Sequence[Piece], found: Asked) -> None:
    """The readings of a given model; the engine's time is divided by how many answers were asked for."""
    shares = [sum(map(_weight, _asking(piece).requests)) for piece in pieces]
    for piece, share in zip(pieces, shares, strict=True):
        own = _asking(piece)
        readings = own.read(_answers(piece.planned.attack.name, own, found.answers))
        kept.add(piece.key, piece.label, Finished(readings, found.seconds * share / sum(shares)))


def _weight(request: Request) -> int:
    return request.sampling.samples if isinstance(request, Generation) and request.sampling else 1


def _read_made(kept: KeptReadings, made: Made, plain: Asking, found: dict[str, Asked]) -> None:
    readings = {
        variant: plain.read(_answers(BEFORE, plain, found[model.name].answers))[""]
        for variant, model in made.models.items()
    }
    seconds = made.seconds + sum(found[model.name].seconds for model in made.models.values())
    kept.add(made.piece.key, made.piece.label, Finished(readings, seconds))
