"""The table of what runs where names tests that exist, and says of each combination what is known."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATES = ("tested: ", "refused: ", "untried")


def test_each_row_is_tested_refused_or_untried() -> None:
    page = (ROOT / "docs" / "running.md").read_text()
    section = page.split("## What runs where\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15
    for cells in rows:
        assert cells[-1].strip().startswith(STATES), cells
    named = set(re.findall(r"`(test_\w+\.py)`", section))
    assert len(named) >= 3
    assert [name for name in named if not (ROOT / "tests" / "e2e" / name).is_file()] == []
