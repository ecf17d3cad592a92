"""The embedded world: how it is asked, scored and averaged."""

from argparse import Namespace
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine.requests import Answer, Generation, PromptText
from recipe.rerule.evaluation.registry import benchmarks
from tests.evaluation.conftest import make_probe
from tests.evaluation.tasks.measured import measured, row

WORLD = benchmarks()["world"]


def test_every_probe_is_asked_as_it_is_in_the_file() -> None:
    world = WORLD.evaluator(Namespace(max_tokens=5, convention=None))
    chat, raw = (make_probe(n, "forget", "qa", ["x"], raw=n > 0) for n in (0, 1))
    assert world.requests([chat, raw]) == [
        Generation("0/generation", PromptText(({"role": "user", "content": "Question 0?"},)), 5),
        Generation(
            "1/generation", PromptText(({"role": "user", "content": "Question 1?"},), True), 5, ("\n",)
        ),
    ]


@pytest.mark.parametrize(
    ("text", "golds", "convention", "recall", "refused"),
    [
        ("lamps", ["seven old lamps", "lamps", "moon"], None, 1.0, False),
        (" It had seven lamps.\n", ["seven old lamps"], None, 2 / 3, False),
        (" \n", ["Paris"], None, 0.0, False),
        ("I don't know who Ada is.", ["Ada"], None, 1.0, True),
        ("paris", ["Paris"], "rwku", 0.0, False),
        ("two lamp", ["lamps"], "tofu", 1.0, False),
        ("two lamp", ["lamps"], "recall", 0.0, False),
    ],
)
def test_recall_and_refusal(text, golds, convention, recall, refused):
    world = WORLD.evaluator(Namespace(max_tokens=None, convention=convention))
    (found,) = world.records([make_probe(0, "forget", "qa", golds)], {"0/generation": Answer(text)}, Path())
    assert (found["rouge_l"], found["refused"]) == (pytest.approx(recall), refused)
    assert found["response"] == text


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
    means = {
        "forget": (2.25 / 5, 3 / 5),
        "forget/aa": (1.75 / 3, 2 / 3),
        "forget/aa/role": (0.75, 0.5),
        "forget/aa/role/play": (0.25, 1.0),
        "forget/qa": (0.25, 0.5),
        "retain": (0.75, 0.0),
        "retain/qa": (0.75, 0.0),
    }
    expected = {f"{place}/recall": recall for place, (recall, _) in means.items()}
    expected |= {f"{place}/refusal_rate": rate for place, (_, rate) in means.items()}
    assert measured(WORLD, rows) == pytest.approx(expected)
