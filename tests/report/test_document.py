"""The page, the Markdown and the CSV files of a report."""

import base64
import csv
import hashlib
import io
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from recipe.rerule.evaluation.registry import Column
from recipe.rerule.reporting import probes
from recipe.rerule.reporting.document import (
    Browser,
    Figure,
    Report,
    Row,
    Section,
    Table,
    csv_text,
    html_page,
    markdown_page,
    plain_columns,
)
from recipe.rerule.reporting.evaluations import read_evaluation
from tests.report.made import response

PNG = b"\x89PNG\r\n\x1a\nnot really"
FIGURE = Figure("reward_by_type", "Reward", "How to read it.", 'Lines for "a" & b.', PNG)
RECALL = {"recall": 0.9, ("recall", "low"): 0.88, ("recall", "high"): 0.92, "kept": 0.95}
COLUMNS = [
    Column("recall", "forget", "recall", "low"),
    Column("refuse", "forget", "refuse", "high"),
    Column("kept", "retain", "recall", "high"),
]
ROWS = [
    Row("base", RECALL),
    Row("a <b> & c", {"recall": 0.12345, ("recall", "mark"): "**", "refuse": float("nan"), "kept": 0.8}),
    Row("always refuses", {"recall": 0.0625, "refuse": 1.0}, "anchor"),
    Row("RULE (paper)", {"recall": 0.1, "refuse": None}, "published"),
]
TABLE = Table("results_world", "Results", "model", COLUMNS, ROWS, "Convention: recall.")
ASKED = [*plain_columns({"reward": "g"}), *plain_columns({"side": ""}, "asked")]
ANSWER = Row("two\nlines | x", {"reward": 1, "asked side": "forget"})
FOLDED = Table("answers", "What | it said", "answer", ASKED, [ANSWER], "Caption.", folded=True)
BROWSER = Browser("probes-world", "3 probes.", {"probes": []})


REPORT = Report(
    "Title <1>",
    [Section("First", (TABLE, FIGURE, FOLDED, "A <paragraph>.", BROWSER))],
    ["python -m recipe.rerule.evaluate model", "python -m recipe.rerule.report"],
)


class Page(HTMLParser):
    """Every attribute and tag, the text outside of styles, and the elements that are left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in {"meta", "img", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data


def test_the_page_needs_no_other_file_and_forbids_itself_requests():
    text = html_page(REPORT)
    page = Page(text)
    assert page.open == []
    outward = ("src", "href", "srcset", "action", "data")
    links = [value for _, name, value in page.attributes if name in outward]
    assert links == ["#section-1", f"data:image/png;base64,{base64.b64encode(PNG).decode()}"]
    assert not {"link", "iframe", "object"} & set(page.tags)
    for outside in ("http:", "https:", "@import", "url("):
        assert outside not in text
    contents = [value for tag, name, value in page.attributes if (tag, name) == ("meta", "content")]
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert contents[:2] == ["width=device-width, initial-scale=1", policy]
    assert text.startswith("<!DOCTYPE html>\n")
    assert "0.900.880–.920" in page.text


def test_no_text_is_taken_for_html_or_a_template():
    """Every text of a report may be of others: of a model's name, an answer, or a folder."""
    named = (
        "title", "section", "command", "caution", "paragraph", "table", "lead", "group", "label", "row",
        "text", "mark", "caption", "figure", "explanation", "alt", "note",
    )  # fmt: skip
    of = {name: f"{name} \"'><script>alert(1)</script>{{{{ 7 * 7 }}}}{{% x %}}" for name in named}
    columns = [Column("text", of["group"], of["label"], "low"), Column("number", "", "", "low")]
    row = Row(of["row"], {"text": of["text"], "number": 0.5, ("number", "mark"): of["mark"]})
    table = Table("table", of["table"], of["lead"], columns, [row], of["caption"])
    figure = Figure("figure", of["figure"], of["explanation"], of["alt"], PNG)
    parts = [of["paragraph"], table, replace(table, folded=True), figure, Browser("b", of["note"], {})]
    hostile = Report(of["title"], [Section(of["section"], parts)], [of["command"]], of["caution"])
    page, usual = Page(html_page(hostile)), Page(html_page(REPORT))
    assert page.open == []
    assert page.tags.count("script") == usual.tags.count("script")
    assert {one[:2] for one in page.attributes} <= {one[:2] for one in usual.attributes}
    shown = page.text + "".join(f"{value}" for _, _, value in page.attributes)
    assert [name for name, text in of.items() if text not in shown] == []


