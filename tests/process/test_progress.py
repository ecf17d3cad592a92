"""Work that takes longer than a few seconds shows that it goes on."""

from __future__ import annotations

import re
import time

import pytest

from recipe.rerule.process import progress
from recipe.rerule.process.progress import Progress


def test_a_line_every_few_seconds_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.05)
    with Progress("generate", 40, "requests") as work:
        for _ in range(10):
            work.advance()
        work.doing("1 failed")
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 4
    told = r"generate: 10 of 40 requests, [0-9]+ s, about [0-9]+ s left; 1 failed"
    assert all(re.fullmatch(told, line) for line in lines)


def test_the_time_left_is_that_of_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with Progress("generate", 40, "requests") as work:
        for _ in range(10):
            work.advance()
        work._started = time.monotonic() - 20
        assert work.line() == "generate: 10 of 40 requests, 20 s, about 60 s left"


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("report") as work:
        work.doing("a figure")
    assert capsys.readouterr().err == ""


def test_without_a_total_the_time_is_said() -> None:
    with Progress("report") as work:
        work.doing("figure replay")
        assert work.line() == "report: 0 s; figure replay"
