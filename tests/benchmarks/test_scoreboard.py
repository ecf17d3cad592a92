"""Methods with attacks: the plan fits the commands, worlds are joined, intervals say what is better."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import spearmanr, ttest_rel

from benchmarks.leaderboard import own
from benchmarks.leaderboard.methods import METHODS
from benchmarks.leaderboard.plan import PLAN
from benchmarks.scoreboard import __main__ as command
from benchmarks.scoreboard import document, page, plan, results
from benchmarks.scoreboard.agreement import agreement_table
from benchmarks.scoreboard.comparison import beaten_by, beats, difference, is_better
from benchmarks.scoreboard.plan import FORGET, KEPT, RELEARNING
from benchmarks.scoreboard.results import Results
from benchmarks.scoreboard.runs import scoreboard
from benchmarks.scoreboard.tables import difference_table, front_table, score_table
from benchmarks.study.runs import StudyRun
from recipe.rerule.evaluation.attacks.registry import attacks, chosen
from recipe.rerule.process.progress import Progress
from recipe.rerule.reporting.document import Table

COMMITTED = Path("benchmarks/scoreboard/results")
DOCUMENT = Path("docs/leaderboard.md")
HALF = "relearn_forget_half/8"


def test_the_plan_names_what_there_is() -> None:
    rows = {*plan.METHODS, *plan.REFERENCES.values()}
    assert rows <= set(METHODS)
    assert len(rows) >= 12
    assert max(PLAN.tuning_seed, PLAN.first_seed + 2) < plan.FIRST_SEED
    names = {one.name for one in chosen(plan.ATTACKS)}
    for axis in plan.AXES:
        assert bool(axis.measures) != bool(axis.attack), axis.name
        assert not axis.attack or axis.attack.partition("/")[0] in names
    assert 8 in attacks()["relearn_forget_half"].quick["steps"]


def run_of(method: str, seed: int, forget: float, kept: float, model: str = "m") -> StudyRun:
    final = {
        "forget/recall": forget,
        "retain/recall": kept + 0.1,
        "retain_unseen/recall": kept - 0.1,
        "trained": 4000.0,
        "seconds": 7.0,
    }
    arm = f"{method}@0.0003" if METHODS.get(method) and METHODS[method].tuned else method
    return StudyRun("many", arm, seed, "c", {}, final, {}, model)


FORGOTTEN = {"rule": (0.10, 0.12, 0.11), "po": (0.05, 0.04, 0.06), "ga_gdr": (0.80, 0.75, 0.79)}
KEPT_RECALL = {"rule": (0.80, 0.70, 0.75), "po": (0.80, 0.75, 0.70), "ga_gdr": (0.95, 0.94, 0.96)}
SEEDS = (24, 25, 26)


@pytest.fixture
def found() -> Results:
    """Three worlds of one fact: `po` forgets more than `rule` and keeps as much; `ga_gdr` keeps the most."""
    runs = {
        (method, seed): run_of(method, seed, FORGOTTEN[method][place], KEPT_RECALL[method][place])
        for method in FORGOTTEN
        for place, seed in enumerate(SEEDS)
    }
    leaked = {"rule": 0.5, "po": 0.9, "control": 0.1}
    scores = {
        (HALF, model): {seed: {1: value, 2: value + 0.1} for seed in SEEDS} for model, value in leaked.items()
    }
    return Results(runs, scores)


def test_values_are_means_and_excesses(found: Results) -> None:
    assert found.values("rule", KEPT) == pytest.approx(dict(zip(SEEDS, KEPT_RECALL["rule"], strict=True)))
    assert found.values("po", RELEARNING) == pytest.approx(dict.fromkeys(SEEDS, 0.8))
    assert found.values("ga_gdr", RELEARNING) == {}


def test_a_difference_is_paired_by_world_as_scipys_is(found: Results) -> None:
    for one, other in (("rule", "po"), ("ga_gdr", "rule")):
        expected = ttest_rel(FORGOTTEN[one], FORGOTTEN[other])
        value, low, high = difference(found, one, other, FORGET) or (0, 0, 0)
        interval = expected.confidence_interval(0.95)
        assert (low, high) == pytest.approx((interval.low, interval.high))
        assert value == pytest.approx((interval.low + interval.high) / 2)
    assert is_better(found, "po", "rule", FORGET)
    assert not is_better(found, "rule", "po", FORGET)
    assert is_better(found, "ga_gdr", "po", KEPT)
    assert difference(found, "rule", "none", FORGET) is None


def test_a_method_is_beaten_where_it_is_better_on_neither_number(found: Results) -> None:
    front, methods = (FORGET, KEPT), list(FORGOTTEN)
    assert beats(found, "po", "rule", front)
    assert not beats(found, "po", "ga_gdr", front)
    assert {method: beaten_by(found, method, methods, front) for method in methods} == {
        "rule": ["po"], "po": [], "ga_gdr": [],
    }  # fmt: skip
    rows = {row.name: [cell.text for cell in row.cells] for row in front_table(found).rows}
    assert rows["rule"][0] == "beaten by po"
    assert rows["po"][0] == rows["ga_gdr"][0] == "on the front"


def cells(table: Table, row: str) -> dict[str, str]:
    (of_row,) = [one for one in table.rows if one.name == row]
    return {
        head.label: cell.text + cell.mark for head, cell in zip(table.headings, of_row.cells, strict=True)
    }


def test_rows_by_hand(found: Results) -> None:
    shown = cells(score_table(found), "po")
    assert (shown["worlds"], shown["learning rate"]) == ("3", "0.0003")
    assert (shown["forget recall"], shown["kept recall"]) == ("0.050", "0.750")
    assert (shown["E other facts, 8 steps"], shown["E 4 bits"]) == ("0.800", "–")
    assert (shown["k tokens trained"], shown["k tokens generated"], shown["seconds"]) == ("4", "–", "7")
    assert cells(difference_table(found), "po")["forget recall"] == "-0.060*"
    assert cells(difference_table(found), "po")["kept recall"] == "+0.000"


def test_the_order_of_methods_is_compared_over_those_that_both_have(found: Results) -> None:
    forget = {"rule": 0.3, "po": 0.2, "ga_gdr": 0.1, "npo_gdr": 0.9}
    rerun = Results({(m, 21): run_of(m, 21, value, 0.5) for m, value in forget.items()}, {})
    expected = spearmanr([0.11, 0.05, 0.78], [0.3, 0.2, 0.1]).statistic
    assert cells_of(agreement_table(found, rerun), "forget recall") == ["3", f"{expected:.2f}"]
    assert cells_of(agreement_table(found, rerun), KEPT.label) == [
        "3",
        "–",
    ]  # All have the same in the rerun.
    assert cells_of(agreement_table(found, rerun), RELEARNING.label) == ["0", "–"]


def cells_of(table: Table, name: str) -> list[str]:
    return next([cell.text for cell in row.cells] for row in table.rows if row.name == name)


def attacked(folder: Path, models: dict[str, float]) -> Path:
    """A folder of attacks with one fact of two phrasings."""
    folder.mkdir(parents=True)
    lines = [
        {"attack": HALF, "model": model, "set": "forget", "unit": unit, "value": value}
        for model, value in models.items()
        for unit in (100, 101)
    ]
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_worlds_and_methods_are_joined_in_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "results"
    assert results.finished(out, ["rule"]) == set()
    results.add(
        out, 24, [run_of("rule", 24, 0.1, 0.8)], attacked(tmp_path / "a", {"rule": 0.5, "control": 0.1})
    )
    results.add(
        out, 25, [run_of("rule", 25, 0.2, 0.8)], attacked(tmp_path / "b", {"rule": 0.6, "control": 0.1})
    )
    again = attacked(tmp_path / "c", {"mine": 0.9, "control": 0.2})
    results.add(out, 24, [run_of("mine", 24, 0.3, 0.8)], again)
    assert results.finished(out, ["rule"]) == {24, 25}
    assert results.finished(out, ["rule", "mine"]) == {24}
    joined = results.read(out)
    assert joined.values("mine", RELEARNING) == pytest.approx({24: 0.7})
    assert joined.values("rule", RELEARNING) == pytest.approx({24: 0.3, 25: 0.5})
    assert joined.values("rule", FORGET) == {24: 0.1, 25: 0.2}
    elsewhere = run_of("other", 24, 0.3, 0.8, model="another")
    with pytest.raises(
        ValueError, match=r"runs.parquet has (rule|mine) of world 24 from another stage-1 model"
    ):
        results.add(out, 24, [elsewhere], again)
    assert results.read(out).methods == joined.methods


def test_a_world_is_attacked_again_for_a_method_that_was_not_there(tmp_path: Path) -> None:
    def board(methods: list[str]) -> Any:
        return scoreboard(PLAN, methods, tmp_path, "cpu", Progress("scoreboard"))

    folder = tmp_path / "many" / "seed-24" / "attacks"
    folder.mkdir(parents=True)
    (folder / "attacks.json").write_text(json.dumps({"none": {"original": {}, "control": {}, "rule": {}}}))
    assert board(["rule"])._is_attacked(24)
    assert board(["rule", "base"]).models.keys() == {"original", "control", "rule"}
    assert not board(["rule", "po"])._is_attacked(24)


MODULE = """
MEANING = "nothing is trained"
TUNED = {tuned}

