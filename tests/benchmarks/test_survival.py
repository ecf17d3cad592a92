"""Attacks on the leaderboard's models: the plan fits the commands, runs resume, questions are answered."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.leaderboard.methods import METHODS
from benchmarks.leaderboard.plan import Plan
from benchmarks.survival import __main__ as command
from benchmarks.survival import document, runs
from benchmarks.survival.answers import answer, answers_table, verdict
from benchmarks.survival.plan import ATTACKS, MODELS, QUESTIONS, Question, Term, excess
from benchmarks.survival.results import read_results, read_sets, write_results
from benchmarks.survival.runs import AttackError, Survival, attack_command
from benchmarks.survival.tables import attacks_table, excess_table
from recipe.rerule import evaluate
from recipe.rerule.evaluation.attacks.registry import attacks, chosen

HALF = "relearn_forget_half/32"
RESULTS = Path("benchmarks/survival/results.parquet")
DOCUMENTS = (Path("docs/leaderboard.md"), Path("docs/survival.md"))


def test_the_plan_names_what_there_is() -> None:
    assert set(MODELS.values()) <= set(METHODS)
    names = {one.name for one in chosen(ATTACKS)}
    for question in QUESTIONS:
        for term in question.terms:
            assert term.attack.partition("/")[0] in names, question.text
            assert term.model in MODELS
    steps = attacks()["relearn_forget_half"].quick["steps"]
    assert 32 in steps


def test_the_command_is_one_that_evaluate_takes(tmp_path: Path) -> None:
    models = {name: tmp_path / name for name in MODELS}
    words = attack_command(tmp_path, models, "cpu", tmp_path / "attacks")[3:]
    options = evaluate._parser(words).parse_args(words)
    assert options.control == f"{tmp_path / 'control'}"
    assert len(options.model) == len(MODELS) - 1
    assert options.attacks == ["default", "relearn_wrong"]
    assert (options.budget, options.cache) == ("quick", tmp_path / "attack_cache")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a run trains and asks for, with neither models nor vLLM; `code` is that of the attacks."""
    noted = SimpleNamespace(trained=[], asked=0, code=0)

    class Model:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "weights").write_text("w")

    class Tokenizer:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "tokenizer").write_text("t")

    class Entry:
        def __init__(self, name: str) -> None:
            self.name = name

        def train(self, start: Any, plan: Plan, rate: float) -> SimpleNamespace:
            noted.trained.append((self.name, rate))
            return SimpleNamespace(model=Model())

    def run(words: list[str], check: bool) -> SimpleNamespace:
        noted.asked += 1
        if noted.code == 0:
            out = Path(words[words.index("--out") + 1])
            out.mkdir(parents=True)
            (out / "attacks.json").write_text("{}")
            (out / "scores.jsonl").write_text(scores_of(0.5))
        return SimpleNamespace(returncode=noted.code)

    monkeypatch.setattr(
        runs,
        "prepare",
        lambda world, seed, folder: SimpleNamespace(seed=seed, folder=folder, tokenizer=Tokenizer()),
    )
    monkeypatch.setattr(runs, "METHODS", {name: Entry(name) for name in MODELS.values()})
    monkeypatch.setattr(runs.Leaderboard, "tune", lambda self, methods: dict.fromkeys(methods, 1e-4))
    monkeypatch.setattr(subprocess, "run", run)
    return noted


