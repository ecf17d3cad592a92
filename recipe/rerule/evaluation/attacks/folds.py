"""Two folds over facts: every fact is scored exactly once, by a model that was not trained on it."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Fold(Generic[T]):
    """One of the two halves: what is trained on, and what is scored after that. They share no fact."""

    trained: list[T]
    scored: list[T]


def two_halves(facts: Iterable[Hashable], seed: int) -> tuple[frozenset[Hashable], frozenset[Hashable]]:
    """The facts in two random halves; of an odd number the second half has one more.

    The halves depend on the seed and the set of facts alone, not on their order or repetitions.

    Raises:
        ValueError: there are fewer than two facts.
    """
    ordered = sorted(set(facts), key=repr)
    if len(ordered) < 2:
        raise ValueError(f"{len(ordered)} facts cannot be split into two halves; at least 2 are needed")
    random.Random(f"two halves {seed}").shuffle(ordered)
    middle = len(ordered) // 2
    return frozenset(ordered[:middle]), frozenset(ordered[middle:])


def two_folds(items: Sequence[T], fact: Callable[[T], Hashable], seed: int) -> tuple[Fold[T], Fold[T]]:
    """Training on one half of the facts and scoring the other half, both ways round.

    Args:
        items: probes or rows; their order is kept.
        fact: which fact an item asks for (`Benchmark.fact` of its record).

    Raises:
        ValueError: the items ask for fewer than two facts.
    """
    facts = [fact(item) for item in items]
    first, _ = two_halves(facts, seed)
    one = [item for item, asked in zip(items, facts, strict=True) if asked in first]
    other = [item for item, asked in zip(items, facts, strict=True) if asked not in first]
    return Fold(one, other), Fold(other, one)
