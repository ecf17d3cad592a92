"""The browser of single probes."""

import base64
import json
import re
import zlib

import pytest

from recipe.rerule.reporting import probes
from recipe.rerule.reporting.document import Report, Section, html_page
from recipe.rerule.reporting.evaluations import read_evaluation
from tests.report.made import response


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
