"""The plan's answers and tables: from runs with known scores, and those of the committed document."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.study.comparison import Paired
from benchmarks.study.planned import __main__, answers, document, shares
from benchmarks.study.planned.plan import (
    CONTROLS,
    COUNTED,
    COUNTED_BASES,
    COUNTED_SEEDS,
    IDEAS,
    OURS,
    PLAN,
    RATES,
    RUNS_THAT_COUNT,
    RUNS_TO_CHOOSE,
    WORLDS,
    plan_hash,
)
from benchmarks.study.planned.results import read_results
from benchmarks.study.planned.runs import PlannedRun, Wanted
from benchmarks.study.runs import StudyError
from tests.benchmarks.test_study_planned_runs import made_run

RESULTS = Path("benchmarks/study/planned.parquet")
DOCUMENT = Path("docs/savings.md")


def tuned(arms: Any = COUNTED) -> list[PlannedRun]:
    """Runs that choose rate 2 for each arm in both worlds; rate 4 where the arm is `rerule`."""
    return [
        made_run(arm, base, 0.5 + 0.25 * (rate == (4 if arm == "rerule" else 2)), rate, world=world)
        for world in WORLDS
        for base in (201, 202)
        for arm in arms
        for rate in RATES
    ]


def counted(scores: dict[str, float]) -> list[PlannedRun]:
    """Both seeds of every model that counts; scores differ by 0.125 between seeds and grow with the base."""
    return [
        made_run(arm, base, score + 0.0625 * (-1) ** seed + (base - 211) / 64, rate, world=world, seed=seed)
        for arm, score in scores.items()
        for world in WORLDS
        for base in COUNTED_BASES
        for seed, rate in ((1, 4.0 if arm == "rerule" else 2.0), (2, 4.0 if arm == "rerule" else 2.0))
    ]


def lines(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_question_1_compares_models_once_all_are_done() -> None:
    scores = dict.fromkeys(COUNTED, 0.5) | {OURS: 0.75, "rule": 0.625}
    runs = [*tuned(), *counted(scores)]
    # The recommended replay is better on `tofu` alone by 0.125 more.
    runs = [
        made_run(run.arm, run.base, run.score + 0.125, run.rate, world="tofu", seed=run.seed)
        if (run.arm, run.world) == (OURS, "tofu") and run.base in COUNTED_BASES
        else run
        for run in runs
    ]
    _, _, primary, *others = lines(document.table_named("question 1", runs))
    assert primary[0] == f"{OURS} − equal_compute"
    assert primary[1] == "16 of 16"
    middle, low, high = (float(number) for number in re.findall(r"[+-][\d.]+", primary[2]))
    # Student's t over 8 values of 0.25 and 8 of 0.375: the standard error is 0.0161, the quantile 2.131.
    assert (middle, low, high) == pytest.approx((0.3125, 0.278, 0.347), abs=0.005)
    assert primary[4:] == ["+0.250 (+0.250 to +0.250)", "+0.375 (+0.375 to +0.375)"]
    assert others[0][0] == f"{OURS} − rule"
    assert others[0][4:] == ["+0.125 (+0.125 to +0.125)", "+0.250 (+0.250 to +0.250)"]
    # 16 models that all agree in sign: one random exchange in 2^15 is as far out.
    assert float(primary[3]) < 0.001
    # Equal arms have a p-value of 1 and stay there.
    assert others[-1][3] == "1.0000"


def test_question_1_counts_models_until_all_are_done() -> None:
    runs = [*tuned(), *counted(dict.fromkeys(COUNTED, 0.5))]
    missing = [run for run in runs if (run.arm, run.base, run.seed, run.world) != ("rule", 218, 2, "tofu")]
    rows = lines(document.table_named("question 1", missing))[2:]
    assert [row[1] for row in rows if row[0] == f"{OURS} − rule"] == ["15 of 16"]
    assert {cell for row in rows for cell in row[2:]} == {"–"}


def test_question_2_compares_the_chosen_idea() -> None:
    runs = [*tuned(["rule"]), *counted({"rule": 0.5})]
    # On the tuning models RULE has 0.75 at its rate; `quarter` is chosen at rate 4.
    runs += [made_run("half", base, 0.75, 2.0) for base in (201, 202)]
    runs += [made_run("quarter", base, 0.8125, 4.0) for base in (201, 202)]
    row = lines(document.table_named("question 2", runs))[2]
    assert row == ["`quarter` at 4 x", "0 of 16", "–", "–", "–", "not yet"]
    for run in counted({"rule": 0.5 - 0.125}):
        runs.append(replace(run, arm="quarter", rate=4.0))
    row = lines(document.table_named("question 2", runs))[2]
    assert row == [
        "`quarter` at 4 x",
        "16 of 16",
        *["-0.125 (-0.125 to -0.125)"] * 3,
        "does not save",
    ]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.02, 0.01, "saves"),
        (-0.015, -0.01, "saves"),
        (-0.03, 0.01, "open"),
        (-0.03, -0.01, "does not save"),
    ],
)
def test_the_verdict_is_the_plans(low: float, high: float, said: str) -> None:
    assert answers.verdict(Paired((low + high) / 2, low, high, 0.5, 1.0, 16)) == said
    assert "-0.02 or more" in PLAN.read_text()


def test_ideas_are_set_against_rule_on_the_same_model() -> None:
    runs = tuned(["rule"])
    for base, score in ((201, 0.875), (202, 0.625)):
        final = {"generated": 30.0, "compute": 150.0, "cpu_seconds": 3.0}
        made = made_run("half", base, score, 2.0)
        runs.append(replace(made, final=made.final | final))
    row = lines(document.table_named("tried ideas", runs))[2]
    assert row[0] == "`half`"
    assert row[2:] == ["2 x", "0.875 0.625", "+0.125 -0.125", "1 of 2", "0.60", "1.50", "1.50"]


def test_the_status_counts_runs_of_the_plan() -> None:
    runs = [*tuned(["rule"]), *counted({"rule": 0.5})]
    rows = lines(document.table_named("status", runs))[2:]
    # 6 arms and 3 rates, 6 other ways; in `many` also 12 ideas and controls, and 2 at 2 rates: on 2 models.
    assert rows[0] == ["`many`", "6 of 80", "2 of 2", "16 of 112", "8 of 8"]
    assert rows[1] == ["`tofu`", "6 of 48", "2 of 2", "16 of 112", "8 of 8"]
    assert document.table_named("rates", []) == document.NOT_YET


def test_rates_show_both_models_and_the_choice() -> None:
    rows = lines(document.table_named("rates", tuned(["rule", "rerule"])))[2:]
    assert rows[0] == ["`rule`, many", "0.500 0.500", "0.750 0.750", "0.500 0.500", "2 x"]
    assert rows[1][-1] == "4 x, the edge"
    assert len(rows) == 4


def test_curves_are_read_between_validations() -> None:
    run = made_run("rule", 201, 0.5)
    recalls = {"retain/recall": [0.0, 0.5, 1.0], "retain_unseen/recall": [0.0, 0.5, 1.0]}
    curves = {**recalls, "forget/recall": [1.0, 0.5, 0.0], "at/generated": [10.0, 20.0, 40.0]}
    run = replace(run, curves=curves)
    assert shares.score_at(run, "generated", 15.0) == pytest.approx(0.25)
    assert shares.score_at(run, "generated", 30.0) == pytest.approx(0.75)
    assert shares.score_at(run, "generated", 5.0) is None
    assert shares.score_at(run, "generated", 50.0) is None


def everything(scores: dict[str, float]) -> list[PlannedRun]:
    """All runs that count, with `quarter` at rate 4 as the idea; those of RULE cost half as much."""
    runs = [*tuned(), *(made_run("quarter", base, 0.5, 4.0) for base in (201, 202))]
    runs += [replace(run, rate=4.0) if run.arm == "quarter" else run for run in counted(scores)]
    return [
        replace(run, final=run.final | {"generated": 25.0, "compute": 50.0, "cpu_seconds": 36.0})
        if run.arm == "rule" and run.base in COUNTED_BASES
        else run
        for run in runs
    ]


def test_ends_and_curves_appear_once_all_runs_are_done() -> None:
    runs = everything(dict.fromkeys(COUNTED, 0.5) | {"quarter": 0.25})
    # A run at another rate than the chosen one is no run of the arm.
    runs.append(made_run("rule", 218, 1.0, rate=1.0, world="tofu", seed=2))
    rows = {row[0]: row[1:] for row in lines(document.table_named("ends", runs))[2:]}
    assert len(rows) == 2 * 7
    # Bases add 0 to 7 / 64 to the score: on average 3.5 / 64, with a deviation of sqrt(6) / 64.
    assert rows["`rule`, tofu"] == ["0.555 (0.038)", "0.445", "0.555", "0.555", "1.00", "1.00", "1.00"]
    assert rows["`quarter`, many"][0] == "0.305 (0.038)"
    assert rows["`quarter`, many"][-3:] == ["2.00", "2.00", "0.06"]
    # The only validation is at 2 s, before a fifth of the 36 s that RULE's runs take.
    curve = {row[0]: row[1:] for row in lines(document.table_named("many by seconds", runs))[2:]}
    assert curve["`rule`"] == ["–"] * 6
    table = lines(document.table_named("models that count", runs))
    assert (table[0][1], table[0][7], len(table)) == ("`rule`", "`quarter`", 2 + 16)
    assert table[3] == ["many 212", *["0.516"] * 6, "0.266"]
    for name in ("ends", "models that count", "many by seconds", "tofu by seconds"):
        assert document.table_named(name, runs[:-2]) == document.NOT_YET
        assert document.table_named(name, []) == document.NOT_YET


def test_curves_of_runs_that_count_are_means_at_shares_of_rules_cost() -> None:
    runs = everything(dict.fromkeys(COUNTED, 0.5) | {"quarter": 0.25})
    recalls = {name: [0.25, 0.75] for name in ("retain/recall", "retain_unseen/recall")}
    curves = {**recalls, "forget/recall": [0.75, 0.25], "at/generated": [10.0, 30.0]}
    runs = [replace(run, curves=run.curves | curves) if run.world == "many" else run for run in runs]
    table = {row[0]: row[1:] for row in lines(document.table_named("many by generated", runs))[2:]}
    # RULE's runs generate 25 tokens in all: the score is 0.25 at 10 of them and 0.75 at 30.
    assert table["`rerule`"] == ["–", "0.250", "0.375", "0.500", "0.625", "–"]


def test_hours_are_of_the_runs_that_are_done() -> None:
    runs = everything(dict.fromkeys(COUNTED, 0.5) | {"quarter": 0.25})
    rows = {row[0]: row[1:] for row in lines(document.table_named("hours", runs))[2:]}
    # 16 runs of RULE of 36 s, and 80 others of 2 s.
    assert rows["question 1"] == ["96", "0.20", "96", "0.20"]
    assert rows["question 2"][:2] == ["16", "0.01"]
    assert rows["learning rates"][0] == "36"


def test_the_committed_document_says_what_the_committed_results_do() -> None:
    text, runs = DOCUMENT.read_text(encoding="utf-8"), read_results(RESULTS)
    assert text.count("<!-- table: ") >= 6
    assert document.written(text, runs) == text
    assert {run.plan for run in runs} <= {plan_hash()}


class Made:
    """A study whose runs take no time: scores by arm and rate, the same on every model."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, int, Wanted], PlannedRun] = {}

    def runs_of(self, world: str, base: int, wanted: list[Wanted]) -> None:
        for each in wanted:
            # Its budget's run is asked for together with it, so that both start from one model.
            assert each.reference is None or each.reference in wanted
            score = 0.5 + 0.125 * (each.rate == 2) + 0.0625 * (each.arm in ("half", "half_filled"))
            made = made_run(each.arm, base, score, each.rate, world=world, seed=each.seed)
            self.runs[world, base, each] = made

    def every(self) -> list[PlannedRun]:
        return list(self.runs.values())