def train(start, learning_rate, seed):
    return start.model("base")
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside the repository with modules of a user; what they register is forgotten again."""
    (tmp_path / "my_package").mkdir()
    for name, tuned in (("tuned", True), ("plain", False)):
        (tmp_path / "my_package" / f"{name}.py").write_text(MODULE.format(tuned=tuned))
    (tmp_path / "my_package" / "empty.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(own, "METHODS", dict(METHODS))
    return tmp_path


def test_a_module_and_a_folder_become_methods(outside: Path) -> None:
    assert own.register("rule") == "rule"
    assert own.register("mine=my_package.tuned") == "mine"
    assert own.register("fixed=my_package.plain") == "fixed"
    mine, fixed = own.METHODS["mine"], own.METHODS["fixed"]
    assert (mine.tuned, fixed.tuned, mine.meaning) == (True, False, "nothing is trained")
    start: Any = SimpleNamespace(model=lambda name: name, seed=24)
    assert mine.train(start, PLAN, 1e-4).model == "base"
    settings = mine.settings(PLAN, 1e-4, 24)
    assert (settings["module"], settings["learning_rate"], settings["seed"]) == ("my_package.tuned", 1e-4, 24)
    assert settings["source"] != fixed.settings(PLAN, 0.0, 24)["source"]
    (outside / "models").mkdir()
    assert own.register(f"theirs={outside / 'models'}") == "theirs"
    with pytest.raises(ValueError, match=r"models/seed-24 is no model folder; each world needs one"):
        own.METHODS["theirs"].settings(PLAN, 0.0, 24)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gradient", "there is no method 'gradient'; there are base,"),
        ("rule=my_package.tuned", "'rule' cannot be the name of a method: it is taken"),
        ("My=my_package.tuned", "'My' cannot be the name"),
        ("mine=my_package.none", "'my_package.none' is neither a folder nor a module"),
        ("mine=./nowhere", "'./nowhere' is neither a folder nor a module"),
        ("mine=my_package.empty", "my_package.empty has no function train(start, learning_rate, seed)"),
    ],
)
def test_what_is_no_method_is_refused_in_one_line(given: str, said: str, outside: Path, capsys) -> None:
    arguments = ["--methods", given, "--out", f"{outside / 'out'}", "--results", f"{outside / 'results'}"]
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1
    assert not (outside / "out").exists()


def test_the_page_has_all_tables_and_rows_from_logs(found: Results, tmp_path: Path, capsys) -> None:
    results.add(
        tmp_path / "results",
        24,
        [run_of("rule", 24, 0.1, 0.8), run_of("po", 24, 0.1, 0.7)],
        attacked(tmp_path / "a", {"rule": 0.5, "control": 0.1}),
    )
    log = tmp_path / "TOFU_EVAL.json"
    rouge = {"value_by_index": {f"{i}": {"rougeL_recall": i / 4} for i in range(4)}, "agg_value": 0.375}
    log.write_text(json.dumps({"forget_Q_A_ROUGE": rouge}))
    arguments = [f"{tmp_path / 'results'}", "--out", f"{tmp_path / 'page'}", "--log", f"theirs={log}"]
    assert page.main(arguments) == 0
    text = (tmp_path / "page" / "report.md").read_text()
    assert "| rule | 1 | 0.0003 | 0.100 | 0.800 |" in text
    assert "| theirs | 0.375 | – | – | – | – | – | – |" in text
    assert page.main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    log.write_text("{}")
    assert page.main([*arguments, "--overwrite"]) == 2


def test_the_committed_document_says_what_the_committed_results_do() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    names = [line.split()[2] for line in text.splitlines() if line.startswith("<!-- scoreboard: ")]
    assert sorted(names) == sorted(document.TEXTS)
    found = results.read(COMMITTED) if COMMITTED.exists() else None
    assert document.with_texts(text, found) == text


def test_the_worlds_are_made_and_standard_output_has_their_folders_alone(tmp_path: Path, capsys) -> None:
    assert command.main(["--world", "micro", "--seeds", "1", "--out", f"{tmp_path}", "--worlds-only"]) == 0
    folder = tmp_path / "micro" / "seed-24" / "world"
    assert capsys.readouterr().out == f"{folder}\n"
    assert {"model", "retain_model", "forget_gold.parquet"} <= {path.name for path in folder.iterdir()}


@pytest.mark.e2e
@pytest.mark.full
def test_methods_of_a_user_are_trained_measured_and_attacked(tmp_path: Path) -> None:
    """From a folder outside the repository, on the smallest world, with vLLM."""
    (tmp_path / "my_method.py").write_text(MODULE.format(tuned=False))
    out, models = tmp_path / "out", tmp_path / "models"
    words = [
        sys.executable,
        "-m",
        "benchmarks.scoreboard",
        "--world",
        "micro",
        "--seeds",
        "1",
        "--out",
        f"{out}",
    ]

    def call(*more: str) -> str:
        done = subprocess.run(
            [*words, *more], cwd=tmp_path, capture_output=True, text=True, timeout=1500,
            env={**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    world = Path(call("--worlds-only").strip())
    models.mkdir()
    (models / "seed-24").symlink_to(world / "retain_model")
    given = ("--methods", f"theirs={models}", "mine=my_method", "--results", f"{tmp_path / 'results'}")
    printed = call(*given)
    assert "| theirs |" in printed
    found = results.read(tmp_path / "results")
    assert set(found.methods) == {"base", "retain_model", "theirs", "mine"}
    # Each is a copy of a reference, so its numbers are the reference's.
    for axis in plan.AXES:
        assert found.values("mine", axis) == pytest.approx(found.values("base", axis), abs=1e-6), axis.name
        assert found.values("theirs", axis) == pytest.approx(found.values("retain_model", axis), abs=1e-6)
    # Nothing is missing any more, so the tables are all that is printed.
    again = call(*given)
    assert again.startswith("| method |")
    assert printed.endswith(again)
