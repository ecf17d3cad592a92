"""The plan's runs: what is made, kept, compared and chosen, and what the plan's file says."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.study.planned import choice, plan
from benchmarks.study.planned.document import written
from benchmarks.study.planned.plan import OURS, PLAN, PLANNED, plan_hash
from benchmarks.study.planned.results import pack, read_results, unpack, write_results
from benchmarks.study.planned.runs import PlannedRun, Study, Wanted, budget_of, write_run
from benchmarks.study.runs import StudyError
from benchmarks.study.worlds import StudyWorld
from data_prep.world.stage1 import Steering
from tests.benchmarks.small_study import CONFIG, REPLAY, SIZES


def made_run(arm: str, base: int, score: float, rate: float = 1.0, **more: Any) -> PlannedRun:
    """A run whose mean score is `score` at its end, and half of it at its only validation."""
    recalls = {"forget/recall": 1 - score, "retain/recall": score, "retain_unseen/recall": score}
    final = {**recalls, "steps": 4.0, "compute": 100.0, "generated": 50.0, "cpu_seconds": 2.0}
    curves = {name: [1 - score / 2 if "forget" in name else score / 2] for name in recalls}
    curves |= {f"at/{name}": [final[name]] for name in ("steps", "compute", "generated", "cpu_seconds")}
    made = PlannedRun(
        "many",
        base,
        arm,
        rate,
        1,
        plan_hash(),
        "abc",
        "rows",
        "model",
        {"budget": {"of_rate": 0.0}},
        final,
        curves,
    )
    return replace(made, **more)


def test_the_plan_says_what_the_code_does() -> None:
    text = PLAN.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == 6
    assert written(text, []) == text
    assert plan_hash() == hashlib.sha256(PLAN.read_bytes()).hexdigest()[:12]
    assert not set(plan.TUNING_BASES) & set(plan.COUNTED_BASES)
    for said in ("among 1, 2 and 4 times", "Bases 201 and 202", "Bases 211 to 218", "0.6 of the tokens"):
        assert said in " ".join(text.split())


def test_every_planned_arm_has_settings_and_a_loop() -> None:
    from benchmarks.study.planned.runs import planned_settings
    from benchmarks.study.worlds import WORLDS

    for name in PLANNED:
        for world in plan.WORLDS:
            settings = planned_settings(WORLDS[world], Wanted(name, 2.0, 3))
            assert settings.idea in plan.RUNS
            assert (settings.learning_rate, settings.seed, settings.replay.seed) == (2e-4, 3, 3)
            # One optimiser step's replay is on as many groups as the idea says.
            if settings.idea in plan.SAVINGS:
                assert (settings.prompts, settings.replay.warmup_steps) == (16, 0)
    assert len(plan.IDEAS) >= 8


def test_a_budget_is_of_the_same_start(tmp_path: Path) -> None:
    runs = {
        Wanted(OURS, 2.0, 1): made_run(OURS, 201, 0.5, 2.0),
        Wanted("rule", 4.0, 1): made_run("rule", 201, 0.5, 4.0),
    }
    assert budget_of(Wanted("rule", 1.0, 1), 61, runs).amount == 61
    assert budget_of(Wanted("equal_compute", 1.0, 1, 2.0), 61, runs).amount == 100
    assert budget_of(Wanted("half", 1.0, 1, 4.0), 61, runs).amount == pytest.approx(30)
    with pytest.raises(StudyError, match="half needs a run of rule at rate 1 first"):
        budget_of(Wanted("half", 1.0, 1, 1.0), 61, runs)


def test_a_study_goes_on_and_keeps_the_plan_with_each_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study(tmp_path, worlds={"small": StudyWorld(CONFIG, Steering(), SIZES, REPLAY)})
    wanted = [Wanted("equal_compute", 2.0, 1, 2.0), Wanted("short", 1.0, 1, 1.0)]
    first = [Wanted(OURS, 2.0, 1), Wanted("rule", 1.0, 1)]
    found = study.runs_of("small", 7, [*wanted, *first])
    assert capsys.readouterr().out.count("seed 1 ...") == 4
    rule, short = found[first[1]], found[wanted[1]]
    assert (rule.plan, rule.base, rule.final["steps"]) == (plan_hash(), 7, 4)
    assert rule.settings["learning_rate"] == 2e-4
    assert found[wanted[0]].final["compute"] >= found[first[0]].final["compute"]
    assert 0.6 <= short.final["generated"] / rule.final["generated"] < 1
    # The shorter run is the beginning of the longer one.
    steps = int(short.final["steps"])
    assert short.curves["signal_share"] == rule.curves["signal_share"][:steps]
    assert rule.curves["at/steps"] == [1, 2, 3, 4]
    again = study.runs_of("small", 7, [*wanted, *first])
    assert "seed 1 ..." not in capsys.readouterr().out
    assert again == {each: run_as_read(run) for each, run in found.items()}
    other = study.runs_of("small", 8, first[1:])[first[1]]
    assert (other.content != rule.content, other.model != rule.model) == (True, True)


def run_as_read(run: PlannedRun) -> PlannedRun:
    return replace(run, settings=json.loads(json.dumps(run.settings)))


def test_a_base_begun_on_another_machine_is_begun_anew(tmp_path: Path) -> None:
    study = Study(tmp_path, worlds={"small": StudyWorld(CONFIG, Steering(), SIZES, REPLAY)})
    rule = Wanted("rule", 1.0, 1)
    mine = study.runs_of("small", 7, [rule])[rule]
    theirs = replace(mine, model="another")
    (tmp_path / "runs" / f"small-7-{mine.model}" / "rule@1-1.json").unlink()
    write_run(theirs, tmp_path)
    # What is kept is whole; with one more run, both are made from this machine's model.
    assert study.runs_of("small", 7, [rule])[rule].model == "another"
    both = study.runs_of("small", 7, [rule, Wanted("rule", 2.0, 1)])
    assert {run.model for run in both.values()} == {mine.model}


def test_runs_of_another_plan_are_refused(tmp_path: Path) -> None:
    write_run(made_run("rule", 201, 0.5, plan="older"), tmp_path)
    with pytest.raises(StudyError, match=r"rule@1-1\.json was made under plan older"):
        Study(tmp_path).every()


def test_results_come_back_and_nothing_is_lost(tmp_path: Path) -> None:
    runs = [made_run("rule", base, 0.5) for base in (201, 202)]
    for run in runs:
        write_run(run, tmp_path / "here")
    file = tmp_path / "runs.parquet"
    assert pack(tmp_path / "here", file) == 2
    assert read_results(file) == runs
    assert unpack(file, tmp_path / "there") == 2
    assert unpack(file, tmp_path / "there") == 0
    assert list(Study(tmp_path / "there").every()) == runs
    write_results(file, [*runs, made_run("rule", 211, 0.5)])
    with pytest.raises(StudyError, match=r"has 1 runs that .* lacks; unpack it there first"):
        pack(tmp_path / "here", file)
    (tmp_path / "text").write_text("no")
    with pytest.raises(StudyError, match="is no result file"):
        read_results(tmp_path / "text")


def test_the_rate_with_the_best_mean_over_the_tuning_models_is_chosen() -> None:
    scores = {1.0: (0.5, 0.75), 2.0: (0.75, 0.75), 4.0: (1.0, 0.5)}
    runs = [
        made_run("rule", base, score, rate)
        for rate, of_rate in scores.items()
        for base, score in zip((201, 202), of_rate, strict=True)
    ]
    assert choice.chosen_rate(runs, "many", "rule") == 2.0
    assert choice.chosen_rate(runs[:-1], "many", "rule") is None
    assert choice.chosen_rate(runs, "tofu", "rule") is None
    # Models that count have no say, and a model with fewer runs neither.
    more = [made_run("rule", 211, 1.0, 4.0), made_run("rule", 201, 1.0, 1.0, model="other")]
    assert choice.chosen_rate([*runs, *more], "many", "rule") == 2.0


def test_ideas_are_ranked_by_their_mean_gain_over_rule_at_its_rate() -> None:
    runs = [
        made_run("rule", base, 0.5 + 0.125 * (rate == 2), rate)
        for base in (201, 202)
        for rate in (1.0, 2.0, 4.0)
    ]
    runs += [made_run("half", base, score, 2.0) for base, score in ((201, 0.75), (202, 0.5))]
    runs += [made_run("quarter", base, 0.75, 1.0) for base in (201, 202)]
    runs += [made_run("half_filled", 201, 1.0, 2.0)]
    assert choice.ranked_ideas(runs) == [("quarter", 1.0, 0.125), ("half", 2.0, 0.0)]
    assert choice.gains_over_rule(runs, "many", "half", 2.0) == {201: 0.125, 202: -0.125}