def test_the_stages_make_the_runs_of_the_plan() -> None:
    study = Made()
    with pytest.raises(StudyError, match="no idea was run on both tuning models"):
        __main__.confirm(study)
    with pytest.raises(StudyError, match="the rate of rule in many is not chosen yet"):
        __main__.counted(study)
    __main__.ideas(study)
    ideas = {(each.arm, each.rate) for _, _, each in study.runs}
    assert {(arm, 2.0) for arm in (*IDEAS, *CONTROLS)} <= ideas
    assert {arm for arm, rate in ideas if rate == 4.0} == {"rule", "half", "half_filled"}
    __main__.tuning(study)
    assert made_by_world(study, (201, 202)) == RUNS_TO_CHOOSE == {"many": 80, "tofu": 48}
    __main__.counted(study)
    __main__.confirm(study)
    assert made_by_world(study, COUNTED_BASES) == {"many": 112, "tofu": 112}
    assert RUNS_THAT_COUNT == 112
    own = [each for _, base, each in study.runs if base == 211 and each.arm == "half"]
    assert {(each.rate, each.of_rate) for each in own} == {(2.0, 2.0)}


def test_a_stage_is_shared_by_worlds_and_bases() -> None:
    study, of_tofu = Made(), __main__.Part(worlds=["tofu"])
    with pytest.raises(StudyError, match="ideas are tried in many alone; leave out --worlds"):
        __main__.ideas(study, of_tofu)
    __main__.tuning(study, of_tofu)
    assert {world for world, _, _ in study.runs} == {"tofu"}
    before = set(study.runs)
    __main__.counted(study, __main__.Part(worlds=["tofu"], bases=[212, 213]))
    new = set(study.runs) - before
    assert {(world, base) for world, base, _ in new} == {("tofu", 212), ("tofu", 213)}
    assert len(new) == 2 * len(COUNTED) * len(COUNTED_SEEDS)


@pytest.mark.parametrize("words", [["--worlds", "slow"], ["--bases", "203"]])
def test_worlds_and_bases_are_those_of_the_plan(words: list[str], capsys) -> None:
    with pytest.raises(SystemExit):
        __main__.main(["counted", "--out", "nowhere", *words])
    assert f"argument {words[0]}: invalid choice: " in capsys.readouterr().err


def test_seconds_of_different_loops_are_not_compared() -> None:
    now = {"budget": {"of_rate": 0.0}, "loop": "without padding"}
    runs = [*tuned(["rule"]), made_run("half", 201, 0.5, 2.0), made_run("half", 202, 0.5, 2.0, settings=now)]
    runs[-1].final["cpu_seconds"] = 1000.0
    assert lines(document.table_named("tried ideas", runs))[-1][-1] == "1.00"
    only = [*runs[:-2], runs[-1]]
    assert lines(document.table_named("tried ideas", only))[-1][-1] == "–"


def made_by_world(study: Made, bases: Any) -> dict[str, int]:
    return {
        world: sum((one, base in bases) == (world, True) for one, base, _ in study.runs) for world in WORLDS
    }
