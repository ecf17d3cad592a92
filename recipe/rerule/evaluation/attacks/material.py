"""The probes of a benchmark as attacks need them: which are asked, how, how they are scored, and their facts.

The quick budget asks some probes of each fact, the full one all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.attacks.attack import FORGET, RETAIN, Asked, Material, Scored
from recipe.rerule.evaluation.engine.encoding import load_tokenizer
from recipe.rerule.evaluation.engine.models import Model, context_length
from recipe.rerule.evaluation.engine.requests import Answer, Generation
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.registry import Benchmark, Row
from recipe.rerule.training.template_arguments import bind

FEWEST_FACTS = 2
FactOf = Callable[[Asked], Hashable]


@dataclass(frozen=True)
class Budget:
    """A budget of the command line.

    Attributes:
        probes_per_fact: most forget probes of one fact; None for all. All facts are asked in any case.
        retained: most probes of the retain side; None for all.
        seeds: how often an attack that draws at random is repeated.
    """

    name: str
    probes_per_fact: int | None
    retained: int | None
    seeds: int

    def forget(self, asked: Sequence[Asked], fact: FactOf) -> list[Asked]:
        """The forget probes that are asked: of each fact the first of every mode, then the second ones."""
        if self.probes_per_fact is None:
            return list(asked)
        chosen: set[int] = set()
        taken = Counter[Hashable]()
        for place in _by_turns(asked, lambda one: (fact(one), one.probe.mode)):
            taken[fact(asked[place])] += 1
            if taken[fact(asked[place])] <= self.probes_per_fact:
                chosen.add(place)
        return [one for place, one in enumerate(asked) if place in chosen]

    def retain(self, asked: Sequence[Asked], fact: FactOf) -> list[Asked]:
        """The retain probes that are asked: one of every fact, then second ones."""
        chosen = set(_by_turns(asked, fact)[: self.retained])
        return [one for place, one in enumerate(asked) if place in chosen]


BUDGETS = {"quick": Budget("quick", 3, 60, 1), "full": Budget("full", None, None, 3)}


def _by_turns(asked: Sequence[Asked], group: FactOf) -> list[int]:
    """Places: the first of each group in their order, then the second ones, and so on."""
    seen = Counter[Hashable]()
    turns = []
    for place, one in enumerate(asked):
        turns.append((seen[group(one)], place))
        seen[group(one)] += 1
    return [place for _, place in sorted(turns)]


def material_of(
    benchmark: Benchmark,
    probes: Sequence[Probe],
    train: Sequence[Probe],
    models: Sequence[Model],
    budget: Budget,
    seeds: int,
) -> Material:
    """What the attacks work with.

    Raises ValueError: the benchmark asks for something else than one text a probe, or has no such score; or
    the probes that count ask for fewer than FEWEST_FACTS facts.
    """
    requests = [one for one in benchmark.requests(probes) if isinstance(one, Generation)]
    if len(requests) != len(probes):
        raise ValueError(
            f"benchmark {benchmark.name} asks for {len(requests)} texts with {len(probes)} probes; attacks "
            "need one text a probe"
        )
    asked = [Asked(probe, request) for probe, request in zip(probes, requests, strict=True)]
    folder, recovery = models[0].path, benchmark.recovery

    def unanswered(given: Sequence[Probe]) -> list[Row]:
        """Rows of empty answers: all that they say is about the probes."""
        return benchmark.records(given, benchmark.anchor_answers(given, ""), folder)

    records = unanswered(probes)
    facts = {_key(probe): benchmark.fact(record) for probe, record in zip(probes, records, strict=True)}
    try:
        of_rows = [benchmark.fact(record) for record in unanswered(train)] if train else []
    # Rows that the benchmark does not take for probes: each is a fact of its own.
    except (ValueError, KeyError):
        of_rows = [("row", number) for number in range(len(train))]
    facts |= {_key(row): fact for row, fact in zip(train, of_rows, strict=True)}

    def fact(one: Asked) -> Hashable:
        return facts[_key(one.probe)]

    pairs = list(zip(asked, records, strict=True))
    counted = [one for one, row in pairs if row["side"] == FORGET and recovery.counts(row)]
    forget = budget.forget(counted, fact)
    count = len(set(map(fact, forget)))
    if count < FEWEST_FACTS:
        raise ValueError(
            f"facts that the forget probes ask for: {count}; at least {FEWEST_FACTS} are needed, "
            "and 40 are better: facts are the unit of all intervals and tests"
        )
    return Material(
        asked=tuple(forget),
        retained=tuple(budget.retain([one for one, row in pairs if row["side"] == RETAIN], fact)),
        train=tuple(train),
        fact=lambda probe: facts[_key(probe)],
        score=Scorer(benchmark, folder, asked),
        tokenizer=bind(load_tokenizer(models[0]), models[0].template),
        template=models[0].template,
        context=min(filter(None, map(context_length, models)), default=None),
        seeds=seeds,
        texts=benchmark.texts.sets,
    )


class Scorer:
    """Scores responses as the benchmark does; equal ones once."""

    def __init__(self, benchmark: Benchmark, folder: Path, asked: Sequence[Asked]) -> None:
        """`folder`: that the tokenizer is taken from. `asked`: all probes."""
        self._benchmark, self._folder = benchmark, folder
        self._ids = {one.probe.index: one.request.id for one in asked}
        self._known: dict[Any, Scored] = {}
        # Some benchmarks need a probe of the forget side to know whom the others are about.
        self._always = next((one.probe for one in asked if one.probe.section == "forget"), None)

    def __call__(self, pairs: Sequence[tuple[Probe, str]]) -> list[Scored]:
        """Of each (probe, response). Raises ValueError where the benchmark's rows have no such score."""
        keys = [(probe.index, tuple(probe.golds), text) for probe, text in pairs]
        # In rounds in which no probe occurs twice.
        rounds: list[dict[int, tuple[Any, Probe, str]]] = []
        for key, (probe, text) in dict(zip(keys, pairs, strict=True)).items():
            if key not in self._known:
                place = next((one for one in rounds if probe.index not in one), None)
                if place is None:
                    rounds.append(place := {})
                place[probe.index] = key, probe, text
        for distinct in rounds:
            probes = [probe for _, probe, _ in distinct.values()]
            answers = {self._ids[probe.index]: Answer(text) for _, probe, text in distinct.values()}
            if self._always is not None and all(probe.section != "forget" for probe in probes):
                probes.append(self._always)
                answers[self._ids[self._always.index]] = Answer()
            records = self._benchmark.records(probes, answers, self._folder)
            for (key, *_), record in zip(distinct.values(), records, strict=False):
                self._known[key] = _score(self._benchmark, record)
        return [self._known[key] for key in keys]


def _score(benchmark: Benchmark, record: Row) -> Scored:
    recall = record.get(benchmark.recovery.quantity)
    if isinstance(recall, bool) or not isinstance(recall, int | float) or not 0 <= recall <= 1:
        raise ValueError(
            f"the records of benchmark {benchmark.name} have no {benchmark.recovery.quantity} between 0 and "
            "1, by which attacks are scored; let its `recovery` name another number"
        )
    return Scored(float(recall), bool(record.get("refused", False)))


def _key(probe: Probe) -> tuple[str, int, str]:
    """Indices of training rows may be those of probes."""
    return probe.section, probe.index, "\n".join(message["content"] for message in probe.messages)
