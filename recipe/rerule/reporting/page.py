"""The report as one HTML page that needs no other file and no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from itertools import groupby

from recipe.rerule.reporting.browser import browser_html
from recipe.rerule.reporting.document import Browser, Cell, Figure, Heading, Part, Report, Row, Section, Table

CAUTION = (
    "Refusing is not erasing. A model that declines to answer may still hold the knowledge in its weights, "
    "where probing, other prompts or a little training can bring it out again. These numbers say how the "
    "model answers these probes, and nothing about what it still knows."
)
_SCRIPT = "browser.js"
_NARROW = "(max-width: 600px)"


def html_page(report: Report) -> str:
    """The whole page: styles and script inline, images as data URIs; the page itself forbids any request."""
    script = _asset(_SCRIPT)
    body = "\n".join(
        [
            "<header>",
            f"<h1>{escape(report.title)}</h1>",
            f'<p class="note">{escape(CAUTION)}</p>',
            _contents(report.sections),
            "</header>\n<main>",
            *(_section(number, section) for number, section in enumerate(report.sections, start=1)),
            _provenance(report),
            "</main>",
            f"<script>{script}</script>",
        ]
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{_head(report.title, script)}\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _head(title: str, script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>{_asset('page.css')}</style>"
    )


def _asset(name: str) -> str:
    return resources.files("recipe.rerule.reporting.assets").joinpath(name).read_text(encoding="utf-8")


def _contents(sections: Sequence[Section]) -> str:
    links = "".join(
        f'<li><a href="#section-{number}">{escape(section.title)}</a></li>'
        for number, section in enumerate(sections, start=1)
    )
    return f'<nav aria-label="Contents"><ul class="contents">{links}</ul></nav>'


def _section(number: int, section: Section) -> str:
    parts = "\n".join(map(_part, section.parts))
    return f'<section id="section-{number}">\n<h2>{escape(section.title)}</h2>\n{parts}\n</section>'


def _part(part: Part) -> str:
    match part:
        case str():
            return f"<p>{escape(part)}</p>"
        case Table():
            return _titled_table(part)
        case Figure():
            return _figure(part)
        case Browser():
            return browser_html(part)


def _titled_table(table: Table) -> str:
    title, body = escape(table.title), f'{_table(table)}\n<p class="small">{escape(table.caption)}</p>'
    if table.folded:
        return f"<details><summary>{title}</summary>\n{body}\n</details>"
    return f"<h3>{title}</h3>\n{body}"


def _table(table: Table) -> str:
    kind = " answers-table" if table.lead == "answer" else ""
    groups = groupby(table.rows, key=lambda row: row.kind)
    bodies = "\n".join(_body(kind, list(rows), table.headings) for kind, rows in groups)
    label = escape(table.title)
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table class="report{kind}" '
        f'aria-label="{label}">\n<thead>\n{_head_rows(table)}\n</thead>\n{bodies}\n</table></div>'
    )


def _head_rows(table: Table) -> str:
    labels = "".join(
        f'<th scope="col"{_start(table.headings, place)}>{escape(heading.text)}</th>'
        for place, heading in enumerate(table.headings)
    )
    row = f'<tr><th scope="col">{escape(table.lead)}</th>{labels}</tr>'
    if not any(heading.group for heading in table.headings):
        return row
    return f"<tr><td></td>{''.join(_group_cells(table.headings))}</tr>\n{row}"


def _group_cells(headings: Sequence[Heading]) -> Iterator[str]:
    for group, members in groupby(headings, key=lambda heading: heading.group):
        span = len(list(members))
        if group:
            yield f'<th class="group start" scope="colgroup" colspan="{span}">{escape(group)}</th>'
        else:
            yield f'<td colspan="{span}"></td>'


def _start(headings: Sequence[Heading], place: int) -> str:
    """The class of a group's first column, which keeps its distance."""
    first = place == 0 or headings[place].group != headings[place - 1].group
    return ' class="start"' if first else ""


def _body(kind: str, rows: Sequence[Row], headings: Sequence[Heading]) -> str:
    lines = "\n".join(
        f'<tr><th scope="row">{escape(row.name)}</th>'
        + "".join(f"<td{_start(headings, place)}>{_cell(cell)}</td>" for place, cell in enumerate(row.cells))
        + "</tr>"
        for row in rows
    )
    css = "models" if kind == "model" else f"others {kind}"
    return f'<tbody class="{css}">\n{lines}\n</tbody>'


def _cell(cell: Cell) -> str:
    interval = f'<span class="interval">{escape(cell.interval)}</span>' if cell.interval else ""
    mark = f'<span class="mark">{escape(cell.mark)}</span>' if cell.mark else ""
    return escape(cell.text) + mark + interval


def _figure(figure: Figure) -> str:
    narrow = f'<source media="{_NARROW}" srcset="{_data_uri(figure.narrow_png)}">'
    wide = f'<img alt="{escape(figure.alt)}" src="{_data_uri(figure.png)}">'
    return (
        f"<h3>{escape(figure.title)}</h3>\n<figure><picture>{narrow}{wide}</picture>\n"
        f"<figcaption>{escape(figure.explanation)}</figcaption></figure>"
    )


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _provenance(report: Report) -> str:
    sources = "".join(
        f"<li>{escape(what)}: <code>{escape(text)}</code></li>" for what, text in report.sources.items()
    )
    commands = "".join(f"<li><code>{escape(command)}</code></li>" for command in report.commands)
    return (
        f'<section>\n<h2>Where this comes from</h2>\n<ul class="small">{sources}</ul>\n'
        '<p class="small">Commands that made the numbers and this page:</p>\n'
        f'<ul class="small">{commands}</ul>\n</section>'
    )
