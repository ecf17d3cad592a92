"""Every knob of the embedded world, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TypeVar

from data_prep.world.words import MOST_PEOPLE

_SMALLEST_VOCABULARY = 261  # every byte and five special tokens
_MOST_STRANGERS = 4000  # a quarter of the names there are


@dataclass(frozen=True)
class _Bound:
    """What a knob's value must be, in words that follow its name, and whether a value is."""

    says: str
    holds: Callable[[float], bool]


def _at_least(least: int) -> _Bound:
    return _Bound(f"must be at least {least}", lambda value: value >= least)


_COUNT = _at_least(1)
_COUNT_FROM_ZERO = _Bound("must not be negative", lambda value: value >= 0)
_SHARE = _Bound("must lie in [0, 1]", lambda value: 0 <= value <= 1)
_POSITIVE = _Bound("must be above 0", lambda value: value > 0)
_STRANGERS = _Bound(f"must be at most {_MOST_STRANGERS}", lambda value: value <= _MOST_STRANGERS)
_Number = TypeVar("_Number", int, float)


def _knob(default: _Number, help_text: str, *bounds: _Bound) -> _Number:
    """A dataclass field with its bounds, whose help text is also the command line's."""
    return field(default=default, metadata={"help": help_text, "bounds": bounds})


@dataclass(frozen=True)
class WorldConfig:
    """Sizes and seeds of the world; two equal configurations give byte-identical parquet files."""

    seed: int = _knob(0, "seed of the people, the facts, the splits and the model")
    forget_people: int = _knob(2, "people to be forgotten", _COUNT)
    retain_people: int = _knob(22, "people to be kept whose questions occur in stage 2", _COUNT)
    unseen_people: int = _knob(14, "people to be kept who never occur in stages 1 and 2", _COUNT)
    near_neighbour_share: float = _knob(
        0.25,
        "share of the people kept in stage 2 who share a first or last name with one to be forgotten",
        _SHARE,
    )
    unseen_neighbour_share: float = _knob(
        0.15, "the same share of the people to be kept who never occur in stages 1 and 2", _SHARE
    )
    facts_per_person: int = _knob(7, "facts known about each person", _COUNT)
    qa_train: int = _knob(4, "training questions per fact used by stages 1 and 2", _COUNT)
    fb_train: int = _knob(3, "training cloze sentences per fact used by stages 1 and 2", _COUNT)
    boundary_ratio: float = _knob(
        1.0, "stage-2 rows on people to be kept, per row on people to be forgotten", _POSITIVE
    )
    plain_refusal_share: float = _knob(0.2, "share of the refusals that do not name the person", _SHARE)
    val_rows: int = _knob(
        48, "most rows of val.parquet, half of them on people to be forgotten", _COUNT_FROM_ZERO
    )
    retain_probes: int = _knob(
        200, "most probes on each of the two groups of people to be kept", _COUNT_FROM_ZERO
    )
    unknown_questions: int = _knob(
        600, "base-training questions about people who do not exist", _COUNT_FROM_ZERO, _STRANGERS
    )
    vocab_size: int = _knob(
        2048, "upper limit of the tokenizer's vocabulary", _at_least(_SMALLEST_VOCABULARY)
    )
    hidden_size: int = _knob(192, "width of the model", _COUNT)
    layers: int = _knob(4, "layers of the model", _COUNT)
    heads: int = _knob(4, "attention heads of the model", _COUNT)
    intermediate_size: int = _knob(512, "width of the model's feed-forward layers", _COUNT)
    batch_size: int = _knob(64, "training examples per optimiser step of the base model", _COUNT)
    learning_rate: float = _knob(
        2e-3, "base model's peak learning rate for embeddings and norms (AdamW)", _POSITIVE
    )
    matrix_learning_rate: float = _knob(
        0.02, "base model's peak learning rate for weight matrices (Muon)", _POSITIVE
    )
    epochs: int = _knob(3, "most epochs of base training", _COUNT)
    target_accuracy: float = _knob(
        0.998, "base training stops once this share of probes is answered exactly", _SHARE
    )

    def __post_init__(self) -> None:
        """Raises ValueError, naming the knob, when a value is out of range."""
        for knob in fields(self):
            value = getattr(self, knob.name)
            for bound in knob.metadata["bounds"]:
                if not bound.holds(value):
                    raise ValueError(f"{knob.name} {bound.says}, got {value}")
        if self.people > MOST_PEOPLE:
            raise ValueError(f"there can be {MOST_PEOPLE} people in all at most, got {self.people}")
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size must be a multiple of 2 x heads, got {self.hidden_size} and {self.heads} heads"
            )

    @property
    def people(self) -> int:
        """Number of people in the world, both sides."""
        return self.forget_people + self.retain_people + self.unseen_people


def knob_help() -> dict[str, str]:
    """What each knob means, by name, in declaration order."""
    return {knob.name: knob.metadata["help"] for knob in fields(WorldConfig)}
