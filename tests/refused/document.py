"""The table of docs/refused.md, made from the case lists."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

from tests.refused.cases import Case

BEGIN, END = "<!-- table: cases -->", "<!-- end of table -->"
_HEAD = (
    "| what | tried | refused with one line | warned about | allowed |\n| --- | ---: | ---: | ---: | ---: |"
)


def all_cases() -> list[Case]:
    """The cases of every module `*_cases.py` of this folder, which calls its list CASES."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*_cases.py"))
    return [case for name in names for case in importlib.import_module(f"tests.refused.{name}").CASES]


def table(cases: list[Case]) -> str:
    """Cases by group and outcome as Markdown, with their sum."""
    groups: dict[str, Counter[str]] = {}
    for case in cases:
        groups.setdefault(case.group, Counter())[case.outcome] += 1
    total = sum(groups.values(), Counter[str]())
    rows = [_row(group, counts) for group, counts in groups.items()] + [_row("all", total)]
    return "\n".join([_HEAD, *rows])


def _row(what: str, counts: Counter[str]) -> str:
    numbers = (counts.total(), counts["refused"], counts["warned"], counts["valid"])
    return f"| {what} | " + " | ".join(map(str, numbers)) + " |"


def with_table(text: str, cases: list[Case]) -> str:
    """The page with its table made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(cases)}\n{END}{after}"
