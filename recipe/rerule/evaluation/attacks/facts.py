"""Facts as they are asked, and other answers of the same kind, for audits that compare answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from recipe.rerule.evaluation.attacks.asking import plain
from recipe.rerule.evaluation.attacks.attack import Asked, Material
from recipe.rerule.evaluation.engine.requests import PromptText
from recipe.rerule.evaluation.probes import Probe


@dataclass(frozen=True)
class FactQuestion:
    """A fact as a probe asks for it.

    Attributes:
        kind: facts of one kind have answers that can stand for each other.
        prompt: as the benchmark asks.
        answer: the first right one.
    """

    probe: Probe
    kind: Hashable
    prompt: PromptText
    answer: str


def first_questions(material: Material, asked: Iterable[Asked], phrasings: int) -> list[FactQuestion]:
    """The first probes of every fact that are no attacks themselves, at most `phrasings` of each.

    Facts are of one kind where their questions differ in the subject alone.
    """
    counts = Counter[Hashable]()
    found = []
    for one in plain(asked, material):
        probe, fact = one.probe, material.fact(one.probe)
        counts[fact] += 1
        if counts[fact] <= phrasings:
            text = probe.query or probe.messages[-1]["content"]
            kind = probe.renamed(text, "{subject}")
            found.append(FactQuestion(probe, kind, one.request.prompt, probe.golds[0]))
    return found


def comparable_questions(questions: Sequence[FactQuestion]) -> list[FactQuestion]:
    """The facts whose answers can be swapped with those of others of their kind.

    Facts of kinds that have too few different answers for that are of one kind together; where that has too
    few as well, they are left out. Raises ValueError where no facts are left.
    """
    swappable = _swappable(questions)
    found = [one if one.kind in swappable else replace(one, kind=None) for one in questions]
    swappable = _swappable(found)
    if not swappable:
        raise ValueError(
            f"{len(found)} questions have too few different answers to be compared with each other"
        )
    return [one for one in found if one.kind in swappable]


def same_kind_answers(questions: Sequence[FactQuestion], others: Sequence[FactQuestion]) -> list[list[str]]:
    """For each fact the different answers of its kind, its own first, the others in random order.

    `others`: further facts whose answers can be chosen.
    """
    kinds: dict[Hashable, dict[str, None]] = {}
    for one in (*questions, *others):
        kinds.setdefault(one.kind, {})[one.answer] = None
    found = []
    for one in questions:
        rest = [other for other in kinds[one.kind] if other not in one.probe.golds]
        random.Random(f"answers 0 {one.probe.index}").shuffle(rest)
        found.append([one.answer, *rest])
    return found


def _swappable(questions: Sequence[FactQuestion]) -> set[Hashable]:
    """The kinds in which no answer is that of more than half of the facts."""
    kinds: dict[Hashable, Counter[str]] = {}
    for one in questions:
        kinds.setdefault(one.kind, Counter())[one.answer] += 1
    return {kind for kind, counts in kinds.items() if 2 * max(counts.values()) <= counts.total()}
