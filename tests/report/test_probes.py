"""The browser of single probes."""

from __future__ import annotations

import base64
import json
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.rerule.reporting import probes
from recipe.rerule.reporting.document import Report, Section, html_page
from recipe.rerule.reporting.evaluations import read_evaluation
from tests.report.conftest import response

RESULTS = {"base": {"x": 0.5}, "rule": {"x": 0.25}}


def read(write_evaluation, *records, name: str = "e", results: dict = RESULTS):
    return read_evaluation(write_evaluation(name, list(records), results=results))


def test_texts_stand_once_and_answers_by_model(write_evaluation):
    evaluation = read(
        write_evaluation,
        response("base", 3, "Paris"),
        response("base", 4, "Rome", kind="fb", family="cloze"),
        response("rule", 3, "I don't know."),
        response("rule", 4, "Rome", kind="fb", family="cloze"),
    )
    data = probes.browser_of([evaluation], "b").data
    assert data["fields"] == ["index", "section", "mode", "family", "subject", "prompt", "golds"]
    assert data["probes"] == [
        [3, "forget", "qa", "direct", "Ada Quill", "Question 3?", ["Paris"]],
        [4, "forget", "fb", "cloze", "Ada Quill", "Question 4?", ["Paris"]],
    ]
    assert data["scores"] == ["rouge_l"]
    assert data["answers"] == {
        "base": [["Paris", 0, 1.0], ["Rome", 0, 0.0]],
        "rule": [["I don't know.", 1, 0.0], ["Rome", 0, 0.0]],
    }


def test_targets_come_one_after_the_other(write_evaluation):
    results = {"base": {"x": 0.5}}
    first = read(write_evaluation, response("base", 3, "Paris"), name="one", results=results)
    second = read(write_evaluation, response("base", 3, "Rome", subject=""), name="two", results=results)
    data = probes.browser_of([first, second], "b").data
    assert [probe[4] for probe in data["probes"]] == ["Ada Quill", "two"]
    assert [answer[0] for answer in data["answers"]["base"]] == ["Paris", "Rome"]


def test_targets_with_answers_of_other_models_are_refused(write_evaluation):
    first = read(write_evaluation, response("base", 3, "x"), response("rule", 3, "x"), name="one")
    second = read(write_evaluation, response("base", 3, "x"), name="two")
    with pytest.raises(ValueError, match=r"two and .*one: only one of them has answers of rule"):
        probes.browser_of([first, second], "b")


def test_no_answers_no_browser(write_evaluation):
    evaluation = read_evaluation(write_evaluation("e", results=RESULTS))
    assert probes.browser_of([evaluation], "b") is None


def test_models_that_answered_other_probes_are_refused(write_evaluation):
    evaluation = read(write_evaluation, response("base", 3, "x"), response("rule", 4, "x"))
    with pytest.raises(ValueError, match="rule answered other probes than base"):
        probes.browser_of([evaluation], "b")


def test_long_prompts_keep_their_end_and_long_answers_their_start(write_evaluation):
    long = "a" * 5000
    evaluation = read(
        write_evaluation, response("base", 3, long + "z", prompt=long + "?"), results={"base": {"x": 0.5}}
    )
    data = probes.browser_of([evaluation], "b").data
    prompt, answer = data["probes"][0][5], data["answers"]["base"][0][0]
    assert len(prompt) == len(answer) == probes.LONGEST_TEXT
    assert prompt.startswith("…")
    assert prompt.endswith("a?")
    assert answer.endswith("a…")


def test_beyond_the_limit_every_kth_probe_is_kept_and_the_page_says_so(write_evaluation, monkeypatch):
    monkeypatch.setattr(probes, "MOST_PROBES", 4)
    records = [response("base", index, "x") for index in range(10)]
    browser = probes.browser_of([read(write_evaluation, *records, results={"base": {"x": 0.5}})], "b")
    assert [probe[0] for probe in browser.data["probes"]] == [0, 3, 6, 9]
    assert len(browser.data["answers"]["base"]) == 4
    assert "4 of 10 probes (one in 3," in browser.note


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 40))
def test_what_is_kept_never_exceeds_the_limit(count: int, limit: int, length: int):
    rows = [{"index": index, "prompt": "x" * length} for index in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "MOST_PROBES", limit)
        kept = probes.kept_places(rows, {})
    assert 1 <= len(kept) <= limit


def test_the_page_holds_the_data_packed_and_no_raw_answer(write_evaluation):
    evaluation = read(write_evaluation, response("base", 3, "</script><b>"), results={"base": {"x": 0.5}})
    browser = probes.browser_of([evaluation], "probes-x")
    page = html_page(Report("", [Section("", [browser])], []))
    (packed,) = re.findall(r'<script type="text/plain" id="probes-x-data">(.*?)</script>', page)
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == browser.data
    assert "<b>" not in page
    assert page.count("</script>") == 2