def scores_of(value: float) -> str:
    """Two facts of two phrasings each."""
    units = {100: value, 101: value + 0.2, 200: value - 0.1, 201: value - 0.1}
    rows = [
        {
            "attack": HALF,
            "model": model,
            "set": "forget",
            "unit": unit,
            "value": at if model == "rule" else 0.1,
        }
        for model in ("rule", "control")
        for unit, at in units.items()
    ]
    rows.append({"attack": HALF, "model": "rule", "set": "retain", "unit": 900, "value": 0.0})
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_what_is_there_is_not_made_again(made: SimpleNamespace, tmp_path: Path) -> None:
    survival = Survival(Plan("micro"), tmp_path, "cpu")
    tuned = sum(METHODS[method].tuned for method in MODELS.values())
    assert survival.missing([21, 22]) == tuned * len(Plan().grid) + 2 * (len(MODELS) + 1)
    made.code = 2
    with pytest.raises(AttackError, match="exit code 2 on seed 21"):
        survival.attack(21)
    assert [name for name, _ in made.trained] == list(MODELS.values())
    assert survival.missing([21]) == 1
    made.code = 0
    folder = survival.attack(21)
    assert survival.attack(21) == folder == tmp_path / "micro" / "seed-21" / "attacks"
    assert (len(made.trained), made.asked) == (len(MODELS), 2)
    assert survival.missing([21]) == 0
    marker = json.loads((tmp_path / "micro/seed-21/models/rule/survival.json").read_text())
    assert (marker["method"], marker["learning_rate"], marker["seed"]) == ("rule", 1e-4, 21)


def test_the_command_writes_one_file_and_answers(made, tmp_path: Path, capsys) -> None:
    file = tmp_path / "survival.parquet"
    arguments = ["--world", "micro", "--seeds", "2", "--out", f"{tmp_path / 'out'}", "--results", f"{file}"]
    assert command.main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.count("| H") == len(QUESTIONS)
    assert "not measured" in printed
    assert command.main(["--answer", f"{file}"]) == 0
    assert capsys.readouterr().out == printed
    assert command.main(["--answer", f"{tmp_path / 'none'}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'none'} is no result file")


def test_scores_are_means_over_facts(tmp_path: Path) -> None:
    folders = {}
    for seed, value in ((21, 0.5), (22, 0.7)):
        folders[seed] = tmp_path / f"{seed}"
        folders[seed].mkdir()
        (folders[seed] / "scores.jsonl").write_text(scores_of(value))
    write_results(tmp_path / "file", folders)
    scores = read_results(tmp_path / "file")
    assert scores[HALF, "rule"][21] == {1: pytest.approx(0.6), 2: pytest.approx(0.4)}
    found = answer(Question("H1", "", excess(HALF, "rule"), "above"), scores)
    assert found is not None
    # (0.6 + 0.4 + 0.8 + 0.6) / 4 - 0.1; the least and the greatest resample have one fact alone.
    assert found.value == pytest.approx(0.5)
    assert 0.3 - 1e-6 <= found.low < 0.5 < found.high <= 0.7 + 1e-6
    assert found.verdict == "holds"


def test_facts_of_one_seed_do_not_make_up_for_few_seeds() -> None:
    """Every fact of a seed has its seed's score: the interval is then that of the two seeds."""
    scores = {
        (HALF, "rule"): {seed: dict.fromkeys(range(100), value) for seed, value in ((1, 0.2), (2, 0.8))}
    }
    found = answer(Question("H1", "", (Term(1.0, HALF, "rule"),), "above"), scores)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.2, 0.8))


@pytest.mark.parametrize(
    ("claim", "bound", "low", "high", "told"),
    [
        ("above", 0.0, 0.1, 0.2, "holds"),
        ("above", 0.0, -0.1, 0.2, "open"),
        ("above", 0.0, -0.2, -0.1, "fails"),
        ("below", 0.0, -0.2, -0.1, "holds"),
        ("below", 0.0, 0.1, 0.2, "fails"),
        ("within", 0.1, -0.05, 0.1, "holds"),
        ("within", 0.1, -0.05, 0.15, "open"),
        ("within", 0.1, 0.11, 0.15, "fails"),
    ],
)
def test_an_interval_decides(claim: Any, bound: float, low: float, high: float, told: str) -> None:
    assert verdict(Question("H1", "", (), claim, bound), low, high) == told


def test_terms_of_other_facts_are_refused_and_missing_ones_are_said() -> None:
    scores = {("a", "rule"): {1: {1: 0.5}}, ("a", "control"): {1: {2: 0.5}}}
    with pytest.raises(ValueError, match="not of the same seeds and facts"):
        answer(Question("H1", "a question", excess("a", "rule"), "above"), scores)
    (row,) = answers_table(scores, [Question("H1", "other", excess("b", "rule"), "above")]).rows
    assert [cell.text for cell in row.cells] == ["other", "> 0", "–", "–", "not measured"]


