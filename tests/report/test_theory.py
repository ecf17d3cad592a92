"""The terms of the paper's bound, by hand."""

from __future__ import annotations

import math

import pytest

from recipe.rerule.reporting.theory import theory_of
from recipe.rerule.runs.history import Prompt, Visit
from tests.report.made import run_of

PROMPTS = {
    0: Prompt(0, "forget", "qa", "Ada", (Visit(1, 0.25, 100), Visit(2, 0.25, 40), Visit(3, 0.75, 20))),
    1: Prompt(1, "retain", "qa", "Ben", (Visit(1, 0.5, 300), Visit(3, 0.5, 60))),
}
METRICS = [
    {"replay/threshold": 0.5},
    {"replay/threshold": 0.6, "replay/drawn_tokens": 100.0, "replay/effective_sample_size": 1.0},
    {"replay/threshold": 0.6, "replay/drawn_tokens": 300.0, "replay/effective_sample_size": 0.8},
]
VALIDATIONS = {
    step: {"val-health/forget/refused": forget, "val-health/retain/refused": retain}
    for step, (forget, retain) in {0: (0.5, 0.25), 3: (0.875, 0.125)}.items()
}


def test_the_terms_of_the_bound_by_hand() -> None:
    """Hard are 100 tokens of step 1 (.5 is not below .5), 40 of step 2, 60 of step 3; eta is 340 / 400."""
    cells = theory_of(run_of("rerule", METRICS, prompts=PROMPTS, validations=VALIDATIONS))
    assert cells == {
        "hard tokens on-policy": 200,
        "hard tokens replayed": 400,
        "eta": pytest.approx(0.85),
        "effective": pytest.approx(540),
        "ratio of bounds": pytest.approx(math.sqrt(200 / 540)),
        "risk first": 0.75,  # half of the forget prompts answered, a quarter of the retain prompts refused
        "risk last": 0.25,
    }
