"""Every knob of the embedded world, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TypeVar

MOST_PEOPLE = 48
"""Length of the shortest list of values (`facts`): there can be no more people than that."""
_Number = TypeVar("_Number", int, float)


def _knob(
    default: _Number, help_text: str, least: float = 1, most: float = math.inf, above: float = -math.inf
) -> _Number:
    """A dataclass field that lies in [least, most] and above `above`; the help is also the command line's."""
    says = f"lie in [{least}, {most}]" if most < math.inf else f"be at least {least}"
    says = says if above == -math.inf else f"be above {above}"
    return field(default=default, metadata={"help": help_text, "range": (least, most, above), "says": says})


@dataclass(frozen=True)
class WorldConfig:
    """Sizes and seeds of the world; two equal configurations give byte-identical parquet files."""

    seed: int = _knob(0, "seed of the people, the facts, the splits and the model", -math.inf)
    forget_people: int = _knob(2, "people to be forgotten")
    retain_people: int = _knob(22, "people to be kept whose questions occur in stage 2")
    unseen_people: int = _knob(14, "people to be kept who never occur in stages 1 and 2")
    near_neighbour_share: float = _knob(
        0.25,
        "share of the people kept in stage 2 who share a first or last name with one to be forgotten",
        0,
        1,
    )
    unseen_neighbour_share: float = _knob(
        0.15, "the same share of the people to be kept who never occur in stages 1 and 2", 0, 1
    )
    facts_per_person: int = _knob(7, "facts known about each person")
    qa_train: int = _knob(4, "training questions per fact used by stages 1 and 2")
    fb_train: int = _knob(3, "training cloze sentences per fact used by stages 1 and 2")
    boundary_ratio: float = _knob(
        1.0, "stage-2 rows on people to be kept, per row on people to be forgotten", 0, above=0
    )
    plain_refusal_share: float = _knob(0.2, "share of the refusals that do not name the person", 0, 1)
    val_rows: int = _knob(48, "most rows of val.parquet, half of them on people to be forgotten", 0)
    retain_probes: int = _knob(200, "most probes on each of the two groups of people to be kept", 0)
    # At most a quarter of the names there are.
    unknown_questions: int = _knob(600, "base-training questions about people who do not exist", 0, 4000)
    # Every byte and five special tokens have to fit in.
    vocab_size: int = _knob(2048, "upper limit of the tokenizer's vocabulary", 261)
    hidden_size: int = _knob(192, "width of the model")
    layers: int = _knob(4, "layers of the model")
    heads: int = _knob(4, "attention heads of the model")
    intermediate_size: int = _knob(512, "width of the model's feed-forward layers")
    batch_size: int = _knob(64, "training examples per optimiser step of the base model")
    learning_rate: float = _knob(
        2e-3, "base model's peak learning rate for embeddings and norms (AdamW)", 0, above=0
    )
    matrix_learning_rate: float = _knob(
        0.02, "base model's peak learning rate for weight matrices (Muon)", 0, above=0
    )
    epochs: int = _knob(3, "most epochs of base training")
    target_accuracy: float = _knob(
        0.998, "base training stops once this share of probes is answered exactly", 0, 1
    )

    def __post_init__(self) -> None:
        """Raises ValueError, naming the knob, when a value is out of range."""
        for knob in fields(self):
            value = getattr(self, knob.name)
            least, most, above = knob.metadata["range"]
            if not (least <= value <= most and value > above):
                raise ValueError(f"{knob.name} must {knob.metadata['says']}, got {value}")
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
