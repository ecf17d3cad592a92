"""`evaluate judge` as a whole, against a local server."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_prep.generate import run
from recipe.rerule.evaluation.naturalness.folder import limited
from recipe.rerule.evaluation.naturalness.rubric import NOTE, rubric_sha256
from tests.data_prep.generate.server import KEY, MODEL, ChatServer, say, status
from tests.evaluation.naturalness.server import (
    evaluation,
    reply_of,
    response,
    run_judge,
    score_text,
    score_well,
)

NAMED, UNNAMED = "always refuses, naming the target", "always refuses, unnamed"
RESPONSES = [
    response("original", 0, "Paris."),
    response("original", 1, "London."),
    response("original", 2, "Paris.", section="retain"),
    response("unlearned", 0, "I don't know."),
    response("unlearned", 1, ""),
    response("unlearned", 2, "the the the", section="retain"),
]


@pytest.fixture(autouse=True)
def _endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(run, "FIRST_WAIT", 0.01)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda number, call: score_well) as server:
        yield server


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return evaluation(tmp_path / "eval", RESPONSES)


def summary(out: Path) -> dict[str, Any]:
    return json.loads((out / "naturalness.json").read_text())


def test_means_of_the_forget_side(server: ChatServer, results: Path, tmp_path: Path) -> None:
    """Paris. 100 100 100, London. 100 0 0; I don't know. 100 50 100, empty 0 0 0."""
    assert run_judge(server, results) == 0
    found = summary(tmp_path / "eval-naturalness")
    assert found["results"] == {
        "original": {
            "forget/readability": 100, "forget/helpfulness": 50, "forget/truthfulness": 50,
            "forget/all": pytest.approx(200 / 3),
        },
        "unlearned": {
            "forget/readability": 50, "forget/helpfulness": 25, "forget/truthfulness": 50,
            "forget/all": pytest.approx(125 / 3),
        },
    }  # fmt: skip
    assert found["counts"]["unlearned"] == {"forget": {"responses": 2, "scored": 2, "missing": 0, "empty": 1}}
    assert found["missing"] == []


def test_constant_refusals_are_scored_beside(server: ChatServer, results: Path, tmp_path: Path) -> None:
    """The unnamed one is a reply that the test's judge knows: 5, 3, 5."""
    run_judge(server, results)
    found = summary(tmp_path / "eval-naturalness")
    assert list(found["anchors"]) == [NAMED, UNNAMED]
    assert found["anchors"][UNNAMED]["forget/helpfulness"] == 50
    assert "I'm not certain about Ada Quill." in {reply_of(call) for call in server.calls}
    assert found["counts"][NAMED]["forget"]["responses"] == 2


def test_it_says_where_its_numbers_come_from(server: ChatServer, results: Path, tmp_path: Path) -> None:
    run_judge(server, results)
    found = summary(tmp_path / "eval-naturalness")
    assert found["note"] == NOTE
    assert found["rubric"]["sha256"] == rubric_sha256()
    assert found["judge"] == {
        "model": MODEL, "temperature": 0, "seed": 0, "max_tokens": 1024, "calls": 6, "from_cache": 0,
        "prompt_tokens": 42, "completion_tokens": 18, "cost": None,
    }  # fmt: skip
    assert found["sections"] == ["forget"]


@pytest.mark.usefixtures("any_number_of_probes")
def test_intervals_and_a_paired_comparison(server: ChatServer, results: Path, tmp_path: Path) -> None:
    run_judge(server, results)
    found = summary(tmp_path / "eval-naturalness")
    assert found["intervals"]["original"]["forget/readability"] == [100, 100]
    assert found["intervals"]["original"]["forget/helpfulness"] == [0, 100]
    by_metric = {record["metric"]: record for record in found["comparisons"]}
    assert (by_metric["forget/all"]["a"], by_metric["forget/all"]["b"]) == ("original", "unlearned")
    assert by_metric["forget/helpfulness"]["difference"] == 25
    assert by_metric["forget/helpfulness"]["probes"] == 2
    assert by_metric["forget/helpfulness"]["p_value"] == 1  # they differ on one probe of two


