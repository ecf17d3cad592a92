"""The report of runs, evaluations and attacks, and the model that is published."""

from __future__ import annotations

import csv
import html
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot

from recipe.rerule.reporting import style
from tests.golden.commands import Ran, done, files
from tests.golden.conftest import ATTACK
from tests.golden.folders import read_json
from tests.golden.golden import check
from tests.golden.run_inputs import put_run

REPORTS = {
    "everything": "--results results/custom --naturalness naturalness --attacks attacks --run rule=runs/rule "
    "--run rerule=runs/rerule --data custom --base base --title Everything",
    "two evaluations": "--results results/muse-news --results results/tofu",
    "attacks alone": "--attacks few_attacks",
}
"""Words of `report`, but for --out."""
EXPORTS = {
    "a run": "runs/rerule --name forgetful",
    "a run, evaluated": "runs/rerule --results results/custom --as rule",
    "a run, attacked": "runs/rule --attacks attacks --as refusing",
    "a model": "models/base",
}
"""Words of `export`, but for --to."""
TAGS = ("h1", "h2", "h3", "table", "tr", "img", "figure", "details", "script")
MOST_ROWS = 20
"""Of a table of the Markdown that are kept."""


@pytest.fixture(scope="module")
def work(evaluation_work: Path, evaluated: dict[str, Ran], judged: Ran, people: Path, attacked: Ran) -> Path:
    """The folder of the evaluations, with attacks and two runs."""
    done(f"{ATTACK} --attacks prefill samples --out few_attacks", people)
    for name in ("attacks", "few_attacks"):
        (evaluation_work / name).symlink_to(people / name)
    for name in ("rule", "rerule"):
        run = evaluation_work / "runs" / name
        put_run(run, name == "rerule", evaluation_work, people / "models/refusing")
    return evaluation_work


def test_reports(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Markdown, the page's words and the tables' columns; figures are not rendered, which takes long."""
    monkeypatch.setattr(style, "png", lambda canvas: pyplot.close(canvas) or b"not drawn")
    kept = {}
    for number, (name, words) in enumerate(REPORTS.items()):
        out = work / "pages" / str(number)
        ran = done(f"report {words} --out pages/{number}", work)
        kept[name] = ran.kept | {
            "files": files(out),
            "markdown": _lines(out / "report.md"),
            **_page((out / "report.html").read_text("utf-8")),
            "tables": {path.stem: _table(path) for path in sorted(out.glob("report/*.csv"))},
        }
    check("reports", kept, work, 1e-3, 1e-4)


def _lines(path: Path) -> list[str]:
    """The lines of a text that hold something; of a long table the first rows and their number."""
    lines: list[str] = []
    tables = itertools.groupby(path.read_text("utf-8").splitlines(), lambda line: line.startswith("|"))
    for is_table, found in tables:
        rows = [line for line in found if line]
        many = is_table and len(rows) > MOST_ROWS
        lines += [*rows[:MOST_ROWS], f"| ... {len(rows)} rows in all |"] if many else rows
    return lines


def _table(path: Path) -> str:
    """How many rows and columns a CSV file has, and its first columns."""
    head, *rows = csv.reader(path.read_text("utf-8").splitlines())
    return f"{len(rows)} x {len(head)}: {', '.join(head[:4])}"


def _page(page: str) -> dict[str, Any]:
    """How many headings, tables, rows and figures a page has, and its captions."""
    captions = re.findall(r"<((?:fig)?caption)\b.*?>(.*?)</\1>", page, re.DOTALL)
    return {
        "page": {tag: len(re.findall(rf"<{tag}[\s>]", page)) for tag in TAGS},
        "captions": [" ".join(html.unescape(re.sub("<.*?>", " ", text)).split()) for _, text in captions],
    }


def test_exports(work: Path) -> None:
    """The files and the card of published models."""
    kept = {}
    for number, (name, words) in enumerate(EXPORTS.items()):
        ran, out = done(f"export {words} --to published/{number}", work), work / "published" / str(number)
        card, marker = _lines(out / "README.md"), read_json(out / "export.json")
        kept[name] = ran.kept | {"files": files(out), "card": card, "marker": marker}
    check("exports", kept, work, 1e-3, 1e-4)
