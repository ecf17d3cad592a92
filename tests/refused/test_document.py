"""docs/refused.md counts the cases that the tests try.

RERULE_WRITE_TABLES=1 makes the table anew.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.refused.cases import Case
from tests.refused.document import BEGIN, END, all_cases, table, with_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "refused.md"


def test_the_page_has_the_table_of_todays_cases() -> None:
    text = PAGE.read_text("utf-8")
    made = with_table(text, all_cases())
    if os.environ.get("RERULE_WRITE_TABLES"):
        PAGE.write_text(made, "utf-8")
    else:
        assert made == text, "RERULE_WRITE_TABLES=1 with this test makes the table anew"


def test_no_case_is_counted_twice() -> None:
    named = [(case.group, case.name) for case in all_cases()]
    assert len(named) == len(set(named))


def test_counts_by_hand() -> None:
    cases = [Case("a", "1", "refused"), Case("a", "2", "warned"), Case("b", "1", "refused")]
    assert table(cases).splitlines()[2:] == [
        "| a | 2 | 1 | 1 | 0 |",
        "| b | 1 | 1 | 0 | 0 |",
        "| all | 3 | 2 | 1 | 0 |",
    ]
    assert with_table(f"x\n{BEGIN}\nold\n{END}\ny\n", cases).startswith(f"x\n{BEGIN}\n| what |")
