"""docs/running.md shows what the end-to-end test of each family found, as docs/families.json keeps it.

RERULE_WRITE_TABLES=1 makes the table anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.families.made import FAMILIES
from tests.families.results import BEGIN, END, PAGE, put, read, table, with_table


def test_the_page_has_the_table_of_what_was_found() -> None:
    text = PAGE.read_text("utf-8")
    made = with_table(text, read())
    if os.environ.get("RERULE_WRITE_TABLES"):
        PAGE.write_text(made, "utf-8")
    else:
        assert made == text, "RERULE_WRITE_TABLES=1 with this test makes the table anew"


def test_only_families_that_were_run_work(tmp_path: Path) -> None:
    path = tmp_path / "families.json"
    put(path, "Qwen3", {"probs_diff": 2.3e-7, "seconds": {}})
    put(path, "Gemma-2", {"probs_diff": 1e-6, "seconds": {}})
    assert list(read(path)) == ["Gemma-2", "Qwen3"]
    lines = {line.split(" | ")[0].strip("| "): line for line in table(read(path)).splitlines()[2:]}
    assert list(lines) == list(FAMILIES)
    assert lines["Qwen3"].endswith("| works | 2e-07 |")
    assert "`enable_thinking=false`" in lines["Qwen3"]
    assert lines["OLMo-2"].endswith("| not run |  |")
    put(path, "Qwen3", None)
    assert "works" not in table(read(path)).splitlines()[7]
    assert with_table(f"x\n{BEGIN}\nold\n{END}\ny\n", {}).startswith(f"x\n{BEGIN}\n| family |")
