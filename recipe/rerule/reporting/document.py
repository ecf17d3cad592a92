"""What a report is made of, and how it is shown: as one HTML page, as Markdown, and its tables as CSV.

Names, titles and answers are others' texts: nothing in them is taken for HTML, for Markdown, for a template
or for the end of a cell.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from recipe.rerule.evaluation.registry import Column
from recipe.rerule.evaluation.table import shown

ARROWS = {"low": "↓", "high": "↑", "zero": "→0", "": ""}
_CAUTION = (
    "Refusing is not erasing. A model that declines to answer may still hold the knowledge in its weights, "
    "where probing, other prompts or a little training can bring it out again. "
)
CAUTION = (
    f"{_CAUTION}These numbers say how the model answers these probes, and nothing about what it still knows."
)
CAUTION_ATTACKED = (
    f"{_CAUTION}The section on attacks says what came out here. An attack that gets nothing out does not "
    "show that nothing is left."
)


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        name: in the first column.
        cells: by `Column.metric` an unscaled number or a text; None, NaN or no entry for what is missing. Of
            a number there may also be the ends of its interval, by (metric, "low") and (metric, "high"); the
            outcome of a test, by (metric, "mark"); and another column whose form it has, by (metric, "as").
        kind: "model" (or run, metric), "anchor" (constant answers) or "published".
    """

    name: str
    cells: Mapping[Any, Any]
    kind: str = "model"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: file name without extension.
        title: heading over it.
        lead: heading of the first column.
        columns: the further columns.
        rows: in order.
        caption: how to read it.
        folded: whether the page shows it only when asked.
    """

    name: str
    title: str
    lead: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    caption: str
    folded: bool = False

    @property
    def groups(self) -> list[tuple[str, list[Column]]]:
        """Neighbouring columns under one heading, which is "" where they have none."""
        return [(group, list(columns)) for group, columns in groupby(self.columns, lambda one: one.group)]

    @property
    def bodies(self) -> list[tuple[str, list[Row]]]:
        """Neighbouring rows of a kind."""
        return [(kind, list(rows)) for kind, rows in groupby(self.rows, lambda row: row.kind)]


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        name: file name without extension.
        title: heading over it.
        explanation: how to read it, in a few sentences.
        alt: what it shows, for who cannot see it.
        png: the image.
    """

    name: str
    title: str
    explanation: str
    alt: str
    png: bytes


@dataclass(frozen=True)
class Browser:
    """Probes to look through.

    Attributes:
        name: unique in the report; an HTML id.
        note: what is in it, and what was left out.
        data: JSON value, as templates/browser.js reads it (see `probes.browser_of`).
    """

    name: str
    note: str
    data: dict[str, Any]


Part = str | Table | Figure | Browser
"""A string is a paragraph."""


@dataclass(frozen=True)
class Section:
    """Parts under a heading."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Report:
    """The whole.

    Attributes:
        title: heading of the page.
        sections: in order.
        commands: the commands that made the numbers and the report; they name every folder that was read.
        caution: what every reader must know first.
    """

    title: str
    sections: Sequence[Section]
    commands: Sequence[str]
    caution: str = CAUTION


def plain_columns(specs: Mapping[str, str], group: str = "") -> list[Column]:
    """Columns of which no direction is better, from {label: format}; the key of one is "GROUP LABEL"."""
    return [Column(f"{group} {label}".strip(), group, label, "", 1.0, spec) for label, spec in specs.items()]


def mark_of(p_value: float) -> str:
    """How a p-value is marked; "" from 0.05 on."""
    return "**" if p_value < 0.01 else "*" if p_value < 0.05 else ""


def heading(column: Column) -> str:
    """A column's label, and which way is better."""
    return f"{column.label} {ARROWS[column.aim]}".strip()


