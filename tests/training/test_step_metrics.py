"""Metrics of a step, from what its extra updates reported."""

from __future__ import annotations

from typing import Any

import pytest

from recipe.rerule.replay.log import part_seconds, update_metrics
from recipe.rerule.training.step_metrics import progress_line, start_line

UPDATES: list[tuple[list[dict[str, float]], dict[str, float]]] = [
    ([], {"replay/updates": 0.0}),
    # Averaged, and maxima stay maxima.
    (
        [{"replay/pg_loss": 1.0, "replay/ratio_max": 2.0}, {"replay/pg_loss": 2.0, "replay/ratio_max": 7.0}],
        {"replay/updates": 2.0, "replay/pg_loss": 1.5, "replay/ratio_max": 7.0},
    ),
    # What one update does not report is that of the other.
    (
        [{"replay/pg_loss": 1.0, "replay/seconds/log_prob": 1.5}, {"replay/pg_loss": 2.0}],
        {"replay/updates": 2.0, "replay/pg_loss": 1.5, "replay/seconds/log_prob": 1.5},
    ),
]


@pytest.mark.parametrize(("updates", "expected"), UPDATES)
def test_updates_are_counted_and_averaged(
    updates: list[dict[str, float]], expected: dict[str, float]
) -> None:
    assert update_metrics(updates) == update_metrics(updates[::-1]) == expected


def test_seconds_add_up_over_the_updates_and_buffer_work_is_told_apart() -> None:
    driver = {
        "replay/seconds/offer": 1.0,
        "replay/seconds/draw": 2.0,
        "replay/seconds/collate": 4.0,
        "replay/seconds/record": 8.0,
        "replay/seconds/update": 100.0,
    }
    worker = {"replay/seconds/log_prob": 20.0, "replay/seconds/weigh": 16.0, "replay/seconds/train": 30.0}
    seconds = part_seconds(driver, [{**worker, "replay/pg_loss": 3.0}, worker])
    assert seconds == {
        **driver,
        "replay/seconds/log_prob": 40.0,
        "replay/seconds/weigh": 32.0,
        "replay/seconds/train": 60.0,
        "replay/seconds": 100.0,
        "replay/bookkeeping_seconds": 1.0 + 2.0 + 4.0 + 8.0 + 32.0,
    }
    without = {"replay/seconds/offer": 0.5, "replay/seconds": 0.0, "replay/bookkeeping_seconds": 0.5}
    assert part_seconds({"replay/seconds/offer": 0.5}, []) == without


@pytest.mark.parametrize(
    ("metrics", "end"),
    [
        ({}, "hard groups 25% (below 0.94)"),
        ({"replay/size": 7.0, "replay/updates": 0.0}, "hard groups 25% (below 0.94)  buffer 7"),
        ({"replay/size": 7.0, "replay/updates": 1.0, "replay/drawn_groups": 4.0}, "replayed 4 groups"),
        ({"replay/size": 7.0, "replay/updates": 1.0, "replay/drawn_groups": 0.0}, "own groups"),
    ],
)
def test_the_progress_line_says_which_extra_update_was_done(metrics: dict[str, float], end: str) -> None:
    shares = {"replay/hard_share": 0.25, "replay/threshold": 0.9375}
    line = progress_line(3, 9, {"reward/forget/mean": 0.125, **shares, **metrics})
    assert line.startswith("step 3/9  forget: reward 0.12  hard groups 25% (below 0.94)")
    assert line.endswith(end)


def test_the_line_has_both_sides_and_of_faults_only_those_there_are() -> None:
    forget = {"reward": 0.625, "refused": 0.71, "leaked": 0.04, "mixed": 0.88, "tokens": 11.4, "named": 0.02}
    retain = {"reward": 0.55, "refused": 0.12, "right": 0.0, "mixed": 0.75, "tokens": 8.6, "empty": 0.05}
    metrics: dict[str, Any] = {f"{name}/forget/mean": value for name, value in forget.items()}
    metrics |= {f"{name}/retain/mean": value for name, value in retain.items()}
    metrics |= {"cut/forget/mean": 0.0, "empty/forget/mean": 0.0, "actor/kl_loss": [0.01, 0.03]}
    assert progress_line(3, 30, metrics) == (
        "step 3/30  forget: reward 0.62 refused 71% leaked 4% mixed 88% named 2% 11 tokens  "
        "retain: reward 0.55 refused 12% right 0% mixed 75% empty 5% 9 tokens  KL 0.02"
    )


def test_the_first_line_says_where_the_start_is() -> None:
    first = {"refused/forget/mean": 0.48, "right/retain/mean": 0.61, "mixed/mean": 0.875}
    assert start_line({}, first) == (
        "start: forget refused 48%, retain right 61% (in step 1), 88% of groups mixed"
    )
    validated = {"val-health/forget/refused": 0.5, "val-health/retain/right": 0.25}
    assert start_line(validated, first) == (
        "start: forget refused 50%, retain right 25% (by validation), 88% of groups mixed"
    )
    assert start_line({}, {"mixed/mean": 1.0, "refused/forget/mean": 0.5}) is None
