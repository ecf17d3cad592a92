"""The page, the Markdown and the CSV files of a report."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from typing import Any

import pytest

from recipe.rerule.evaluation.registry import Column
from recipe.rerule.reporting.document import (
    CAUTION,
    Browser,
    Figure,
    Report,
    Row,
    Section,
    Table,
    csv_text,
    html_page,
    markdown_page,
    markdown_table,
    plain_columns,
)

PNG, NARROW = b"\x89PNG\r\n\x1a\nnot really", b"\x89PNG narrow"
FIGURE = Figure("reward_by_type", "Reward", "How to read it.", 'Lines for "a" & b.', PNG, NARROW)
RECALL = {"recall": 0.9, ("recall", "low"): 0.88, ("recall", "high"): 0.92, "kept": 0.95}
TABLE = Table(
    "results_world",
    "Results",
    "model",
    (
        Column("recall", "forget", "recall", "low"),
        Column("refuse", "forget", "refuse", "high"),
        Column("kept", "retain", "recall", "high"),
    ),
    (
        Row("base", RECALL),
        Row("a <b> & c", {"recall": 0.12345, ("recall", "mark"): "**", "refuse": float("nan"), "kept": 0.8}),
        Row("always refuses", {"recall": 0.0625, "refuse": 1.0}, "anchor"),
        Row("RULE (paper)", {"recall": 0.1, "refuse": None}, "published"),
    ),
    "Convention: recall.",
)
FOLDED = Table(
    "answers",
    "What | it said",
    "answer",
    [*plain_columns({"reward": "g"}), *plain_columns({"side": ""}, "asked")],
    (Row("two\nlines | x", {"reward": 1, "asked side": "forget"}),),
    "Caption.",
    folded=True,
)
BROWSER = Browser("probes-world", "3 probes.", {"probes": []})


def report(*parts) -> Report:
    return Report(
        "Title <1>",
        [Section("First", parts or (TABLE, FIGURE, FOLDED, "A <paragraph>.", BROWSER))],
        ["python -m recipe.rerule.evaluate model", "python -m recipe.rerule.report"],
    )


class Page(HTMLParser):
    """Tables as lists of rows of cell texts, every attribute, every tag, and the text outside of styles."""

    VOID = frozenset({"meta", "img", "br", "link", "source", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


def test_the_page_needs_no_other_file_and_forbids_itself_requests():
    text = html_page(report())
    page = Page(text)
    assert page.open == []
    links = [
        value for _, name, value in page.attributes if name in ("src", "href", "srcset", "action", "data")
    ]
    uris = ["data:image/png;base64," + base64.b64encode(png).decode() for png in (NARROW, PNG)]
    assert links == ["#section-1", *uris]
    assert not {"link", "iframe", "object"} & set(page.tags)
    for outside in ("http:", "https:", "@import", "url("):
        assert outside not in text
    contents = [value for tag, name, value in page.attributes if (tag, name) == ("meta", "content")]
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert contents[:2] == ["width=device-width, initial-scale=1", policy]
    assert text.startswith("<!DOCTYPE html>\n")
    for told in ("Convention: recall.", CAUTION, "How to read it.", "python -m recipe.rerule.report"):
        assert told in page.text


def test_table_holds_groups_rows_intervals_and_marks():
    page = Page(html_page(report(TABLE)))
    bodies = [value for tag, name, value in page.attributes if (tag, name) == ("tbody", "class")]
    assert bodies == ["models", "others anchor", "others published"]
    assert page.tables[0] == [
        ["", "forget", "retain"],
        ["model", "recall ↓", "refuse ↑", "recall ↑"],
        ["base", "0.900.880–.920", "–", "0.950"],
        ["a <b> & c", "0.123**", "–", "0.800"],
        ["always refuses", "0.062", "1.000", "–"],
        ["RULE (paper)", "0.100", "–", "–"],
    ]


SCRIPT = "\"'><script>alert(1)</script>{{ 7 * 7 }}{% x %}"
PLAIN_FIELDS = {"aim", "metric", "spec", "data"}
"""Fields that hold no text of others, or that are packed."""


def with_script(value: Any, place: str = "report") -> Iterator[tuple[str, Any]]:
    """The value with SCRIPT in place of one of its texts, once for each text in it, and its place."""
    if isinstance(value, str):
        yield place, SCRIPT
    elif isinstance(value, dict):
        for key, inner in value.items():
            for where, changed in with_script(inner, f"{place}[{key}]"):
                yield where, {**value, key: changed}
    elif isinstance(value, Row):
        for field, inner in value._asdict().items():
            for where, changed in with_script(inner, f"{place}.{field}"):
                yield where, value._replace(**{field: changed})
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            for where, changed in with_script(inner, f"{place}[{number}]"):
                yield where, type(value)([*value[:number], changed, *value[number + 1 :]])
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.name not in PLAIN_FIELDS:
                for where, changed in with_script(getattr(value, field.name), f"{place}.{field.name}"):
                    yield where, replace(value, **{field.name: changed})


NOT_SHOWN = {f"report.sections[0].parts[{number}].name" for number in (0, 1, 2)}
"""Names of files."""


def test_no_text_is_taken_for_html_or_a_template():
    usual = Page(html_page(report()))
    names = {(tag, name) for tag, name, _ in usual.attributes}
    changed = dict(with_script(report()))
    assert len(changed) > 40
    for where, hostile in changed.items():
        page = Page(html_page(hostile))
        assert page.tags.count("script") == usual.tags.count("script"), where
        assert {(tag, name) for tag, name, _ in page.attributes} <= names, where
        assert page.open == [], where
        shown = SCRIPT in page.text + "".join(f"{value}" for _, _, value in page.attributes)
        assert shown != (where in NOT_SHOWN), where


def test_markdown_table():
    assert markdown_table(TABLE).splitlines() == [
        "| model | forget recall ↓ | forget refuse ↑ | retain recall ↑ |",
        "| --- | ---: | ---: | ---: |",
        "| base | 0.900 (.880–.920) | – | 0.950 |",
        "| a &lt;b&gt; & c | 0.123\\*\\* | – | 0.800 |",
        "| *always refuses* | 0.062 | 1.000 | – |",
        "| RULE (paper) | 0.100 | – | – |",
    ]
    assert markdown_table(FOLDED).splitlines()[-1] == "| two lines \\| x | 1 | forget |"


def test_markdown_page_links_its_figures():
    text = markdown_page(report(), "report")
    assert '![Lines for "a" & b.](report/reward_by_type.png)' in text
    assert "### What \\| it said" in text
    assert CAUTION in text
    assert "    python -m recipe.rerule.report" in text


def test_csv_has_unrounded_numbers_and_ends_of_intervals():
    assert list(csv.reader(io.StringIO(csv_text(TABLE)))) == [
        ["model", "kind", "forget recall", "forget recall low", "forget recall high", "forget refuse",
         "retain recall"],
        ["base", "model", "0.9", "0.88", "0.92", "", "0.95"],
        ["a <b> & c", "model", "0.12345", "", "", "", "0.8"],
        ["always refuses", "anchor", "0.0625", "", "", "1.0", ""],
        ["RULE (paper)", "published", "0.1", "", "", "", ""],
    ]  # fmt: skip


HOSTILE = {
    "a|b": "a\\|b",
    "`code`": "\\`code\\`",
    "<script>alert(1)</script>": "&lt;script&gt;alert(1)&lt;/script&gt;",
    "*bold* _it_ snake_case": "\\*bold\\* \\_it\\_ snake_case",
    "[link](http://x)": "\\[link\\](http://x)",
    "![image](x)": "!\\[image\\](x)",
    "&lt;b&gt; & c": "&amp;lt;b&amp;gt; & c",
    "back\\slash": "back\\\\slash",
    "line\nbreak": "line break",
    "# head": "\\# head",
    "1. item": "1\\. item",
    "~~gone~~ $x$": "\\~\\~gone\\~\\~ \\$x\\$",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_is_taken_for_markdown_or_html(name: str):
    shown = HOSTILE[name]
    table = replace(TABLE, title=name, caption=name, rows=[Row(name, {"recall": name})])
    report = Report(name, [Section(name, [name, table])], [f"python {name}"])
    lines = markdown_page(report, "report").splitlines()
    assert lines[0] == f"# {shown}"
    assert lines.count(f"## {shown}") == 1
    assert lines.count(f"### {shown}") == 1
    assert lines.count(shown) == 2  # the paragraph and the caption
    assert lines.count(f"| {shown} | {shown} | – | – |") == 1
