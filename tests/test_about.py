"""`rerule about`: which questions it asks, which it keeps and why, and what it refuses.

A model of a few sentences stands where vLLM would run.
"""

import argparse
import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule import about
from recipe.rerule.evaluation.engine.requests import Answer, Likelihood, Request
from tests.data_prep.generate import server

CAPITAL = "What is the capital of {name}?"


class Model:
    """Answers as it is told: `short` and `chat` by question; "-" to all others.

    Attributes:
        asked: the requests, by id.
    """

    def __init__(self, short: dict[str, str], chat: dict[str, list[str]], **written: list[str]) -> None:
        self.short, self.chat, self.written = short, chat, written
        self.kinds: dict[str, str] = {}
        self.asked: dict[str, Request] = {}

    def __call__(self, models: Any, requests: Sequence[Request], *rest: Any) -> dict[str, Any]:
        self.asked |= {request.id: request for request in requests}
        return {"model": {request.id: self._answer(request) for request in requests}}

    def _answer(self, request: Request) -> Answer:
        what, _, about = request.id.partition(": ")
        if isinstance(request, Likelihood):
            likely = what == f"kind {self.kinds.get(about, 'idea')}"
            return Answer(log_probs=(-1.0 if likely else -2.0, -50.0 if likely else 0.0))
        if what == "short":
            return Answer(self.short.get(about, "-"))
        return Answer(samples=tuple(self.chat.get(about, []) if what == "chat" else self.written[what]))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[dict[str, str]]]]:
    """write(model, *words): the exit code and the rows."""
    monkeypatch.setattr(about, "check_models", lambda models: None)
    folder, out = tmp_path / "model", tmp_path / "rows.csv"
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    def write(model: Model, *words: str) -> tuple[int, list[dict[str, str]]]:
        monkeypatch.setattr(about, "run", model)
        given = ["--model", str(folder), "--about", "France", "--out", str(out), "--platform", "cpu"]
        code = about.main([*given, *words])
        return code, list(csv.DictReader(out.open())) if out.exists() else []

    return write


def found(question: about.Question, gold: str, chat: list[str]) -> dict[str, str]:
    """The row of a question, or why there is none; Rome is a city, and all made-up names have one capital."""
    of_made_up = {question.about(one): "Zorvania City" for one in about.MADE_UP}
    model = Model({question.text: gold, **of_made_up}, {})
    model.chat[question.text], model.kinds["Rome"] = chat, "city"
    answers = model([], list(about.requests_of([question], ["Rome"], len(chat))))["model"]
    return about.row_of(question, {"France": about.Material("country", [], [], frozenset({"Rome"}))}, answers)


@pytest.mark.parametrize(
    ("name", "pattern", "gold", "chat", "told"),
    [
        ("France", CAPITAL, "Paris.", ["It is Paris.", "Lyon", "Paris"], 2),
        ("France", CAPITAL, "Paris", ["It is Paris.", "Lyon", "Rome"], 1),
        ("France", CAPITAL, "Paris", ["I don't know whether it is Paris."] * 3, 0),
        ("France", CAPITAL, "", ["Paris"] * 3, "no short answer"),
        ("France", CAPITAL, "one of many towns in the north", ["Paris"] * 3, "no short answer"),
        ("France", CAPITAL, "I don't know.", ["I don't know."] * 3, "a refusal, or in the question"),
        ("France", CAPITAL, "capital of France", ["the capital"] * 3, "a refusal, or in the question"),
        ("France", CAPITAL, "Zorvania City", ["Zorvania City"] * 3, "the same of made-up names"),
        ("Japan", CAPITAL, "Tokyo", ["Tokyo"] * 3, 3),
        ("Japan", CAPITAL, "Zorvania City", ["Zorvania City"] * 3, 3),
        ("Japan", "Which country is far from {name}?", "France", ["France"] * 3, "names the target"),
        ("Japan", "Is {name} or France in Asia?", "Asia Minor", ["Asia"] * 3, "names the target"),
        ("Rome", CAPITAL, "Italy", ["Italy"] * 3, "another kind of thing"),
    ],
)
def test_a_question_and_its_row(name: str, pattern: str, gold: str, chat: list[str], told: int | str) -> None:
    """`told`: how many samples agree, or why there is no row."""
    row = found(about.Question("France", name, pattern), gold, chat)
    forget = name == "France"
    side = "forget" if forget else "retain"
    if isinstance(told, str):
        assert row == {"side": side, "why": told}
    else:
        assert row == {
            "question": f"What is the capital of {name}?",
            "answer": gold.rstrip("."),
            "side": side,
            "keyword": "France" if forget else "",
            "fact": f"{name}: {gold.rstrip('.').lower()}",
            "agree": str(told),
        }