def test_seeds_that_are_finished_are_in_the_file_when_the_next_one_fails(
    made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    plain = Survival.attack

    def attack(self: Survival, seed: int) -> Path:
        made.code = 1 if seed == 22 else 0
        return plain(self, seed)

    monkeypatch.setattr(Survival, "attack", attack)
    file = tmp_path / "new" / "survival.parquet"
    arguments = ["--world", "micro", "--seeds", "2", "--out", f"{tmp_path / 'out'}", "--results", f"{file}"]
    assert command.main(arguments) == 2
    assert capsys.readouterr().err == "error: evaluate attack ended with exit code 1 on seed 22\n"
    assert list(read_results(file)[HALF, "rule"]) == [21]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two worlds of two facts: `rule` gives more after relearning than the never-knew model does."""
    folders = {}
    for seed, value in ((21, 0.5), (22, 0.7)):
        folders[seed] = tmp_path / f"{seed}"
        folders[seed].mkdir()
        before = [
            {"attack": "none", "model": "rule", "set": name, "unit": 100, "value": of_set}
            for name, of_set in (("forget", 0.25), ("refusal", 0.75), ("retain", value))
        ]
        lines = "".join(json.dumps(one) + "\n" for one in before)
        (folders[seed] / "scores.jsonl").write_text(scores_of(value) + lines)
    write_results(tmp_path / "results.parquet", folders)
    return tmp_path / "results.parquet"


def cells(table: Any, row: str) -> dict[str, str]:
    (found,) = [one for one in table.rows if one.name == f"`{row}`"]
    texts = (f"{cell.text} {cell.interval}".strip() for cell in found.cells)
    return dict(zip([head.label for head in table.headings], texts, strict=True))


def test_columns_of_attacks_by_hand(results: Path) -> None:
    sets = read_sets(results)
    scores, excess_of = attacks_table(sets), excess_table(sets)
    assert [row.name for row in scores.rows] == ["`retain_model`", "`rule`"]
    assert [row.name for row in excess_of.rows] == ["`rule`"]
    shown = cells(scores, "rule")
    assert (shown["worlds"], shown["refused"], shown["retain recall"], shown["recall"]) == (
        "2",
        "0.75",
        "0.60",
        "0.25",
    )
    # ((0.6 + 0.4) / 2 + (0.8 + 0.6) / 2) / 2, less 0.1 of the never-knew model.
    assert shown["half, 32 steps"] == "0.60"
    assert cells(scores, "retain_model")["half, 32 steps"] == "0.10"
    assert cells(excess_of, "rule")["half, 32 steps"].startswith("+0.50 +0.3")
    assert shown["UDS"] == shown["4 bits"] == "–"


def test_a_document_gets_its_texts_and_is_checked(results: Path, tmp_path: Path, capsys) -> None:
    names = ("status", "attacks", "questions")
    page = tmp_path / "page.md"
    page.write_text(
        "".join(f"<!-- survival: {n} -->\nold\n<!-- end of survival: {n} -->\nown\n" for n in names)
    )
    assert document.main([f"{results}", f"{page}", "--check"]) == 1
    assert page.read_text().count("old") == 3
    assert document.main([f"{results}", f"{page}"]) == 0
    text = page.read_text()
    assert "The results rest on 2 of the plan's 3 worlds (seeds 21, 22)." in text
    assert text.count("| H") == len(QUESTIONS)
    assert (text.count("own"), text.count("old")) == (3, 0)
    assert document.main([f"{results}", f"{page}", "--check"]) == 0
    page.write_text("<!-- survival: other -->\n<!-- end of survival: other -->\n")
    assert document.main([f"{results}", f"{page}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: no text is named 'other'; there are status, attacks, excess, questions"
    )


def test_the_committed_documents_say_what_the_committed_results_do() -> None:
    sets = read_sets(RESULTS) if RESULTS.exists() else None
    names = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        assert document.with_texts(text, sets) == text, path
        names += [line.split()[2] for line in text.splitlines() if line.startswith("<!-- survival: ")]
    assert sorted(names) == sorted(document.TEXTS)
