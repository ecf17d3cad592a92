"""Which probes are asked, how responses are scored, and that every benchmark can be attacked."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.attacks import registry
from recipe.rerule.evaluation.attacks.attack import Asked, Material
from recipe.rerule.evaluation.attacks.material import BUDGETS, Budget, material_of
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.evaluation.probes import Probe, Reference
from recipe.rerule.evaluation.registry import benchmarks
from tests.evaluation.attacks.made import CITIES, asked, probe, scores
from tests.evaluation.conftest import make_probe


def subject(one: Asked) -> str:
    return one.probe.subject


def test_a_quick_budget_takes_each_mode_of_each_fact_first() -> None:
    of_0 = [probe(0), probe(0, family="second"), probe(0, "fb"), probe(0, "aa"), probe(0, "aa", family="b")]
    given = [asked(one) for one in (*of_0, probe(1), probe(2, "aa"))]
    assert Budget("quick", 3, 2, 1).forget(given, subject) == [given[place] for place in (0, 2, 3, 5, 6)]
    assert Budget("quick", 4, 2, 1).forget(given[:5], subject) == given[:4]
    chosen = Budget("quick", 3, 2, 1).retain(given, subject)
    assert Counter(map(subject, chosen)) == {"person 0": 1, "person 1": 1}
    assert BUDGETS["full"].forget(given, subject) == BUDGETS["full"].retain(given, subject) == given


def made_of(
    benchmark: str, probes: list[Probe], train: list[Probe], folder: Path, budget: str = "quick"
) -> Material:
    names = {option.name for one in benchmarks().values() for option in one.options}
    chosen = benchmarks()[benchmark].evaluator(argparse.Namespace(**dict.fromkeys(names)))
    return material_of(chosen, probes, train, [Model("m", folder)], BUDGETS[budget])


def test_material_of_a_benchmark(tokenizer_folder: Path) -> None:
    probes = [
        make_probe(0, "forget", "qa", ["Paris"]),
        make_probe(1, "forget", "fb", ["Paris"]),
        make_probe(2, "forget", "aa", ["Paris"], family="multiple_choice"),
        make_probe(103, "forget", "qa", ["1970"]),
        make_probe(204, "retain", "qa", ["Rome"], subject="Ben Orr"),
        make_probe(305, "retain_unseen", "qa", ["Oslo"], subject="Cleo Marsh"),
    ]
    row = make_probe(110, "forget", "qa", ["1970"], messages=[{"role": "user", "content": "Year?"}])
    made = made_of("world", probes, [row], tokenizer_folder, "full")
    assert [one.probe.index for one in made.asked] == [0, 1, 103]
    assert [one.probe.index for one in made.retained] == [204]
    assert made.asked[0].request.max_tokens == 32
    assert made.fact(probes[0]) == made.fact(probes[1]) != made.fact(probes[3])
    assert made.fact(row) == made.fact(probes[3]) != made.fact(probes[4])
    scored = made.score([(probes[0], "In Paris"), (probes[4], "I don't know."), (probes[0], "no")])
    assert [(one.recall, one.refused) for one in scored] == [(1, False), (0, True), (0, False)]
    (other,) = made.score([(make_probe(0, "forget", "qa", ["two words"]), "two of them")])
    assert other.recall == 0.5


def test_rwku_needs_its_target_and_knows_no_other_rows(tokenizer_folder: Path) -> None:
    """Retain probes alone are scored; rows that it cannot read are facts of their own."""
    probes = [
        make_probe(0, "forget", "qa", ["Paris"]),
        make_probe(1, "forget", "fb", ["1970"]),
        make_probe(2, "retain", "qa", ["Rome"], subject="Ben Orr"),
    ]
    row = make_probe(7, "forget", "completion", ["Paris"], subject="Somebody else")
    made = made_of("rwku", probes, [row], tokenizer_folder)
    assert [one.recall for one in made.score([(probes[2], "Rome"), (probes[2], "Oslo")])] == [1, 0]
    assert made.fact(row) not in {made.fact(one) for one in probes}


EIGHT = [*CITIES, "Kyiv", "Doha"]
"""As many as a choice is among."""
PARTLY = re.compile("4|leak_.*").fullmatch
OF_BENCHMARKS = {
    "world": {},
    "custom": {},
    "rwku": {},
    "muse_books": {"raw": True},
    "tofu": {"family": "forget", "reference": Reference(("Bern", "Oslo"), "It is there.")},
}


@pytest.mark.parametrize("benchmark", OF_BENCHMARKS)
def test_every_benchmark_can_be_attacked(benchmark: str, tokenizer_folder: Path) -> None:
    """Each request attack asks its probes under ids of their own, and reads answers that hold the gold."""
    changes: Any = OF_BENCHMARKS[benchmark]
    forget = [
        make_probe(100 * n, "forget", "qa", [f"it wrote {city}"], **changes) for n, city in enumerate(EIGHT)
    ]
    retain = [make_probe(900, "retain", "qa", ["Rome"], **changes, subject="Ben Orr")]
    if benchmark == "tofu":
        retain = [replace(one, family="retain") for one in retain]
    train = [make_probe(n, "retain", "qa", ["Rom"], **changes, subject="Ben Orr") for n in (2000, 2100)]
    made = made_of(benchmark, [*forget, *retain], train, tokenizer_folder)
    assert len(made.asked) == len(forget)
    text = f"it wrote {' '.join(EIGHT)}"
    answer = Answer(text, (-1.0,) * 3, (1, 1, 1), (text,) * 16)
    for attack in registry.attacks().values():
        if attack.ask:
            asking = attack.ask(made, attack.options("quick"))
            assert len({request.id for request in asking.requests}) == len(asking.requests) > 0
            found = scores(asking.read({request.id: answer for request in asking.requests}))
            # Behind four tokens of a gold the rest begins within a word; an F1 of 1 needs the gold alone.
            whole = [found[name, side] for name, side in found if side == "forget" and not PARTLY(name)]
            assert all(0 < value <= 1 for values in whole for value in values.values()), attack.name
