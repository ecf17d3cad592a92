"""The table of what runs where names tests that exist, and settings that are refused."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATES = ("tested", "refused", "untried")


def rows() -> list[list[str]]:
    """The cells of the table's rows."""
    section = (ROOT / "docs" / "running.md").read_text().split("## What runs where\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| V")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_row_is_tested_refused_or_untried() -> None:
    assert len(rows()) > 15
    for cells in rows():
        assert len(cells) == 6, cells
        assert cells[-1].startswith(STATES), cells


def test_the_named_tests_exist_and_are_marked_as_it_says() -> None:
    named = [
        found for cells in rows() for found in re.findall(r"`(tests/\S+)::(\w+)`( \(full\))?", cells[-1])
    ]
    assert named
    for file, name, full in named:
        found = functions(ROOT / file)
        assert name in found, (file, name)
        assert found[name] == bool(full), (file, name)


def functions(file: Path) -> dict[str, bool]:
    """The tests of a file by name, with whether they are marked full."""
    tree = ast.parse(file.read_text())
    return {
        node.name: any("mark.full" in ast.unparse(mark) for mark in node.decorator_list)
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
