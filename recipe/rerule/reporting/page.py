"""The report as one HTML page that needs no other file and no network; templates/ has its HTML."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from recipe.rerule.reporting.browser import pack
from recipe.rerule.reporting.document import Browser, Figure, Heading, Part, Report, Table


def html_page(report: Report) -> str:
    """The whole page: styles and script inline, images as data URIs; the page itself forbids any request."""
    script = _asset("browser.js") + _asset("sort.js")
    return _TEMPLATES.get_template("page.html").render(
        report=report,
        caution=report.caution,
        style=_asset("page.css"),
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        part_html=part_html,
    )


def part_html(part: Part) -> Markup:
    """One part of a section; every text in it is escaped."""
    match part:
        case str():
            return _rendered("paragraph.html", part)
        case Table():
            return _rendered("table.html", part, **_table_structure(part))
        case Figure():
            return _rendered("figure.html", part)
        case Browser():
            return _rendered("browser.html", part)


def _rendered(template: str, part: Part, **further: Any) -> Markup:
    return Markup(_TEMPLATES.get_template(template).render(part=part, **further))


def _table_structure(table: Table) -> dict[str, Any]:
    """Groups over the columns with their widths, which columns begin one, and rows by their kind."""
    grouped = any(heading.group for heading in table.headings)
    return {
        "groups": list(_groups(table.headings)) if grouped else [],
        "starts": [start for _, width in _groups(table.headings) for start in (True, *[False] * (width - 1))],
        "bodies": [(kind, list(rows)) for kind, rows in groupby(table.rows, key=lambda row: row.kind)],
    }


def _groups(headings: Sequence[Heading]) -> Iterator[tuple[str, int]]:
    """Each group of neighbouring columns, "" for columns without one, and how many columns it has."""
    for group, members in groupby(headings, key=lambda heading: heading.group):
        yield group, len(list(members))


def _asset(name: str) -> Markup:
    return Markup(
        resources.files("recipe.rerule.reporting.assets").joinpath(name).read_text(encoding="utf-8")
    )


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


_TEMPLATES = Environment(
    loader=PackageLoader("recipe.rerule.reporting"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters.update(data_uri=_data_uri, pack=pack)
