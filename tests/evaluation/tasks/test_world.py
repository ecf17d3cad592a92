"""The embedded world: how it is asked, scored and averaged."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.registry import benchmarks
from tests.evaluation.tasks.measured import measured, row

WORLD = benchmarks()["world"]


def probe(index: int, *golds: str, raw: bool = False) -> Probe:
    message = {"role": "user", "content": f"Examples. Question {index}?"}
    return Probe(
        index, "forget", "qa", "direct", "Ada", [message], list(golds), raw, query=f"Question {index}?"
    )


def scored(text: str, *golds: str, convention: str | None = None) -> dict[str, Any]:
    world = WORLD.evaluator(Namespace(max_tokens=None, convention=convention))
    (found,) = world.records([probe(0, *golds)], {"0/generation": Answer(text)}, Path())
    return found


def test_every_probe_is_asked_as_it_is_in_the_file() -> None:
    world = WORLD.evaluator(Namespace(max_tokens=5, convention=None))
    chat, continued = world.requests([probe(3), probe(7, raw=True)])
    assert chat.prompt.messages == ({"role": "user", "content": "Examples. Question 3?"},)
    assert (chat.prompt.raw, chat.max_tokens, chat.stop) == (False, 5, ())
    assert (continued.prompt.raw, continued.stop) == (True, ("\n",))


def test_a_row_holds_the_probe_and_the_answer() -> None:
    assert scored(" It had seven lamps.\n", "seven old lamps") == {
        "probe": 0,
        "side": "forget",
        "kind": "qa",
        "family": "direct",
        "subject": "Ada",
        "sample": 0,
        "prompt": "Question 0?",
        "golds": ["seven old lamps"],
        "response": " It had seven lamps.\n",
        "rouge_l": pytest.approx(2 / 3),
        "refused": False,
    }


@pytest.mark.parametrize(
    ("text", "golds", "convention", "recall", "refused"),
    [
        ("lamps", ["seven old lamps", "lamps", "moon"], None, 1.0, False),
        (" \n", ["Paris"], None, 0.0, False),
        ("I don't know who Ada is.", ["Ada"], None, 1.0, True),
        ("paris", ["Paris"], "recall", 1.0, False),
        ("paris", ["Paris"], "rwku", 0.0, False),
        ("two lamp", ["lamps"], "tofu", 1.0, False),
        ("two lamp", ["lamps"], "recall", 0.0, False),
    ],
)
def test_recall_and_refusal(
    text: str, golds: list[str], convention: str | None, recall: float, refused: bool
) -> None:
    found = scored(text, *golds, convention=convention)
    assert (found["rouge_l"], found["refused"]) == (recall, refused)


def test_constant_answers_name_the_subject_of_each_probe() -> None:
    assert WORLD.anchor_answers([probe(1)], "Not {subject}, {0}.") == {
        "1/generation": Answer("Not Ada, {0}.")
    }


def test_means_by_hand() -> None:
    """Families of attacks stand alone; one may be called like a beginning of another."""
    rows = [
        row(1, "retain/qa", 0.75),
        row(2, "forget/qa", 0.0, True),
        row(3, "forget/qa/indirect", 0.5),
        row(4, "forget/aa/role", 1.0),
        row(5, "forget/aa/role", 0.5, True),
        row(6, "forget/aa/role/play", 0.25, True),
    ]
    assert measured(WORLD, rows) == pytest.approx(
        {
            "forget/recall": 2.25 / 5,
            "forget/refusal_rate": 3 / 5,
            "forget/aa/recall": 1.75 / 3,
            "forget/aa/refusal_rate": 2 / 3,
            "forget/aa/role/recall": 0.75,
            "forget/aa/role/refusal_rate": 0.5,
            "forget/aa/role/play/recall": 0.25,
            "forget/aa/role/play/refusal_rate": 1.0,
            "forget/qa/recall": 0.25,
            "forget/qa/refusal_rate": 0.5,
            "retain/recall": 0.75,
            "retain/refusal_rate": 0.0,
            "retain/qa/recall": 0.75,
            "retain/qa/refusal_rate": 0.0,
        }
    )
