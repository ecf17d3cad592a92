"""The probes of a benchmark as attacks need them: which are asked, how, how they are scored, and their facts.

The quick budget asks some probes of each fact, the full one all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.attacks.attack import Asked, Material, Scored
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


@dataclass(frozen=True)
class Source:
    """A benchmark, as it is and with the command's options, probes, and the folder of a tokenizer."""

    benchmark: Benchmark
    evaluator: Benchmark
    probes: Sequence[Probe]
    folder: Path

    def unanswered(self, probes: Sequence[Probe]) -> list[Row]:
        """Records of empty answers: all that they say is about the probes."""
        return self.evaluator.records(probes, self.evaluator.anchor_answers(probes, ""), self.folder)

    def asked(self) -> list[Asked]:
        """Each probe with its one generation. Raises ValueError where there are more."""
        requests = [one for one in self.evaluator.requests(self.probes) if isinstance(one, Generation)]
        if len(requests) != len(self.probes):
            raise ValueError(
                f"benchmark {self.benchmark.name} asks for {len(requests)} texts with {len(self.probes)} "
                "probes; attacks need one text a probe"
            )
        return [Asked(probe, request) for probe, request in zip(self.probes, requests, strict=True)]


def material_of(
    source: Source, train: Sequence[Probe], models: Sequence[Model], budget: Budget, seeds: int
) -> Material:
    """What the attacks work with.

    Raises:
        ValueError: the benchmark asks for something else than one text a probe, or has no such score; or the
            probes that count ask for fewer than FEWEST_FACTS facts.
    """
    benchmark, recovery, asked = source.benchmark, source.benchmark.recovery, source.asked()
    records = source.unanswered(source.probes)
    pairs = list(zip(asked, records, strict=True))
    facts: dict[Hashable, Hashable] = {_key(one.probe): benchmark.fact(record) for one, record in pairs}
    try:
        of_rows = [benchmark.fact(record) for record in source.unanswered(train)] if train else []
    # Rows that the benchmark does not take for probes: each is a fact of its own.
    except (ValueError, KeyError):
        of_rows = [("row", number) for number in range(len(train))]
    facts |= {_key(row): fact for row, fact in zip(train, of_rows, strict=True)}

    def fact(probe: Probe) -> Hashable:
        return facts[_key(probe)]

    def of(one: Asked) -> Hashable:
        return fact(one.probe)

    forget = budget.forget([one for one, record in pairs if recovery.counts(record)], of)
    count = len(set(map(of, forget)))
    if count < FEWEST_FACTS:
        raise ValueError(
            f"facts that the forget probes ask for: {count}; at least {FEWEST_FACTS} are needed, "
            "and 40 are better: facts are the unit of all intervals and tests"
        )
    return Material(
        asked=tuple(forget),
        retained=tuple(budget.retain([one for one, record in pairs if recovery.retained(record)], of)),
        train=tuple(train),
        fact=fact,
        score=Scorer(source, {one.probe.index: one for one in asked}),
        tokenizer=bind(load_tokenizer(models[0]), models[0].template),
        template=models[0].template,
        context=min(filter(None, map(context_length, models)), default=None),
        seeds=seeds,
        texts=source.evaluator.texts.sets(),
    )


class Scorer:
    """Scores responses as the benchmark does; equal ones once."""

    def __init__(self, source: Source, asked: Mapping[int, Asked]) -> None:
        """`asked`: all probes by index."""
        self._source = source
        self._asked = asked
        self._known: dict[tuple[int, tuple[str, ...], str], Scored] = {}
        # Some benchmarks need a probe of the forget side to know whom the others are about.
        self._always = next((one.probe for one in asked.values() if one.probe.section == "forget"), None)

    def __call__(self, pairs: Sequence[tuple[Probe, str]]) -> list[Scored]:
        """Of each (probe, response). Raises ValueError where the benchmark's records have no such score."""
        keys = [(probe.index, tuple(probe.golds), text) for probe, text in pairs]
        missing = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._known}
        # In rounds in which no probe occurs twice.
        rounds: dict[int, list[Any]] = {}
        seen = Counter[int]()
        for key, (probe, text) in missing.items():
            rounds.setdefault(seen[probe.index], []).append((key, probe, text))
            seen[probe.index] += 1
        for distinct in rounds.values():
            scored = self._scored([(probe, text) for _, probe, text in distinct])
            self._known |= {key: one for (key, *_), one in zip(distinct, scored, strict=True)}
        return [self._known[key] for key in keys]

    def _scored(self, pairs: Sequence[tuple[Probe, str]]) -> list[Scored]:
        """Of different probes."""
        probes = [probe for probe, _ in pairs]
        answers = {self._asked[probe.index].request.id: Answer(text) for probe, text in pairs}
        if self._always is not None and all(probe.section != "forget" for probe in probes):
            probes.append(self._always)
            answers[self._asked[self._always.index].request.id] = Answer()
        records = self._source.evaluator.records(probes, answers, self._source.folder)
        return [_score(self._source.benchmark, record) for record in records[: len(pairs)]]


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