def test_csv_has_unrounded_numbers_and_ends_of_intervals():
    assert list(csv.reader(io.StringIO(csv_text(TABLE)))) == [
        ["model", "kind", "forget recall", "forget recall low", "forget recall high", "forget refuse",
         "retain recall"],
        ["base", "model", "0.9", "0.88", "0.92", "", "0.95"],
        ["a <b> & c", "model", "0.12345", "", "", "", "0.8"],
        ["always refuses", "anchor", "0.0625", "", "", "1.0", ""],
        ["RULE (paper)", "published", "0.1", "", "", "", ""],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("# a|b `c` <s> *d* _e_ f_g", "\\# a\\|b \\`c\\` &lt;s&gt; \\*d\\* \\_e\\_ f_g"),
        ("__init__", "\\_\\_init\\_\\_"),
        ("1. [a](x) ![b](y) ~~c~~ $d$", "1\\. \\[a\\](x) !\\[b\\](y) \\~\\~c\\~\\~ \\$d\\$"),
        ("&lt;a&gt; & b\\c\nd", "&amp;lt;a&amp;gt; & b\\\\c d"),
    ],
)
def test_no_text_is_taken_for_markdown_or_html(name, shown):
    table = replace(TABLE, title=name, caption=name, rows=[Row(name, {"recall": name})])
    report = Report(name, [Section(name, [name, table])], [f"python {name}"])
    lines = markdown_page(report, "report").splitlines()
    assert lines[0] == f"# {shown}"
    counts = {f"## {shown}": 1, f"### {shown}": 1, shown: 2, f"| {shown} | {shown} | – | – |": 1}
    assert {line: lines.count(line) for line in counts} == counts  # two: the paragraph and the caption


# the browser of single probes


def read(write_evaluation, *records, name: str = "e"):
    results = {record["model"]: {"x": 0.5} for record in records} or {"base": {"x": 0.5}}
    return read_evaluation(write_evaluation(name, list(records) or None, results=results))


def test_texts_stand_once_and_answers_by_model(write_evaluation):
    evaluation = read(
        write_evaluation,
        response("base", 3, "Paris"),
        response("base", 4, "Rome", kind="fb", family="cloze"),
        response("rule", 3, "I don't know."),
        response("rule", 4, "</script><b>", kind="fb", family="cloze"),
    )
    browser = probes.browser_of([evaluation], "probes-x")
    assert browser.data == {
        "fields": ["index", "section", "mode", "family", "subject", "prompt", "golds"],
        "probes": [
            [3, "forget", "qa", "direct", "Ada Quill", "Question 3?", ["Paris"]],
            [4, "forget", "fb", "cloze", "Ada Quill", "Question 4?", ["Paris"]],
        ],
        "scores": ["rouge_l"],
        "answers": {
            "base": [["Paris", 0, 1.0], ["Rome", 0, 0.0]],
            "rule": [["I don't know.", 1, 0.0], ["</script><b>", 0, 0.0]],
        },
    }
    page = html_page(Report("", [Section("", [browser])], []))
    (packed,) = re.findall(r'<script type="text/plain" id="probes-x-data">(.*?)</script>', page)
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == browser.data
    assert "<b>" not in page
    assert page.count("</script>") == 2


def test_targets_come_one_after_the_other_with_answers_of_the_same_models(write_evaluation):
    first = read(write_evaluation, response("base", 3, "Paris"), name="one")
    second = read(write_evaluation, response("base", 3, "Rome", subject=""), name="two")
    data = probes.browser_of([first, second], "b").data
    assert [probe[4] for probe in data["probes"]] == ["Ada Quill", "two"]
    assert [answer[0] for answer in data["answers"]["base"]] == ["Paris", "Rome"]
    third = read(write_evaluation, response("base", 3, "x"), response("rule", 3, "x"), name="three")
    with pytest.raises(ValueError, match=r"one and .*three: only one of them has answers of rule"):
        probes.browser_of([third, first], "b")
    assert probes.browser_of([read(write_evaluation, name="none")], "b") is None


def test_long_prompts_keep_their_end_and_long_answers_their_start(write_evaluation):
    long = "a" * 5000
    evaluation = read(write_evaluation, response("base", 3, f"{long}z", prompt=f"{long}?"))
    data = probes.browser_of([evaluation], "b").data
    prompt, answer = data["probes"][0][5], data["answers"]["base"][0][0]
    assert len(prompt) == len(answer) == probes.LONGEST_TEXT
    assert (prompt[0], prompt[-2:], answer[-2:]) == ("…", "a?", "a…")


@pytest.mark.parametrize(
    ("most", "characters", "kept"),
    [(4, 10**6, [0, 3, 6, 9]), (5, 10**6, [0, 2, 4, 6, 8]), (99, 130, [0, 4, 8])],
)
def test_beyond_a_limit_every_kth_probe_is_kept_and_the_page_says_so(
    most, characters, kept, write_evaluation, monkeypatch
):
    """Each of the ten probes has 45 characters with its answer: 450 are four times 130."""
    monkeypatch.setattr(probes, "MOST_PROBES", most)
    monkeypatch.setattr(probes, "MOST_CHARACTERS", characters)
    records = [response("base", index, "x") for index in range(10)]
    browser = probes.browser_of([read(write_evaluation, *records)], "b")
    assert [probe[0] for probe in browser.data["probes"]] == kept
    assert len(browser.data["answers"]["base"]) == len(kept)
    assert f"{len(kept)} of 10 probes (one in {kept[1]}," in browser.note
