"""The probes of a benchmark as attacks need them: how each is asked, scored, and which fact it asks for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.attack_command.budget import Budget
from recipe.rerule.evaluation.attacks.material import Asked, Material, Scored
from recipe.rerule.evaluation.engine.encoding import load_tokenizer
from recipe.rerule.evaluation.engine.models import Model, context_length
from recipe.rerule.evaluation.engine.requests import Answer, Generation
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.registry import Benchmark
from recipe.rerule.evaluation.registry import Benchmark as Evaluator
from recipe.rerule.evaluation.registry import Row as Record
from recipe.rerule.training.template_arguments import bind

FEWEST_FACTS = 2
Key = tuple[str, int, str]


@dataclass(frozen=True)
class Source:
    """A benchmark with its options, the probes of a file, and the folder that a tokenizer is taken from."""

    benchmark: Benchmark
    evaluator: Evaluator
    probes: Sequence[Probe]
    folder: Path


def material_of(
    source: Source, train: Sequence[Probe], models: Sequence[Model], budget: Budget, seeds: int
) -> Material:
    """What the attacks work with.

    Raises:
        ValueError: the benchmark asks for something else than one text a probe, or has no such score; or the
            probes that count ask for fewer than FEWEST_FACTS facts.
    """
    recovery = source.benchmark.recovery
    asked = _asked(source)
    records = _unanswered(source, source.probes)
    facts = {
        _key(probe): source.benchmark.fact(record)
        for probe, record in zip(source.probes, records, strict=True)
    }
    facts |= _facts_of_rows(source, train)
    pairs = list(zip(asked, records, strict=True))

    def fact(probe: Probe) -> Hashable:
        return facts[_key(probe)]

    def of(one: Asked) -> Hashable:
        return fact(one.probe)

    forget = budget.forget([one for one, record in pairs if recovery.counts(record)], of)
    _check_facts({of(one) for one in forget})
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
        for distinct in _rounds(list(missing.values())):
            scored = self._scored(distinct)
            for (probe, text), one in zip(distinct, scored, strict=True):
                self._known[probe.index, tuple(probe.golds), text] = one
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


def _rounds(pairs: Sequence[tuple[Probe, str]]) -> Iterator[list[tuple[Probe, str]]]:
    """The pairs in lists in which no probe occurs twice."""
    rounds: list[dict[int, tuple[Probe, str]]] = []
    seen: dict[int, int] = {}
    for probe, text in pairs:
        turn = seen.get(probe.index, 0)
        seen[probe.index] = turn + 1
        if turn == len(rounds):
            rounds.append({})
        rounds[turn][probe.index] = (probe, text)
    return (list(one.values()) for one in rounds)


def _score(benchmark: Benchmark, record: Record) -> Scored:
    recall = record.get(benchmark.recovery.quantity)
    if isinstance(recall, bool) or not isinstance(recall, int | float) or not 0 <= recall <= 1:
        raise ValueError(
            f"the records of benchmark {benchmark.name} have no {benchmark.recovery.quantity} between 0 and "
            "1, by which attacks are scored; let its `recovery` name another number"
        )
    return Scored(float(recall), bool(record.get("refused", False)))


def _asked(source: Source) -> list[Asked]:
    """Each probe with its one generation."""
    requests = source.evaluator.requests(source.probes)
    generations = [request for request in requests if isinstance(request, Generation)]
    if len(generations) != len(source.probes):
        raise ValueError(
            f"benchmark {source.benchmark.name} asks for {len(generations)} texts with {len(source.probes)} "
            "probes; attacks need one text a probe"
        )
    return [Asked(probe, request) for probe, request in zip(source.probes, generations, strict=True)]


def _unanswered(source: Source, probes: Sequence[Probe]) -> list[Record]:
    """Records of empty answers: all that they say is about the probes."""
    answers = source.evaluator.anchor_answers(probes, "")
    return source.evaluator.records(probes, answers, source.folder)


def _facts_of_rows(source: Source, rows: Sequence[Probe]) -> dict[Key, Any]:
    """Of rows that the benchmark takes for probes; of others each is a fact of its own."""
    try:
        records = _unanswered(source, rows) if rows else []
    except (ValueError, KeyError):
        return {_key(row): ("row", number) for number, row in enumerate(rows)}
    return {_key(row): source.benchmark.fact(record) for row, record in zip(rows, records, strict=True)}


def _key(probe: Probe) -> Key:
    """Indices of training rows may be those of probes."""
    return probe.section, probe.index, "\n".join(message["content"] for message in probe.messages)


def _check_facts(facts: set[Hashable]) -> None:
    if len(facts) < FEWEST_FACTS:
        raise ValueError(
            f"facts that the forget probes ask for: {len(facts)}; at least {FEWEST_FACTS} are needed, "
            "and 40 are better: facts are the unit of all intervals and tests"
        )