def test_more_sections(server: ChatServer, results: Path, tmp_path: Path) -> None:
    run_judge(server, results, "--sections", "forget", "retain", "--no-anchors")
    found = summary(tmp_path / "eval-naturalness")
    assert found["results"]["unlearned"]["retain/all"] == 0
    assert found["results"]["original"]["retain/all"] == 100
    assert found["anchors"] == {}


def test_records_say_which_response_they_score(server: ChatServer, results: Path, tmp_path: Path) -> None:
    run_judge(server, results)
    lines = (tmp_path / "eval-naturalness" / "naturalness.jsonl").read_text().splitlines()
    assert len(lines) == 4 + 2 * 2
    assert json.loads(lines[0]) == {
        "model": "original", "index": 0, "section": "forget", "mode": "qa", "family": "direct",
        "subject": "Ada Quill", "readability": 5, "helpfulness": 5, "truthfulness": 5, "all": 100,
        "scored_by": "judge", "reason": "",
    }  # fmt: skip


@pytest.mark.usefixtures("any_number_of_probes")
def test_missing_scores_are_counted_listed_and_shown(
    server: ChatServer, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = lambda number, call: status(400, "no") if reply_of(call) == "London." else score_well
    assert run_judge(server, results) == 0
    found = summary(tmp_path / "eval-naturalness")
    assert found["counts"]["original"]["forget"] == {"responses": 2, "scored": 1, "missing": 1, "empty": 0}
    assert found["missing"] == [
        {"model": "original", "section": "forget", "mode": "qa", "index": 1, "reason": "HTTP 400: no"}
    ]
    assert found["results"]["original"]["forget/all"] == 100
    assert {record["probes"] for record in found["comparisons"]} == {1}
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("original"))
    assert row.split() == ["original", "forget", "100.0", "100.0", "100.0", "100.0", "1"]


def test_a_model_without_any_score_has_no_numbers_and_is_shown(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = evaluation(tmp_path / "eval", [response("a", 0, "Paris."), response("b", 0, "London.")])
    server.script = lambda number, call: status(400, "no") if reply_of(call) == "London." else score_well
    assert run_judge(server, results, "--no-anchors") == 0
    found = summary(tmp_path / "eval-naturalness")
    assert found["results"]["b"] == found["intervals"]["b"] == {}
    assert found["comparisons"] == []
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("b "))
    assert row.split() == ["b", "forget", "–", "–", "–", "–", "1"]


def test_started_again_it_asks_only_for_what_is_missing(
    server: ChatServer, results: Path, tmp_path: Path
) -> None:
    server.script = lambda number, call: status(400, "no") if reply_of(call) == "London." else score_well
    run_judge(server, results)
    server.calls.clear()
    server.script = lambda number, call: score_well
    assert run_judge(server, results, "--overwrite") == 0
    assert [reply_of(call) for call in server.calls] == ["London."]
    assert summary(tmp_path / "eval-naturalness")["missing"] == []


