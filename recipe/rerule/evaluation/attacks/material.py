"""The probes of a benchmark as attacks need them: which are asked, how, how they are scored, and their facts.

The quick budget asks some probes of each fact, the full one all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd

from recipe.rerule.evaluation.attacks.attack import FORGET, RETAIN, Asked, Material, Scored
from recipe.rerule.evaluation.engine.encoding import load_tokenizer
from recipe.rerule.evaluation.engine.models import Model, context_length
from recipe.rerule.evaluation.engine.requests import Answer, Generation
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.registry import Benchmark, Row
from recipe.rerule.training.prompts import bind_template
from reward.thoughts import split_thought

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

    probes_per_fact: int | None
    retained: int | None
    seeds: int

    def forget(self, asked: Sequence[Asked], fact: FactOf) -> list[Asked]:
        """The forget probes that are asked: of each fact the first of every mode, then the second ones."""
        if self.probes_per_fact is None:
            return list(asked)
        order = _turns(asked, lambda one: (fact(one), one.probe.mode)).sort_values(kind="stable").index
        taken = _turns([asked[place] for place in order], fact).set_axis(order)
        return [asked[place] for place in sorted(taken.index[taken < self.probes_per_fact])]

    def retain(self, asked: Sequence[Asked], fact: FactOf) -> list[Asked]:
        """The retain probes that are asked: one of every fact, then second ones."""
        order = _turns(asked, fact).sort_values(kind="stable").index
        return [asked[place] for place in sorted(order[: self.retained])]


BUDGETS = {"quick": Budget(3, 60, 1), "full": Budget(None, None, 3)}


def _turns(asked: Sequence[Asked], group: FactOf) -> pd.Series[int]:
    """How many probes of its group are before each probe, by place."""
    return pd.DataFrame({"group": [f"{group(one)}" for one in asked]}).groupby("group").cumcount()


def material_of(
    benchmark: Benchmark,
    probes: Sequence[Probe],
    train: Sequence[Probe],
    models: Sequence[Model],
    budget: Budget,
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
    if any(one.prompt.suffix and not split_thought(f"{one.prompt.suffix}x")[1] for one in requests):
        raise ValueError(
            f"benchmark {benchmark.name} begins with a thought of the model, and attacks are on its answer: "
            "give --prompts zero_think or less_think"
        )
    folder = models[0].path

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
    counted = [one for one, row in pairs if row["side"] == FORGET and benchmark.counts(row)]
    forget = budget.forget(counted, fact)
    always = next((probe for probe in probes if probe.section == FORGET), None)
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
        score=partial(_scored, benchmark, folder, always),
        tokenizer=bind_template(load_tokenizer(models[0]), models[0].template),
        context=min(filter(None, map(context_length, models)), default=None),
        seeds=budget.seeds,
        texts=benchmark.texts.sets,
    )


def _scored(
    benchmark: Benchmark, folder: Path, always: Probe | None, pairs: Sequence[tuple[Probe, str]]
) -> list[Scored]:
    """What the benchmark says of (probe, response) pairs.

    Args:
        folder: that the tokenizer is taken from.
        always: a probe of the forget side: some benchmarks need one to know whom the others are about.

    Raises ValueError where the benchmark's rows have no score.
    """
    # A probe may occur several times, and its index only once.
    given = [*pairs, *([(always, "")] if always else [])]
    probes = [replace(probe, index=number) for number, (probe, _) in enumerate(given)]
    answers = {
        benchmark.request_id(probe): Answer(text) for probe, (_, text) in zip(probes, given, strict=True)
    }
    records = benchmark.records(probes, answers, folder)[: len(pairs)]
    name = benchmark.recovered
    for recall in (record.get(name) for record in records):
        if isinstance(recall, bool) or not isinstance(recall, int | float) or not 0 <= recall <= 1:
            raise ValueError(
                f"the records of benchmark {benchmark.name} have no {name} between 0 and 1, by which attacks "
                "are scored; let its `recovered` name another number"
            )
    return [Scored(float(record[name]), bool(record.get("refused", False))) for record in records]


def _key(probe: Probe) -> tuple[str, int, str]:
    """Indices of training rows may be those of probes."""
    return probe.section, probe.index, "\n".join(message["content"] for message in probe.messages)