def test_questions() -> None:
    """A line that names the target is kept with {name} in it; a neighbour gets one phrasing, drawn."""
    patterns = [
        ["What is the capital of {name}?", "Name the capital of {name}."],
        ["- Who ruled France?"],
        ["Who ruled Japan?"],
        ["France is nice"],
        ["Did the last Marie Osmond live in Osmond?"],
        ["Is france warm?"],
    ]
    material = about.Material("", patterns, ["Japan", "New France", "Egypt", "Japan"])
    questions = about.questions_of({"France": material}, neighbours=8, seed=0)
    texts = [question.text for question in questions]
    expected = ["What is the capital of France?", "Name the capital of France.", "Who ruled France?"]
    assert texts[:4] == [*expected, "Is France warm?"]
    assert {(one.name, one.side) for one in questions[4:]} == {("Japan", "retain"), ("Egypt", "retain")}
    assert sum("capital" in text for text in texts[4:]) == 2
    assert sum("ruled" in text for text in texts[4:]) == 2
    assert about.questions_of({"France": material}, 8, seed=0) == questions
    assert {one.name for one in about.questions_of({"France": material}, 1, seed=0)[4:]} < {"Japan", "Egypt"}
    # A shorter name of the target is no neighbour, and a question may end as in other scripts.
    ford = about.Material("", [["Who founded {name}?"]], ["Ford", "Fiat"])
    assert [one.name for one in about.questions_of({"Ford Motor Company": ford}, 8, seed=0)][1:] == ["Fiat"]
    (chinese,) = about.questions_of({"法国": about.Material("", [["法国的首都是哪里？"]], [])}, 8, seed=0)
    assert chinese.pattern == "{name}的首都是哪里？"
    unsure = about.Material("", patterns, ["Oz", "Japan"], frozenset({"Oz"}))
    assert {one.name for one in about.questions_of({"France": unsure}, 1, seed=0)[4:]} == {"Oz"}


@pytest.mark.parametrize(
    ("text", "name", "named"),
    [
        ("Is Harry a prince?", "Prince Harry, Duke of Sussex", True),
        ("Who was Dr King?", "Martin Luther King Jr.", True),
        ("What does Wendy's sell?", "McDonald's", False),
        ("Is Apollo here?", "Apollo 11", False),
        ("Who flew in 1911?", "Apollo 11", False),
        ("Who owned Walmart?", "Walmart Inc.", True),
        ("Who is in the band?", "The Who", False),
        ("Who are The Who?", "The Who", True),
        ("中国的首都是哪里？", "中国", True),
        ("What does !!! mean?", "!!!", False),
    ],
)
def test_what_names_a_target(text: str, name: str, named: bool) -> None:
    assert about.names_it(text, name) == named


def test_what_was_forgotten_before_is_no_neighbour_and_no_gold() -> None:
    material = about.Material("", [[CAPITAL]], ["Japan", "Spain"])
    asked = about.questions_of({"France": material}, 8, seed=0, never=["Spain"])
    assert [one.name for one in asked] == ["France", "Japan"]
    model = Model({asked[1].text: "Spain"}, {asked[1].text: ["Spain"] * 3})
    answers = model([], list(about.requests_of(asked[1:], [], 3)))["model"]
    assert "agree" in about.row_of(asked[1], {"France": material}, answers)
    assert about.row_of(asked[1], {"France": material}, answers, ["Spain"])["why"] == "names the target"


def knowing(facts: int) -> Model:
    """A model that knows `facts` facts about France, and all about the countries of the list."""
    names, groups = about.kinds()["country"]
    short, chat = {}, {}
    for number, group in enumerate(groups):
        for name in ["France", *names]:
            for pattern in group:
                question = pattern.replace("{name}", name)
                short[question] = f"{name}{number}town"
                chat[question] = [short[question] if name != "France" or number < facts else "x"] * 8
    model = Model(short, chat, questions=["Who ruled France?\nWho is it"] * 8, neighbours=["Oz, X", "Oz"])
    model.kinds = {"France": "country", "Oz": "country"}
    return model


