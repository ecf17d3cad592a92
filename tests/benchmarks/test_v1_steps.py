"""The figures of the two trainers, worked out by hand."""

from __future__ import annotations

from benchmarks.v1_steps import figures


def test_the_ratio_is_of_steps_a_minute() -> None:
    runs = {
        "v0": {"ours_seconds": 1.5, "ours_parts": {"gen": 0.5}, "ours_tokens": 4.0},
        "v1": {"ours_seconds": 2.0, "ours_parts": {"gen": 1.0}, "ours_tokens": 5.0},
    }
    assert figures(runs) == {
        "ratio": 0.75,
        "v0_steps_a_minute": 40.0,
        "v1_steps_a_minute": 30.0,
        "v0_parts": {"gen": 0.5},
        "v1_parts": {"gen": 1.0},
        "v0_tokens": 4.0,
        "v1_tokens": 5.0,
    }