def value_of(row: Row, column: Column, part: str = "") -> Any:
    """What a row has in a column, or an end of its interval ("low", "high"); None where it is missing."""
    value = row.cells.get((column.metric, part) if part else column.metric)
    return None if isinstance(value, float) and math.isnan(value) else value


def cell_of(row: Row, column: Column) -> tuple[str, str, str]:
    """A cell as it is shown: number or text, mark, and interval.

    An interval of no width, as of constant answers, says nothing that the number does not, and is not shown.
    """
    value = value_of(row, column)
    if value is None or isinstance(value, str):
        return value or "–", "", ""
    form = row.cells.get((column.metric, "as"), column)
    bounds = [value_of(row, column, part) for part in ("low", "high")]
    ends = [shown(end, form) for end in bounds if end is not None]
    text, mark = shown(value, form), row.cells.get((column.metric, "mark"), "")
    if set(ends) <= {text}:
        return text, mark, ""
    if any(end.startswith(("-", "+")) for end in ends):
        return text, mark, " to ".join(ends)
    # Without the zero before the point, as intervals of fractions are customarily printed.
    return text, mark, "–".join(re.sub(r"^0\.", ".", end) for end in ends)


def csv_text(table: Table) -> str:
    """One line a row: name, kind, then each column, not rounded, and the ends of intervals."""
    heads = [table.lead, "kind"]
    columns = [[row.name for row in table.rows], [row.kind for row in table.rows]]
    for column in table.columns:
        for part in ("", "low", "high"):
            values = [value_of(row, column, part) for row in table.rows]
            if not part or any(value is not None for value in values):
                heads.append(f"{column.group} {column.label} {part}".strip())
                columns.append(values)
    frame = pd.DataFrame(dict(enumerate(columns)), dtype=object)
    return frame.to_csv(header=heads, index=False, lineterminator="\n")


def html_page(report: Report) -> str:
    """The page needs no other file: styles and script inline, images as data URIs; it forbids any request."""
    script = TEMPLATES.get_template("browser.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return TEMPLATES.get_template("page.html").render(report=report, script_digest=digest)


def markdown_page(report: Report, folder: str) -> str:
    """Everything but the probe browser; figures are linked from `folder`."""
    return TEMPLATES.get_template("page.md").render(report=report, folder=folder)


def markdown_table(table: Table) -> str:
    """Models upright, constant answers in italics."""
    heads = [table.lead, *(f"{column.group} {heading(column)}".strip() for column in table.columns)]
    lines = [list(map(escaped, heads)), ["---", *("---:" for _ in table.columns)]]
    for row in table.rows:
        name = f"*{escaped(row.name)}*" if row.kind == "anchor" else escaped(row.name)
        cells = [cell_of(row, column) for column in table.columns]
        brackets = [(text + mark, f" ({interval})" if interval else "") for text, mark, interval in cells]
        lines.append([name, *(escaped(text + interval) for text, interval in brackets)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_MARKUP = re.compile(r"[\\`*\[\]<>|~$]|(?<![^\W_])_|_(?![^\W_])|^(?:[#+=-]+|\d+[.)])(?=\s|$)|&(?=#?\w+;)")
"""What begins or ends something in Markdown where it stands; an underscore between two letters does not."""


def escaped(text: str) -> str:
    """The text on one line, as it reads: HTML's characters by their names, Markdown's with a backslash."""
    names = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    return _MARKUP.sub(
        lambda found: names.get(found[0], f"{found[0][:-1]}\\{found[0][-1]}"), " ".join(text.split())
    )


def _packed(data: Any) -> str:
    """JSON, deflated (zlib), in base64; templates/browser.js unpacks it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode("ascii")


TEMPLATES = Environment(
    loader=PackageLoader("recipe.rerule.reporting"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters.update(
    data_uri=lambda png: f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}",
    pack=_packed,
    md=escaped,
)
TEMPLATES.globals.update(cell_of=cell_of, heading=heading, markdown_table=markdown_table)