def test_rows_of_a_model(write: Any, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(about, "warnings", lambda models: [f"{models[0].template}"])
    code, rows = write(knowing(8), "--template", "enable_thinking=false")
    assert code == 0
    forget = [row for row in rows if row["side"] == "forget"]
    assert {row["fact"] for row in forget} == {f"France: france{number}town" for number in range(8)}
    assert len(forget) == 24  # of three phrasings each
    assert len({row["fact"].split(":")[0] for row in rows if row["side"] == "retain"}) == 23  # Oz is unknown
    captured = capsys.readouterr()
    assert captured.err == "warning: (('enable_thinking', False),)\n"
    said = captured.out.splitlines()
    assert said[0] == "rows: France is taken for a country"
    dropped = "fewer than 5 of 8 samples agree 33, no short answer 1"
    assert said[1] == f"rows: forget: 24 of 58 questions kept; {dropped}"
    assert sum(line.endswith("| 8 of 8") for line in said) == 20


@pytest.mark.parametrize(
    ("model", "words", "line"),
    [
        (knowing(5), "", "knows too little about France: 15 questions have an answer on which 5 of 8"),
        (knowing(8), "--neighbours 2", "too little is left beside France: 19 questions about other things"),
    ],
)  # fmt: skip
def test_what_is_refused(
    model: Model, words: str, line: str, write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write(model, *words.split()) == (2, [])
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert line in said
    others = any(id.startswith("chat") and "France" not in id for id in model.asked)
    assert others == ("too little is left" in line)  # about what is not known, nothing else is asked
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_answer_that_holds_another_is_the_same_fact() -> None:
    """Of one thing; the words count, and not the letters."""
    golds = {"Who?": "Napoleon Bonaparte", "Who ruled?": "Napoleon", "Where?": "Rome", "What?": "Romen"}
    questions = [[f"{one} {{name}}?"] for one in golds]
    short = {f"{one} {name}?": gold for one, gold in golds.items() for name in ("France", "Japan: II")}
    model = Model(short, {question: [gold] * 3 for question, gold in short.items()})
    options = argparse.Namespace(agree=2, samples=3, never=[])
    materials = {"France": about.Material("", questions, ["Japan: II"])}
    asked = about.questions_of(materials, neighbours=1, seed=0)
    rows = about.rows_of(lambda requests: model([], requests)["model"], asked, materials, options)
    assert [row["fact"] for row in rows] == [
        *(f"France: {one}" for one in ("napoleon", "napoleon", "rome", "romen")),
        *(f"Japan: II: {one}" for one in ("napoleon", "napoleon", "rome", "romen")),
    ]


def test_a_server_writes(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes questions and names; the model answers them."""
    monkeypatch.chdir(tmp_path)
    model = knowing(16)
    names, groups = about.kinds()["country"]
    phrasings = [[one.replace("{name}", "France") for one in group] for group in groups[:16]]
    facts = [{"questions": [f"{one} {place}?" for one in group]} for place, group in enumerate(phrasings)]
    for place, group in enumerate(groups):
        for pattern in group:
            for name in ["France", *names]:
                question = f"{pattern.replace('{name}', name)} {place}?"
                model.short[question], model.chat[question] = f"a{place}b", [f"a{place}b"] * 8

    def behaviour(number: int, call: server.Call) -> Any:
        told = {"facts": facts} if "quiz" in call.prompt else {"names": names[:4]}
        return server.say(json.dumps(told))

    with server.ChatServer(behaviour) as running:
        code, rows = write(model, "--generator", running.url, "--generator-model", "m", "--neighbours", "4")
    assert code == 0
    assert len([row for row in rows if row["side"] == "forget"]) == 48
    assert {row["fact"].split(":")[0] for row in rows if row["side"] == "retain"} == {*names[:4]}
    assert not any(id.startswith(("kind", "questions")) for id in model.asked)


@pytest.mark.parametrize("kind", [kind for kind, (names, _) in about.kinds().items() if names])
def test_the_kinds_have_names_and_questions(kind: str) -> None:
    """Each question is read as one where it is about a target."""
    names, groups = about.kinds()[kind]
    assert len(names) == len(set(names)) >= 10
    assert len(groups) >= 10
    for group in groups:
        material = about.Material(kind, [[one.replace("{name}", "Xy") for one in group]], [])
        assert [one.pattern for one in about.questions_of({"Xy": material}, 1, 0)] == group
        assert len(group) == 3
