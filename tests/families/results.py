"""What the end-to-end test of each family found, as JSON, and the table of docs/running.md made from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.families.made import FAMILIES, Family

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "families.json"
PAGE = ROOT / "docs" / "running.md"
BEGIN, END = "<!-- table: families -->", "<!-- end of table -->"
_HEAD = (
    "| family | template arguments | system message | turns | result | greatest mean difference |\n"
    "|---|---|---|---|---|---:|"
)

Results = dict[str, dict[str, Any]]
"""{family: what the test measured}"""


def read(path: Path = RESULTS) -> Results:
    """What is kept; {} where there is no file."""
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def put(path: Path, family: str, found: Mapping[str, Any] | None) -> None:
    """Keep what a test found; None takes out what an earlier one found. Families stay in their order."""
    results = {name: kept for name, kept in read(path).items() if name != family}
    if found is not None:
        results[family] = dict(found)
    ordered = {name: results[name] for name in FAMILIES if name in results}
    path.write_text(json.dumps(ordered, indent=2) + "\n", "utf-8")


def table(results: Results) -> str:
    """A line for each family, also of one that has not been run."""
    return "\n".join([_HEAD, *(_row(family, results.get(name)) for name, family in FAMILIES.items())])


def _row(family: Family, found: Mapping[str, Any] | None) -> str:
    arguments = ", ".join(f"`{name}={json.dumps(value)}`" for name, value in family.arguments.items())
    turns = "must alternate" if family.alternates else "free"
    result, difference = ("not run", "") if found is None else ("works", f"{found['probs_diff']:.0e}")
    cells = (family.name, arguments or "none", family.system, turns, result, difference)
    return f"| {' | '.join(cells)} |"


def with_table(text: str, results: Results) -> str:
    """The page with its table made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"
