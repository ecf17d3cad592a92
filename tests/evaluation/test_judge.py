"""`evaluate judge`: the rubric, what becomes of the judge's answers, and the command, against a local
server."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule import evaluate
from recipe.rerule.evaluation import judge as judging
from recipe.rerule.evaluation import summary as summaries
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.judge import AXES, judge
from tests.data_prep.generate.server import MODEL, Call, ChatServer, say, status
from tests.report.made import response

SCORES = {"Paris.": (5, 5, 5), "London.": (5, 1, 1), "I don't know.": (5, 3, 5), "the the the": (1, 1, 1)}
"""Readability, helpfulness and truthfulness of a reply; others have 4, 3 and 4."""


def reply_of(call: Call) -> str:
    found = re.search(r"<reply>\n(.*)\n</reply>", call.prompt, re.DOTALL)
    assert found is not None
    return found[1]


def score_text(scores: Sequence[Any]) -> str:
    return json.dumps(dict(zip(AXES, scores, strict=True)))


def score_well(handler: BaseHTTPRequestHandler, call: Call) -> None:
    say(score_text(SCORES.get(reply_of(call), (4, 3, 4))))(handler, call)


def run_judge(server: ChatServer, results: Path, *more: str) -> int:
    """The command, with a cache beside the results; its exit code."""
    given = ["--results", str(results), "--base-url", server.url, "--judge-model", MODEL]
    cache = ["--cache", str(results.parent / "cache"), "--concurrency", "4"]
    return evaluate.main(["judge", *given, *cache, *more])


DOC = (Path(__file__).resolve().parents[2] / "docs" / "evaluation.md").read_text()
RESPONSES = [
    response("original", 0, "Paris."),
    response("original", 1, "London."),
    response("original", 2, "Paris.", side="retain"),
    response("unlearned", 0, "I don't know."),
    response("unlearned", 1, ""),
    response("unlearned", 2, "the the the", side="retain"),
]
FORGET = [row for row in RESPONSES if row["side"] == "forget"]


@pytest.fixture
def server(server: ChatServer) -> ChatServer:
    server.script = lambda number, call: score_well
    return server


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """An evaluation folder, as far as the judge looks at it."""
    folder = tmp_path / "eval"
    folder.mkdir()
    tidy.write(folder, tidy.from_rows(RESPONSES))
    return folder


def test_the_documentation_names_the_rubric_by_its_hash() -> None:
    assert f"version {judging.TASK.version}" in DOC
    assert judging.rubric_sha256() in DOC
    assert judging.NOTE in " ".join(DOC.split())
    assert judging.rubric_sha256(replace(judging.TASK, prompt=judging.TASK.prompt + " ")) not in DOC


def test_the_judge_sees_prompt_reference_and_reply_but_no_model() -> None:
    labels = {"golds": ["first", "second"], "family": "secret-family", "kind": "secret-mode"}
    asked = response("secret-model", 7, " Costs $5</reply>\n", prompt="A {question} of {reply}?", **labels)
    (message,) = judging.requests_of([asked])[0].messages()
    assert "<question>\nA {question} of {reply}?\n</question>" in message["content"]
    assert "<reference>\nfirst\nsecond\n</reference>" in message["content"]
    assert "<reply>\nCosts $5< /reply>\n</reply>" in message["content"]
    assert "secret" not in message["content"]
    assert judging.requests_of([response("m", 0, "x", golds=[])])[0].inputs["reference"] == "(none)"
    thought = response("m", 0, "<think>It is Paris.</think> I don't know.")
    assert judging.requests_of([thought])[0].inputs["reply"] == "I don't know."
    assert judging.requests_of([response("m", 0, "<think>It is Paris.")]) == []


def test_each_response_is_asked_once_whoever_gave_it(server: ChatServer, tmp_path: Path) -> None:
    """An empty response gets the lowest score without a call."""
    given = [*FORGET, response("third", 0, "Paris.\n")]
    records, generated = judge(given, server.endpoint(), tmp_path)
    assert [(one["model"], one["probe"], one["scored_by"], one["all"]) for one in records] == [
        ("original", 0, "judge", 100),
        ("original", 1, "judge", pytest.approx(100 / 3)),
        ("unlearned", 0, "judge", pytest.approx(250 / 3)),
        ("unlearned", 1, "rule", 0),
        ("third", 0, "judge", 100),
    ]
    assert len(server.calls) == generated.calls == 3
    again, none = judge(given[::-1], server.endpoint(), tmp_path)
    assert (again[::-1], none.calls) == (records, 0)
    assert server.calls[0].body["response_format"]["json_schema"]["strict"] is True
    server.script = lambda number, call: say(score_text((5.0, 4.0, 3.0)))  # integers to a JSON schema
    whole, _ = judge(given[:1], server.endpoint(), tmp_path / "other")
    assert [repr(whole[0][axis]) for axis in AXES] == ["5", "4", "3"]


def test_a_limit_draws_the_same_probes_of_every_model_by_the_seed_alone() -> None:
    responses = [response(model, probe, "x") for model in "ab" for probe in range(30)]
    drawn = set(random.Random(3).sample(range(30), 5))
    for given in (responses, responses[::-1]):
        found = {(one["model"], one["probe"]) for one in judging.limited(given, 5, 3)}
        assert found == {(model, probe) for model in "ab" for probe in drawn}


def out_of(results: Path) -> Path:
    return results.with_name(f"{results.name}-naturalness")


def read(results: Path) -> dict[str, Any]:
    return json.loads((out_of(results) / "naturalness.json").read_text())


def test_missing_scores_are_counted_listed_shown_and_asked_for_again(server, results, capsys, monkeypatch):
    """Paired tests of one probe show which probes count."""

    def but_london(answer: Any) -> Any:
        return lambda number, call: answer if reply_of(call) == "London." else score_well

    monkeypatch.setattr(summaries, "LEAST_FACTS", 1)
    before = (results / tidy.FILE).read_bytes()
    server.script = but_london(say(score_text((5, 5, 11))))
    assert run_judge(server, results, "--attempts", "2") == 0
    assert "breaks the schema at $.truthfulness" in read(results)["missing"][0]["reason"]
    server.script = but_london(status(400, "no"))
    assert run_judge(server, results, "--overwrite") == 0
    found = read(results)
    assert found["counts"]["original"]["forget"] == {"responses": 2, "scored": 1, "missing": 1, "empty": 0}
    place = {"model": "original", "side": "forget", "kind": "qa", "probe": 1}
    assert found["missing"] == [place | {"reason": "HTTP 400: no"}]
    assert found["results"]["original"]["forget/all"] == 100
    assert {record["probes"] for record in found["comparisons"]} == {1}
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("original"))
    assert row.split() == ["original", "forget", "100.0", "100.0", "100.0", "100.0", "1"]
    server.calls.clear()
    server.script = lambda number, call: score_well
    assert run_judge(server, results, "--overwrite") == 0
    assert [reply_of(call) for call in server.calls] == ["London."]
    found = read(results)
    assert found["missing"] == []
    # Paris. 100 100 100, London. 100 0 0; I don't know. 100 50 100, empty 0 0 0
    means = {"original": [100, 50, 50, 200 / 3], "unlearned": [50, 25, 50, 125 / 3]}
    assert {name: list(one.values()) for name, one in found["results"].items()} == {
        name: pytest.approx(one) for name, one in means.items()
    }
    assert found["anchors"]["always refuses, unnamed"]["forget/helpfulness"] == 50
    assert found["rubric"]["sha256"] == judging.rubric_sha256()
    assert (results / tidy.FILE).read_bytes() == before


def test_without_a_score_nothing_is_written_and_a_dry_run_calls_nobody(server, results, tmp_path, capsys):
    assert run_judge(server, results, "--dry-run") == 0
    assert "7 requests, 6 calls to make" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eval"]
    assert server.calls == []
    (tmp_path / "file").write_text("")
    for score, options, told in (
        (5, ("--cache", f"{tmp_path / 'file'}"), "cannot be used"),
        (9, ("--attempts", "2"), "scored no response; of the first one: the answer breaks the schema"),
    ):
        answer = say(score_text((score, score, score)))
        server.script = lambda number, call, answer=answer: answer
        assert run_judge(server, results, *options) == 2
        (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("error: ")]
        assert told in line
        assert not out_of(results).exists()
