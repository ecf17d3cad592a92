"""What a held-out score costs: points and figures worked out by hand."""

from __future__ import annotations

import sys

import pytest

from benchmarks import peer_until
from benchmarks.peer_until import SCORE, Point, figures, our_points, trl_points
from benchmarks.workload import Workload

LOAD = Workload("model", "train.parquet", prompts=4, rollouts=2)


def step(seconds: float, length: float, **more: float) -> dict[str, float]:
    return {"timing_s/step": seconds, "response_length/mean": length, **more}


def test_our_seconds_are_of_training_and_our_tokens_of_sampled_responses() -> None:
    """Steps of 2, 3 - 1.5 and 4 - 0.5 - 0.25 s; 5 x 4 x 2, 6 x 4 x 2 and 7 x 4 x 2 tokens."""
    steps = [
        step(2.0, 5.0),
        step(3.0, 6.0, **{"timing_s/testing": 1.5, SCORE: 0.25}),
        step(4.0, 7.0, **{"timing_s/testing": 0.5, "timing_s/save_checkpoint": 0.25, SCORE: 0.5}),
    ]
    assert our_points(steps, LOAD) == [Point(2, 0.25, 3.5, 88.0), Point(3, 0.5, 6.75, 144.0)]


def test_points_of_the_peer_begin_with_its_first_step() -> None:
    result = {
        "before": 3.0,
        "seconds": [1.0, 0.5, 2.0],
        "tokens": [5.0, 6.0, 1.0, 2.0],
        "scores": {"2": 0.5, "4": 0.75},
    }
    assert trl_points(result, LOAD) == [Point(2, 0.5, 4.0, 88.0), Point(4, 0.75, 6.5, 112.0)]


def test_the_aim_is_the_score_of_rule_at_its_end() -> None:
    rule = [Point(2, 0.9, 20.0, 50.0), Point(4, 0.8, 24.0, 100.0)]
    rerule = [Point(2, 0.79, 3.0, 30.0), Point(4, 0.8, 8.0, 60.0), Point(6, 0.7, 11.0, 90.0)]
    told = figures({"rule": rule, "rerule": rerule, "trl": [Point(2, 0.5, 1.0, 10.0)]})
    assert told["aim"] == 0.8
    assert told["rerule"] == {
        "reached": {"steps": 4, "score": 0.8, "seconds": 5.0, "generated": 60.0},
        "last": {"steps": 6, "score": 0.7, "seconds": 8.0, "generated": 90.0},
        "seconds_ratio": 1.25,
        "generated_ratio": 0.6,
    }
    assert told["trl"]["reached"] is None
    assert set(told["trl"]) == {"reached", "last"}


def test_steps_that_end_without_a_validation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["peer_until", "--steps", "5", "--every", "2"])
    with pytest.raises(SystemExit, match=r"^error: --steps 5 must be a multiple of --every 2$"):
        peer_until.main()