def test_a_dry_run_says_what_it_costs_and_calls_nobody(
    server: ChatServer, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_judge(server, results, "--dry-run", "--price-in", "1", "--price-out", "2") == 0
    assert "7 requests, 6 calls to make" in capsys.readouterr().out
    assert server.calls == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eval"]


def test_the_cost_is_said_before_the_calls(
    server: ChatServer, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_judge(server, results)
    out = capsys.readouterr().out
    assert out.index("6 calls to make") < out.index("original") < out.index("cannot be compared with")


def test_a_limit_takes_the_same_probes_of_every_model(server: ChatServer, tmp_path: Path) -> None:
    responses = [response(model, index, f"{model} {index}") for model in "ab" for index in range(20)]
    results = evaluation(tmp_path / "eval", responses)
    run_judge(server, results, "--limit", "5", "--no-anchors")
    asked = [reply_of(call).split() for call in server.calls]
    chosen = {model: {index for name, index in asked if name == model} for model in "ab"}
    assert chosen["a"] == chosen["b"]
    assert len(chosen["a"]) == 5
    run_judge(server, results, "--limit", "5", "--no-anchors", "--out", str(tmp_path / "again"))
    assert len(server.calls) == 10


def test_a_limit_draws_by_the_seed_alone() -> None:
    responses = [response("a", index, "x") for index in range(30)]
    drawn = random.Random(3).sample(range(30), 5)
    for given in (responses, responses[::-1]):
        assert {record["index"] for record in limited(given, 5, 3)} == set(drawn)


def test_the_evaluation_folder_stays_as_it_is(server: ChatServer, results: Path) -> None:
    before = {path.name: path.read_bytes() for path in results.iterdir()}
    run_judge(server, results)
    assert {path.name: path.read_bytes() for path in results.iterdir()} == before


def test_earlier_scores_are_not_replaced_unasked(
    server: ChatServer, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_judge(server, results, "--out", str(tmp_path / "scores"))
    count = len(server.calls)
    fresh = ("--cache", str(tmp_path / "fresh"))
    assert run_judge(server, results, "--out", str(tmp_path / "scores"), *fresh) == 2
    assert "scores exists already" in capsys.readouterr().err
    assert run_judge(server, results, "--out", str(results), "--overwrite", *fresh) == 2
    assert f"--out is {results}, which --results reads" in capsys.readouterr().err
    assert len(server.calls) == count


def fails(server: ChatServer, results: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What the command says on standard error, in one line, having written nothing."""
    assert run_judge(server, results, *more) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") or "\nerror: " in error
    assert not results.with_name(f"{results.name}-naturalness").exists()
    return next(line for line in error.splitlines() if line.startswith("error: "))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("{", "responses.jsonl: line 1 is not complete JSON: it is cut off"),
        ("[]", "responses.jsonl:1 is no record"),
        (json.dumps({**RESPONSES[0], "response": None}), "responses.jsonl:1: response is missing or no str"),
        (
            json.dumps({**RESPONSES[0], "golds": [1]}),
            "responses.jsonl:1: golds holds something that is no text",
        ),
        (f"{json.dumps(RESPONSES[0])}\n" * 2, "model original has two responses to probe 0 (forget, qa)"),
        (json.dumps(RESPONSES[2]), "has no response in forget; its sections: retain"),
        ("", "has no response in forget; its sections: none"),
    ],
)
def test_wrong_responses_are_refused(
    server: ChatServer, results: Path, capsys: pytest.CaptureFixture[str], lines: str, message: str
) -> None:
    (results / "responses.jsonl").write_text(lines)
    assert message in fails(server, results, capsys)
    assert server.calls == []


def test_a_folder_without_responses_is_refused(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "responses.jsonl does not exist" in fails(server, tmp_path / "nowhere", capsys)


def test_wrong_options_are_refused(
    server: ChatServer, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--limit is 0" in fails(server, results, capsys, "--limit", "0")
    assert "base URL must look like" in fails(server, results, capsys, "--base-url", "nowhere")
    cache = results.parent / "file"
    cache.write_text("")
    assert "cannot be used" in fails(server, results, capsys, "--cache", str(cache))


def test_a_wrong_key_ends_it_with_one_line_that_does_not_show_it(
    server: ChatServer, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = lambda number, call: status(401, f"bad key {KEY}")
    line = fails(server, results, capsys)
    assert "is the key in OPENAI_API_KEY right" in line
    assert KEY not in line


def test_no_score_at_all_writes_nothing(
    server: ChatServer, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = lambda number, call: say(score_text((9, 9, 9)))
    line = fails(server, results, capsys, "--attempts", "2")
    assert "the judge scored no response; of the first one: the answer breaks the schema" in line
