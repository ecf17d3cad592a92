"""The report of runs, evaluations and attacks, and the model that is published."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.golden import adapters
from tests.golden.attack_inputs import GIVEN
from tests.golden.commands import Ran, done, files, refused, run
from tests.golden.golden import check, neutral, neutral_all
from tests.golden.run_inputs import put_run

REPORT, EXPORT = "recipe.rerule.report", "recipe.rerule.export"
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
REFUSED = {
    "nothing to show": ("report --out out", ["--results"]),
    "a missing evaluation": ("report --results nowhere --out out", ["nowhere"]),
    "a missing run": ("report --results results/world --run a=nowhere --out out", ["nowhere"]),
    "a folder that is no evaluation": ("report --results custom --out out", ["custom"]),
    "a base that is no model": ("report --results results/world --base nobody --out out", ["nobody"]),
    "a folder twice": ("report --results results/world --results results/world --out out", ["results/world"]),
    "a page of somebody else": ("report --results results/world --out mine.html --overwrite", ["mine.html"]),
    "a missing model": ("export nowhere --to out", ["nowhere"]),
    "a name that no result has": (
        "export runs/rerule --results results/world --as nobody --to out",
        ["nobody"],
    ),
    "a folder of somebody else": ("export runs/rerule --to raw --overwrite", ["raw"]),
}
"""Words, and what the one line must name."""
MOST_ROWS = 20
"""Of a table of the Markdown that are kept."""


@pytest.fixture(scope="module")
def work(
    evaluation_work: Path, evaluated: dict[str, Ran], judged: Ran, attack_work: Path, attacked: Ran
) -> Path:
    """The folder of the evaluations, with attacks and two runs."""
    few = f"{GIVEN} --attacks prefill samples --out few_attacks"
    done("recipe.rerule.evaluate", *few.split(), folder=attack_work)
    for name in ("attacks", "few_attacks"):
        (evaluation_work / name).symlink_to(attack_work / name)
    for name in ("rule", "rerule"):
        put_run(
            evaluation_work / "runs" / name,
            name == "rerule",
            evaluation_work,
            attack_work / "models/refusing",
        )
    (evaluation_work / "mine.html").write_text("<html></html>")
    return evaluation_work


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    adapters.leave_figures_undrawn(monkeypatch)


def test_reports(work: Path) -> None:
    """The Markdown, the page's words and the tables' columns, without figures."""
    kept = {}
    for number, (name, words) in enumerate(REPORTS.items()):
        out = work / "pages" / str(number)
        ran = done(REPORT, *words.split(), "--out", f"pages/{number}", folder=work)
        page = Page((out / "report.html").read_text("utf-8"))
        kept[name] = ran.kept(work) | {
            "files": files(out),
            "markdown": _lines((out / "report.md").read_text("utf-8"), work),
            "page": page.counts,
            "captions": [neutral(line, work) for line in page.captions],
            "tables": {path.stem: _table(path) for path in sorted(out.glob("report/*.csv"))},
        }
    check("reports", kept, 1e-3, 1e-4)


def _lines(text: str, work: Path) -> list[str]:
    """The lines of a text that hold something; of a long table the first rows and their number."""
    lines, rows = [], 0
    for line in neutral(text, work).splitlines():
        rows = rows + 1 if line.startswith("|") else 0
        if rows <= MOST_ROWS:
            lines.append(line)
        elif rows > MOST_ROWS + 1:
            lines.pop()
        if rows > MOST_ROWS:
            lines.append(f"| ... {rows} rows in all |")
    return [line for line in lines if line]


def _table(path: Path) -> str:
    """How many rows and columns a CSV file has, and its first columns."""
    head, *rows = csv.reader(path.read_text("utf-8").splitlines())
    return f"{len(rows)} x {len(head)}: {', '.join(head[:4])}"


class Page(HTMLParser):
    """The captions of a page, and how many headings, tables, rows and figures it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts = {
            tag: 0 for tag in ("h1", "h2", "h3", "table", "tr", "img", "figure", "details", "script")
        }
        self.captions: list[str] = []
        self._within = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        if tag in self.counts:
            self.counts[tag] += 1
        if tag in ("figcaption", "caption"):
            self._within += 1
            self.captions.append("")

    def handle_endtag(self, tag: str) -> None:
        self._within -= tag in ("figcaption", "caption")

    def handle_data(self, data: str) -> None:
        if self._within:
            self.captions[-1] = " ".join(f"{self.captions[-1]} {data}".split())


def test_exports(work: Path) -> None:
    """The files and the card of published models."""
    kept = {}
    for number, (name, words) in enumerate(EXPORTS.items()):
        out = work / "published" / str(number)
        ran = done(EXPORT, *words.split(), "--to", f"published/{number}", folder=work)
        marker = json.loads((out / "export.json").read_text())
        kept[name] = ran.kept(work) | {
            "files": files(out),
            "card": _lines((out / "README.md").read_text("utf-8"), work),
            "marker": neutral_all(marker, work),
        }
    check("exports", kept, 1e-3, 1e-4)


def test_refused_reports(work: Path) -> None:
    kept = {}
    for name, (words, named) in REFUSED.items():
        command, *rest = words.split()
        kept[name] = refused(run(f"recipe.rerule.{command}", *rest, folder=work), named)
    assert not (work / "out").exists()
    check("refused_reports", kept)
