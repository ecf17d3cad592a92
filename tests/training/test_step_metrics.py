"""Metrics of a step, from what its extra updates reported, and its line for a person."""

from __future__ import annotations

from typing import Any

import pytest

from recipe.rerule.replay.log import part_seconds, update_metrics
from recipe.rerule.training.step_metrics import progress_line, start_line


def test_updates_are_counted_and_averaged() -> None:
    """Maxima stay maxima, and what one update does not report is that of the other."""
    one = {"pg_loss": 1.0, "ratio_max": 2.0, "weigh": 1.5}
    other = {"pg_loss": 2.0, "ratio_max": 7.0}
    expected = {"replay/updates": 2.0, "pg_loss": 1.5, "ratio_max": 7.0, "weigh": 1.5}
    assert update_metrics([one, other]) == update_metrics([other, one]) == expected
    assert update_metrics([]) == {"replay/updates": 0.0}


def test_seconds_add_up_over_the_updates_and_buffer_work_is_told_apart() -> None:
    of_driver = {"offer": 1.0, "draw": 2.0, "collate": 4.0, "record": 8.0, "update": 100.0}
    driver = {f"replay/seconds/{name}": value for name, value in of_driver.items()}
    worker = {"replay/seconds/log_prob": 20.0, "replay/seconds/weigh": 16.0, "replay/seconds/train": 30.0}
    assert part_seconds(driver, [{**worker, "replay/pg_loss": 3.0}, worker]) == {
        **driver,
        "replay/seconds/log_prob": 40.0,
        "replay/seconds/weigh": 32.0,
        "replay/seconds/train": 60.0,
        "replay/seconds": 100.0,
        "replay/bookkeeping_seconds": 1.0 + 2.0 + 4.0 + 8.0 + 32.0,
    }


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
    forget |= {"cut": 0.0, "empty": 0.0}
    metrics: dict[str, Any] = {"actor/kl_loss": [0.01, 0.03]}
    for side, values in {"forget": forget, "retain": retain}.items():
        metrics |= {f"{name}/{side}/mean": value for name, value in values.items()}
    assert progress_line(3, 30, metrics) == (
        "step 3/30  forget: reward 0.62 refused 71% leaked 4% mixed 88% named 2% 11 tokens  "
        "retain: reward 0.55 refused 12% right 0% mixed 75% empty 5% 9 tokens  KL 0.02"
    )


@pytest.mark.parametrize(
    ("validated", "line"),
    [
        ({}, "start: forget refused 48%, retain right 61% (in step 1), 88% of groups mixed"),
        (
            {"val-health/forget/refused": 0.5, "val-health/retain/right": 0.25},
            "start: forget refused 50%, retain right 25% (by validation), 88% of groups mixed",
        ),
    ],
)
def test_the_first_line_says_where_the_start_is(validated: dict[str, float], line: str) -> None:
    first = {"refused/forget/mean": 0.48, "right/retain/mean": 0.61, "mixed/mean": 0.875}
    assert start_line(validated, first) == line
    del first["right/retain/mean"]
    assert start_line({}, first) is None
