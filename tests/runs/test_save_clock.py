"""When a checkpoint is due, by a clock that the test sets."""

from __future__ import annotations

from recipe.rerule.runs.save_clock import SaveClock


def test_due_after_so_many_minutes_and_again_after_each_checkpoint() -> None:
    seconds = [100.0]
    clock = SaveClock(1.5, now=lambda: seconds[0])
    assert not clock.is_due()
    seconds[0] = 189.9
    assert not clock.is_due()
    seconds[0] = 190.0
    assert clock.is_due()
    assert clock.is_due()
    seconds[0] = 200.0
    clock.restart()
    assert not clock.is_due()
    seconds[0] = 289.0
    assert not clock.is_due()
    seconds[0] = 290.0
    assert clock.is_due()


def test_without_minutes_none_is_due() -> None:
    seconds = [0.0]
    clock = SaveClock(None, now=lambda: seconds[0])
    seconds[0] = 1e9
    assert not clock.is_due()
