"""What an attack is: a declared object that says what to do to a model, and how to read a score out of it.

There are three kinds. A `RequestAttack` asks a model the probes in its own way. A `FolderAttack` makes
changed model folders, which are then asked the probes as the benchmark asks them. A `ForwardAttack` computes
scores from a transformers model. The command attacks all models alike: unlearned, original and never-knew.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from recipe.rerule.evaluation.attacks.material import FORGET, SCORE, Asked, Material, Readings
from recipe.rerule.evaluation.engine.requests import Answers, Request
from recipe.rerule.evaluation.summary import Statistic, mean_of

Need = Literal["train", "original", "control"]
"""Rows of --train, the model called `original`, the never-knew model of --control."""
Options = Mapping[str, Any]
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MEAN = mean_of(SCORE, [FORGET])


@dataclass(frozen=True)
class Asking:
    """What a `RequestAttack` asks of every model.

    Attributes:
        requests: with ids that are unique within the attack.
        read: the readings of the answers of one model, by the ids of `requests`.
    """

    requests: Sequence[Request]
    read: Callable[[Answers], Readings]


@dataclass(frozen=True)
class Change:
    """One set of changed folders that a `FolderAttack` makes of a model, in one go.

    Attributes:
        fold: which half is trained on, 0 where there are no halves.
        seed: of what is drawn at random.
        scored: the forget probes that the changed models are asked.
        variants: of the folders, in their order.
        write: (model folder, new folder to write below) -> {variant: changed model folder}.
    """

    fold: int
    seed: int
    scored: tuple[Asked, ...]
    variants: tuple[str, ...]
    write: Callable[[Path, Path], Mapping[str, Path]]


@dataclass(frozen=True)
class Models:
    """What a `ForwardAttack` may look at: transformers models in evaluation mode; it takes no gradients.

    Attributes:
        attacked: the model that is scored.
        original: loads the original model; None where the attack does not need it.
        control: loads the never-knew model; None likewise.
        name: of the attacked model in messages.
    """

    attacked: Any
    original: Callable[[], Any] | None = None
    control: Callable[[], Any] | None = None
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """What all kinds declare.

    Attributes:
        name: on the command line and in results: small letters, digits and "_".
        title: in tables.
        tells: one sentence for the list of attacks: what is done to the model.
        cost: how long it takes, in words.
        default: whether it belongs to `--attacks default`.
        quick: its options under `--budget quick`.
        full: the options that `--budget full` changes.
        needs: what it cannot do without.
        higher_is_leak: whether a higher score means that more was left of the knowledge.
        floor: the score by chance of a model without the knowledge.
        statistic: the score of a model from its readings as arrays over facts; the mean of FORGET.
        has_before: whether the score is comparable with the recall before the attack.
        curve: whether its variants are the steps of one run, of which step 0 is the model before the attack.
    """

    name: str
    title: str
    tells: str
    cost: str
    default: bool = False
    quick: Options = field(default_factory=dict)
    full: Options = field(default_factory=dict)
    needs: frozenset[Need] = frozenset()
    higher_is_leak: bool = True
    floor: float = 0.0
    statistic: Statistic = _MEAN
    has_before: bool = True
    curve: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError where something declared cannot be."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"its name is {self.name!r}; small letters, digits and _ are allowed, at most 40"
            )
        if unknown := [name for name in self.full if name not in self.quick]:
            raise ValueError(f"its full budget has the option {unknown[0]}, which its quick budget lacks")

    @property
    @abstractmethod
    def kind(self) -> str:
        """In words."""

    def options(self, budget: Literal["quick", "full"]) -> Options:
        """The options of a budget."""
        return {**self.quick, **(self.full if budget == "full" else {})}


@dataclass(frozen=True, kw_only=True)
class RequestAttack(Attack):
    """Asks the probes in its own way.

    Attributes:
        ask: (material, options) -> what to ask. Raises ValueError where it cannot be asked.
    """

    ask: Callable[[Material, Options], Asking]

    @property
    def kind(self) -> str:
        return "requests"


@dataclass(frozen=True, kw_only=True)
class FolderAttack(Attack):
    """Makes changed model folders, which are asked as the benchmark asks.

    Attributes:
        changes: (material, options) -> what to make of every model. Raises ValueError where that cannot be.
    """

    changes: Callable[[Material, Options], Sequence[Change]]

    @property
    def kind(self) -> str:
        return "folder"


@dataclass(frozen=True, kw_only=True)
class ForwardAttack(Attack):
    """Computes scores from forward passes of a transformers model.

    Attributes:
        measure: (models, material, options) -> readings. Raises ValueError where they cannot be computed.
        check: refuses material that it can do nothing with, before any model is loaded. Raises ValueError.
    """

    measure: Callable[[Models, Material, Options], Readings]
    check: Callable[[Material, Options], None] = lambda material, options: None

    @property
    def kind(self) -> str:
        return "forward"


def key_of(attack: Attack, variant: str) -> str:
    """What results call a variant: "prompts/role_play", or the attack's name where it has no variants."""
    return f"{attack.name}/{variant}" if variant else attack.name
