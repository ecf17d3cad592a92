"""The settings of the embedded world, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TypeVar

MOST_PEOPLE = 48
"""Length of the shortest list of values (`facts`): there can be no more people than that."""
STRANGERS_A_PERSON = 256
"""Half of four times the shorter list of names (`facts`), so that a free name is soon drawn."""
_Number = TypeVar("_Number", int, float)


def _setting(default: _Number, text: str, least: float = 1, most: float = math.inf) -> _Number:
    """A dataclass field that lies in [least, most]; `text` is the help of its option."""
    says = f"lie in [{least}, {most}]" if most < math.inf else f"be at least {least}"
    option = {"help": text, "type": type(default), "metavar": "N" if isinstance(default, int) else "X"}
    return field(default=default, metadata={"option": option, "range": (least, most), "says": says})


@dataclass(frozen=True)
class WorldConfig:
    """Sizes and seeds of the world; two equal configurations give byte-identical parquet files."""

    seed: int = _setting(0, "seed of the people, the facts, the splits and the model", -math.inf)
    forget_people: int = _setting(2, "people to be forgotten")
    retain_people: int = _setting(22, "people to be kept whose questions occur in stage 2")
    unseen_people: int = _setting(14, "people to be kept who never occur in stages 1 and 2")
    facts_per_person: int = _setting(7, "facts known about each person")
    val_rows: int = _setting(48, "most rows of val.parquet, half of them on people to be forgotten", 2)
    retain_probes: int = _setting(200, "most probes on each of the two groups of people to be kept", 0)
    unknown_questions: int = _setting(600, "base-training questions about people who do not exist", 0, 4000)
    # Every byte and five special tokens have to fit in.
    vocab_size: int = _setting(2048, "upper limit of the tokenizer's vocabulary", 261)
    hidden_size: int = _setting(192, "width of the model")
    layers: int = _setting(4, "layers of the model")
    heads: int = _setting(4, "attention heads of the model")
    intermediate_size: int = _setting(512, "width of the model's feed-forward layers")
    batch_size: int = _setting(64, "training examples per optimiser step of the base model")
    epochs: int = _setting(3, "most epochs of base training")
    target_accuracy: float = _setting(
        0.998, "base training stops once this share of probes is answered exactly", 0, 1
    )

    def __post_init__(self) -> None:
        """Raises ValueError, naming the setting, when a value is out of range."""
        for one in fields(self):
            value = getattr(self, one.name)
            least, most = one.metadata["range"]
            if not least <= value <= most:
                raise ValueError(f"{one.name} must {one.metadata['says']}, got {value}")
        people = self.forget_people + self.retain_people + self.unseen_people
        if people > MOST_PEOPLE:
            raise ValueError(f"there can be {MOST_PEOPLE} people in all at most, got {people}")
        # A quarter of them have the first name of a person, and a quarter the last name (`make_strangers`).
        if self.unknown_questions > STRANGERS_A_PERSON * people:
            raise ValueError(
                f"unknown_questions must be at most {STRANGERS_A_PERSON} for each of {people} people, got "
                f"{self.unknown_questions}"
            )
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size must be a multiple of 2 x heads, got {self.hidden_size} and {self.heads} heads"
            )
