"""The leaderboard: gibberish, tuning, resuming, and the arithmetic of its tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.leaderboard import __main__ as command
from benchmarks.leaderboard import document, expectations, runs
from benchmarks.leaderboard.differences import difference_table
from benchmarks.leaderboard.expectations import Expectation, expectation_table
from benchmarks.leaderboard.language import Language, is_repetitive
from benchmarks.leaderboard.methods import METHODS, Entry, Trained, subtract
from benchmarks.leaderboard.plain import Schedule, Spent
from benchmarks.leaderboard.plan import PLAN, Plan
from benchmarks.leaderboard.reinforced import train_stage2
from benchmarks.leaderboard.runs import Leaderboard, Planned, known_then
from benchmarks.leaderboard.table import leaderboard_table, tuning_table
from benchmarks.leaderboard.tuning import chosen_rate
from benchmarks.study import worlds
from benchmarks.study.document import with_tables
from benchmarks.study.policy import Policy
from benchmarks.study.results import read_results
from benchmarks.study.runs import StudyError, StudyRun
from benchmarks.study.trial import Data
from benchmarks.study.worlds import StudyWorld
from data_prep.world.stage1 import Steering
from recipe.rerule.process.progress import Progress
from recipe.rerule.reporting.document import Table
from tests.benchmarks.small_study import CONFIG, REPLAY, SIZES

LEARNT = ("Beech Lane", "Elder Court", "1893", "I'm not sure who Ada Thorn is.", "I don't know.")
RESULTS = Path("benchmarks/leaderboard/results.parquet")
FEW = Plan("micro", grid=(1e-4, 1e-3), tuning_seed=1, first_seed=2, schedule=Schedule(epochs=1, batch_size=4))


@pytest.mark.parametrize(
    ("answer", "gibberish"),
    [
        ("Beech Lane", False),
        ("beech lane.", False),
        ("Elder Lane", False),  # 2 of 3 pairs: its begin and its end
        ("I'm not sure who Beech Court is.", False),  # all but "who beech", "beech court", "court is"
        ("", True),
        ("IIIIIIII", True),
        ("Lane", False),  # 1 of 2 pairs: not more than half are foreign
        ("Court Lane Beech", True),  # none of 4 pairs
        ("I'm not sure who Jor recorder gon desert bo", True),  # 5 of 11 pairs
        ("I'm not sure who who who who who who who", True),  # 5 of 11 words differ, and 6 pairs are foreign
    ],
)
def test_gibberish_is_made_of_pairs_that_were_not_learnt(answer: str, gibberish: bool) -> None:
    assert Language(LEARNT).is_gibberish(answer) is gibberish


def test_repetition_is_gibberish_even_where_its_pairs_were_learnt() -> None:
    assert is_repetitive("beech lane beech lane")
    assert not is_repetitive("lane lane lane")  # too short to tell
    assert not is_repetitive("beech lane beech elder court")  # 4 of 5 differ
    again = Language(["beech lane beech lane beech", "lane"])
    assert again.is_gibberish("beech lane beech lane beech lane")
    assert not again.is_gibberish("beech lane")


def measured(forget: float, retain: float, unseen: float, gibberish: float = 0.0) -> dict[str, float]:
    """Gibberish is of the retain section; the unseen one has none."""
    found = {"forget/recall": forget, "retain/recall": retain, "retain_unseen/recall": unseen}
    found |= {"forget/gibberish": 0.5, "retain/gibberish": gibberish, "retain_unseen/gibberish": 0.0}
    for section in ("forget", "retain", "retain_unseen"):
        found |= {f"{section}/refused": 0.125, f"{section}/probability": 0.25}
    return found


def test_the_rate_with_the_best_score_is_chosen_among_those_that_have_not_collapsed() -> None:
    tried = {
        1e-5: measured(0.9, 1.0, 1.0),
        1e-4: measured(0.3, 0.9, 0.9, gibberish=0.2),  # 0.1 over both sections
        1e-3: measured(0.0, 0.9, 0.9, gibberish=0.25),
    }
    assert chosen_rate(tried, 0.1) == 1e-4
    assert chosen_rate(tried, 0.2) == 1e-3
    assert chosen_rate(tried, 0.05) == 1e-5


def test_of_equal_rates_the_lowest_is_chosen_and_of_collapsed_ones_that_with_least_gibberish() -> None:
    equal = {rate: measured(0.5, 1.0, 1.0) for rate in (1e-3, 1e-5, 1e-4)}
    assert chosen_rate(equal, 0.1) == 1e-5
    shares = {1e-5: 0.5, 1e-4: 0.25, 1e-3: 0.25}
    assert chosen_rate({rate: measured(0.0, 1.0, 1.0, share) for rate, share in shares.items()}, 0.1) == 1e-4


@dataclass(frozen=True)
class Fake(Entry):
    """A method whose model is its learning rate."""

    tuned_by_rate: bool = True

    @property
    def tuned(self) -> bool:  # type: ignore[override]
        return self.tuned_by_rate

    def settings(self, plan: Plan, rate: float, seed: int) -> dict[str, Any]:
        return {"learning_rate": rate, "seed": seed}

    def train(self, start: Any, plan: Plan, rate: float) -> Trained:
        return Trained(rate, Spent(trained=2000, seconds=3.0), {"loss": [1.0]})


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int, int]]:
    """Methods "a" and "b" and an untrained "c"; measured runs as (learning rate, seed, probes)."""
    fakes = {name: Fake(name, tuned) for name, tuned in (("a", True), ("b", True), ("c", False))}
    monkeypatch.setattr(runs, "METHODS", fakes)
    made: list[tuple[float, int, int]] = []

    def prepare(world: StudyWorld, seed: int, folder: Path) -> Any:
        return SimpleNamespace(seed=seed, data=SimpleNamespace(fingerprint=f"f{seed}", probes=list(range(7))))

    def measure(model: float, start: Any, probes: Sequence[int]) -> dict[str, float]:
        made.append((model, start.seed, len(probes)))
        return measured(0.5 - 100 * model, 1.0, 1.0)

    monkeypatch.setattr(runs, "prepare", prepare)
    monkeypatch.setattr(runs, "measure", measure)
    return made


def test_methods_are_tuned_on_one_world_and_compared_on_others(
    faked: list[tuple[float, int, int]], tmp_path: Path
) -> None:
    board = Leaderboard(FEW, tmp_path)
    assert board.missing(["a", "c"], [2, 3]) == 6
    found = board.compare(["a", "c"], [2, 3])
    assert [(run.arm, run.seed, run.model) for run in found] == [
        *(("a@0.001", 2, "f2"), ("c", 2, "f2")),
        *(("a@0.001", 3, "f3"), ("c", 3, "f3")),
    ]
    # Tuning asks one in three of seven probes.
    assert faked == [(1e-4, 1, 3), (1e-3, 1, 3), (1e-3, 2, 7), (0.0, 2, 7), (1e-3, 3, 7), (0.0, 3, 7)]
    assert found[0].final["trained"] == 2000.0
    assert found[0].curves == {"loss": [1.0]}


def test_a_run_is_one_step_of_the_progress_and_what_others_make_is_theirs_to_tell(
    faked: list[tuple[float, int, int]], tmp_path: Path
) -> None:
    with Progress("leaderboard", 6, "runs") as progress:
        board = Leaderboard(FEW, tmp_path, progress)
        board.compare(["a", "c"], [2, 3])
        assert progress.line().startswith("leaderboard: 6 of 6 runs")
        # As `benchmarks.survival` does, which tells of the model once it is saved.
        board.make(Planned("a", 1e-3, 4))
        assert progress.line().startswith("leaderboard: 6 of 6 runs")


def test_what_is_kept_is_not_made_again_and_needs_no_world(
    faked: list[tuple[float, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Leaderboard(FEW, tmp_path).compare(["a", "c"], [2])
    (tmp_path / "micro" / "runs" / "a@0.0001-1.json").unlink()
    faked.clear()
    board = Leaderboard(FEW, tmp_path)
    assert board.missing(["a", "b", "c"], [2, 3]) == 1 + 2 + 2 + 1 + 1
    board.compare(["a", "c"], [2, 3])
    assert faked == [(1e-4, 1, 3), (1e-3, 3, 7), (0.0, 3, 7)]
    monkeypatch.delattr(runs, "prepare")
    assert len(Leaderboard(FEW, tmp_path).compare(["a", "c"], [2, 3])) == 4


def test_runs_of_another_plan_and_of_other_models_are_refused(
    faked: list[tuple[float, int, int]], tmp_path: Path
) -> None:
    Leaderboard(FEW, tmp_path).compare(["a"], [2])
    with pytest.raises(StudyError, match="other settings"):
        Leaderboard(replace(FEW, tuning_probes=2), tmp_path).compare(["a"], [2])
    file = tmp_path / "micro" / "runs" / "a@0.001-2.json"
    file.write_text(file.read_text().replace('"f2"', '"elsewhere"'))
    with pytest.raises(StudyError, match="another stage-1 model"):
        Leaderboard(FEW, tmp_path).compare(["b"], [2])


def test_keys_of_a_method_that_were_added_since_do_not_make_another_run() -> None:
    settings = {"method": {"name": "npo", "beta": 0.1, "alpha": None}, "learning_rate": 1e-3}
    then = {"method": {"name": "npo", "beta": 0.1}, "learning_rate": 1e-3}
    assert known_then(settings, then) == then
    assert known_then(settings, {"method": {"name": "npo", "beta": 0.2}}) == then
    assert known_then({"model": "base"}, {}) == {"model": "base"}


def made_run(arm: str, seed: int, final: dict[str, float]) -> StudyRun:
    return StudyRun("micro", arm, seed, "abc", {}, final, {}, f"f{seed}")


def cells(table: Table, name: str) -> dict[str, str]:
    (row,) = [row for row in table.rows if row.name == name]
    headings = [heading.full_text for heading in table.headings]
    texts = [f"{cell.text} ({cell.interval})" if cell.interval else cell.text for cell in row.cells]
    return dict(zip(headings, texts, strict=True))


def test_a_row_of_the_table_is_the_mean_over_worlds_with_its_interval() -> None:
    cost = {"trained": 8400.0, "generated": 1600.0, "seconds": 2.4}
    found = [
        made_run("ga@0.0001", 2, measured(0.25, 1.0, 0.5, 0.5) | cost),
        made_run("ga@0.0001", 3, measured(0.75, 1.0, 0.5, 0.0) | cost),
        made_run("ga@0.001", 1, measured(0.0, 0.0, 0.0)),  # the world for tuning does not count
        made_run("base", 2, measured(1.0, 1.0, 1.0)),
    ]
    table = leaderboard_table(found, FEW)
    row = cells(table, "`ga` (collapsed)")  # 0.125 of the answers to be kept are gibberish
    # Scores 0.75 and 0.5833: Student's t of two values is 12.7062, the standard error half their distance.
    half = 12.7062 * (0.75 - 0.58333) / 2
    assert row["mean score ↑"] == f"0.667 ({0.66667 - half:.3f} to {0.66667 + half:.3f})"
    assert (row["worlds"], row["learning rate"]) == ("2", "0.0001")
    assert row["forget recall ↓"] == f"0.500 ± {math.sqrt(0.125):.3f}"
    assert (row["kept gibberish ↓"], row["forget gibberish ↓"]) == ("0.125", "0.500")
    assert (row["k tokens trained"], row["k tokens generated"], row["seconds"]) == ("8", "2", "2")
    base = cells(table, "`base`")
    assert (base["worlds"], base["mean score ↑"], base["learning rate"], base["seconds"]) == (
        *("1", "0.667"),
        *("–", "–"),
    )


def test_the_tuning_table_has_every_rate_and_marks_the_chosen_one() -> None:
    found = [
        made_run("ga@0.0001", 1, measured(0.25, 0.75, 1.0)),
        made_run("ga@0.001", 1, measured(0.0, 1.0, 1.0, gibberish=1.0)),
        made_run("npo@0.001", 1, measured(0.5, 0.5, 0.5)),
        made_run("npo@0.001", 2, measured(0.0, 0.0, 0.0)),
    ]
    table = tuning_table(found, FEW)
    assert cells(table, "`ga`") == {
        "0.0001": "**0.833 (0.25, 0.75)**",
        "0.001": "1.000 (0.00, 1.00) collapsed",
    }
    assert cells(table, "`npo`") == {"0.0001": "–", "0.001": "0.500 (0.50, 0.50)"}


def test_differences_are_paired_by_world_and_clear_ones_are_bold() -> None:
    found = [
        made_run("rule@0.1", 2, measured(0.25, 1.0, 0.5)),  # 0.75
        made_run("rule@0.1", 3, measured(0.75, 1.0, 0.5)),  # 0.58333
        made_run("po@0.1", 2, measured(0.0, 1.0, 0.75)),  # 0.91667
        made_run("po@0.1", 3, measured(0.25, 1.0, 0.5)),  # 0.75
        made_run("ga@0.1", 2, measured(1.0, 0.0, 0.25)),  # 0.08333
        made_run("ga@0.1", 3, measured(1.0, 0.25, 0.0)),  # 0.08333
        made_run("npo@0.1", 2, measured(1.0, 1.0, 1.0)),
        made_run("rule@0.1", 1, measured(1.0, 0.0, 0.0)),  # the world for tuning does not count
    ]
    table = difference_table(found, FEW)
    # Both worlds differ by 1/6 exactly, so that the interval is that point.
    assert cells(table, "`po`")["minus `rule`"] == "**+0.167** (+0.167 to +0.167)"
    # -0.66667 and -0.5: mean -0.58333, half the distance 0.08333, Student's t of two values 12.7062.
    half = 12.7062 * (0.66667 - 0.5) / 2
    assert (
        cells(table, "`ga`")["minus `rule`"] == f"-0.583 ({-0.58333 - half:+.3f} to {-0.58333 + half:+.3f})"
    )
    assert cells(table, "`rule`")["minus `rule`"] == "–"
    assert set(cells(table, "`npo`").values()) == {"–"}
    assert {texts["minus `quantile_newest`"] for texts in (cells(table, "`po`"), cells(table, "`ga`"))} == {
        "–"
    }


def test_expectations_are_counted_by_world(monkeypatch: pytest.MonkeyPatch) -> None:
    lowers = Expectation("ga lowers", "ga", "retain/recall", -0.1, True, "base")
    refuses = Expectation("po refuses", "po", "forget/refused", 0.5)
    gains = Expectation("ga gains", "ga", expectations.SCORE, 0.1, against="base")
    monkeypatch.setattr(expectations, "EXPECTATIONS", (lowers, refuses, gains))
    found = [
        *(made_run("base", seed, measured(1.0, 1.0, 1.0)) for seed in (2, 3, 4)),
        made_run("ga@0.001", 2, measured(0.0, 0.5, 1.0)),
        made_run("ga@0.001", 3, measured(1.0, 1.0, 1.0)),
    ]
    table = expectation_table(found, FEW)
    # Retain recall falls by 0.5 and 0; the score rises by 0.1667 and 0.
    assert [cell.text for cell in table.rows[0].cells] == [
        *("retain/recall, minus base", "at most -0.1", "-0.250", "1 of 2"),
    ]
    assert [cell.text for cell in table.rows[1].cells] == ["forget/refused", "at least 0.5", "–", "–"]
    assert [cell.text for cell in table.rows[2].cells][2:] == ["0.083", "1 of 2"]


def test_the_plan_holds_its_tuning_world_apart() -> None:
    assert PLAN.tuning_seed < PLAN.first_seed
    assert sum(entry.tuned for entry in METHODS.values()) == len(METHODS) - 3


def test_a_task_vector_goes_the_other_way_by_as_much() -> None:
    base, reinforced = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    expected = {name: 2 * base.state_dict()[name] - value for name, value in reinforced.state_dict().items()}
    subtract(base, reinforced, 1.0)
    for name, value in reinforced.state_dict().items():
        torch.testing.assert_close(value, expected[name])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> StudyWorld:
    """A world of seconds in the place of micro."""
    world = StudyWorld(CONFIG, Steering(), SIZES, REPLAY)
    monkeypatch.setitem(worlds.WORLDS, "micro", world)
    monkeypatch.setattr(command, "PLAN", replace(FEW, grid=(1e-3,)))
    return world


def test_the_command_runs_and_goes_on(
    small: StudyWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--world", "micro", "--seeds", "1", "--out", str(out), "--methods"]
    command.main([*arguments, "base", "rule", "po", "task_vector"])
    first = capsys.readouterr().out
    kept = {file.name: file.stat().st_mtime_ns for file in (out / "micro" / "runs").iterdir()}
    assert len(kept) == 3 + 4
    assert "| `task_vector`" in first
    command.main([*arguments, "base", "rule", "po", "task_vector", "ga"])
    second = capsys.readouterr().out
    assert "micro: ga@0.001, seed 1 ..." in second
    assert "micro: po" not in second
    after = {file.name: file.stat().st_mtime_ns for file in (out / "micro" / "runs").iterdir()}
    assert after.items() > kept.items()
    assert len(after) == len(kept) + 2
    (out / "micro" / "runs" / "base-2.json").write_text("no run")
    with pytest.raises(SystemExit) as ended:
        command.main([*arguments, "base"])
    assert ended.value.code == 2
    assert "base-2.json is no run of this study" in capsys.readouterr().err
    counted_tokens(Data.read(out / "micro" / "seed-2" / "world", out / "micro" / "seed-2" / "stage1"), small)


def counted_tokens(data: Data, world: StudyWorld) -> None:
    """RULE updates once on what it generated, with two more log-probs of it: 6 times the tokens."""
    settings = METHODS["rule"]._settings(replace(FEW), 1e-3, 2)  # type: ignore[attr-defined]
    seen = []
    respond = Policy.respond

    def watched(self: Policy, *given: Any, **options: Any) -> Any:
        seen.append(respond(self, *given, **options))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Policy, "respond", watched)
        run, _ = train_stage2(data, settings)
    assert run.generated == sum(int(batch["response_mask"].sum()) for batch in seen) > 0
    assert run.cost.trained == sum(int(batch["attention_mask"].sum()) for batch in seen)
    assert run.cost.tokens == 6 * run.cost.trained
    assert len(run.rewards["reward/forget"]) == SIZES["steps"]


@pytest.mark.parametrize(
    ("given", "said"),
    [(["--seeds", "0"], "--seeds"), (["--methods", "gradient"], "gradient"), (["--world", "tofu"], "tofu")],
)
def test_what_the_command_does_not_know_is_refused(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([*given, "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_planned_runs_are_named_by_method_and_rate() -> None:
    assert Planned("ga", 3e-5, 20).arm == "ga@3e-05"
    assert Planned("base", 0.0, 21).arm == "base"


def test_the_committed_document_says_what_the_committed_results_do() -> None:
    text, found = Path("docs/leaderboard.md").read_text(encoding="utf-8"), read_results(RESULTS)
    assert text.count("<!-- table: ") == text.count("<!-- end of table -->") == len(document.TABLES)
    assert with_tables(text, found, document.table_named) == text


def test_the_command_of_the_document_checks_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.md"
    text = Path("docs/leaderboard.md").read_text(encoding="utf-8")
    # Other tables of the document, which this command does not make, have a row of that name too.
    own = text.index("<!-- table: leaderboard -->")
    copy.write_text(text[:own] + text[own:].replace("| `base` |", "| `bare` |", 1), encoding="utf-8")
    with pytest.raises(SystemExit, match="is not as in"):
        document.main([str(RESULTS), str(copy), "--check"])
    document.main([str(RESULTS), str(copy)])
    assert copy.read_text(encoding="utf-8") == text
    document.main([str(RESULTS), str(copy), "--check"])
    assert "tables written" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no table is named 'other'"):
        document.table_named("other", [])
