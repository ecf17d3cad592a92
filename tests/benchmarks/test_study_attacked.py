"""Attacks on the planned study's models: the plan, which models are attacked, what is kept and told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.study.attacked import __main__ as command
from benchmarks.study.attacked import document, plan
from benchmarks.study.attacked.document import NOTHING, written
from benchmarks.study.attacked.results import Attacked, read, write
from benchmarks.study.attacked.runs import Attacks, attacked_runs
from benchmarks.study.attacked.tables import answer, by_base, compare, table_named
from benchmarks.study.comparison import Paired
from benchmarks.study.planned.plan import PLANNED, RATES, TUNING_BASES, plan_hash
from benchmarks.study.planned.results import write_results
from benchmarks.study.planned.runs import PlannedRun, Study, Wanted
from benchmarks.study.runs import StudyError
from benchmarks.study.trial import Data
from benchmarks.study.worlds import WORLDS, StudyWorld
from data_prep.world.stage1 import Steering
from recipe.rerule.evaluation.attacks.registry import chosen
from tests.benchmarks.small_study import CONFIG, REPLAY, SIZES
from tests.benchmarks.test_study_planned_runs import made_run

BEST = 2.0


def chosen_at_best() -> list[PlannedRun]:
    """Runs that choose the rate BEST for every arm."""
    return [
        made_run(arm, base, 0.5 + 0.25 * (rate == BEST), rate)
        for arm in plan.ARMS
        for base in TUNING_BASES
        for rate in RATES
    ]


def test_the_plan_says_what_the_code_does() -> None:
    text = plan.PLAN.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == 3
    assert written(text) == text
    names = {one.name for one in chosen(plan.ATTACKS)}
    assert {measure.partition("/")[0] for measure in plan.MEASURES} <= names
    assert plan.PRIMARY_MEASURE in plan.MEASURES
    assert set(plan.ARMS) <= PLANNED.keys()
    for said in ("bases 211 to 218", "run seed 1", "within -0.1 and 0.1", "70 facts", "other eleven"):
        assert said in " ".join(text.split())
    assert len(plan.PAIRS) * len(plan.MEASURES) - 1 == 11
    people = WORLDS[plan.WORLD].config
    assert people.forget_people * people.facts_per_person == 70


def test_models_are_those_of_the_chosen_rate_and_the_first_seed() -> None:
    runs = chosen_at_best()
    runs += [
        made_run(arm, 211, 0.5, rate, seed=seed)
        for arm in plan.ARMS
        for rate in (1.0, BEST)
        for seed in (1, 2)
    ]
    found = attacked_runs(runs, 211)
    assert {arm: (run.rate, run.seed) for arm, run in found.items()} == dict.fromkeys(plan.ARMS, (BEST, 1))
    with pytest.raises(StudyError, match="base 212 has no run of rule at its chosen rate"):
        attacked_runs(runs, 212)


@pytest.fixture
def small(tmp_path: Path) -> tuple[Attacks, PlannedRun, Data]:
    """A kept run on a world of seconds, and the attacks that are to train its model again."""
    world = StudyWorld(CONFIG, Steering(), SIZES, REPLAY)
    study = Study(tmp_path / "study", worlds={plan.WORLD: world})
    run = study.runs_of(plan.WORLD, 211, [Wanted("rerule", BEST, 1)])[Wanted("rerule", BEST, 1)]
    return Attacks([], tmp_path / "out", world=world), run, study._data(plan.WORLD, 211)


def test_a_model_is_trained_as_its_run_was(small: tuple[Attacks, PlannedRun, Data]) -> None:
    attacks, run, data = small
    folder = attacks._model(data, run)
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    before = AutoModelForCausalLM.from_pretrained(data.model).state_dict()
    assert any(not torch.equal(weights[name], before[name]) for name in weights)
    assert folder == attacks.folder(211) / "models" / "rerule"
    # It is there now: a run that could not be made again is not made again.
    assert attacks._model(data, replace(run, model="another")) == folder


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "another"}, r"the stage-1 model of base 211 is \w+ here, and another in the kept runs"),
        ({"seed": 2}, r"rerule of base 211 has a mean score of [\d.]+ here, and [\d.]+ in the kept run"),
    ],
)
def test_a_model_that_is_not_the_runs_is_not_attacked(
    small: tuple[Attacks, PlannedRun, Data], changed: dict[str, Any], said: str
) -> None:
    attacks, run, data = small
    scored = replace(run, final={**run.final, "forget/recall": run.final["forget/recall"] + 0.01})
    with pytest.raises(StudyError, match=said):
        attacks._model(data, replace(scored, **changed))
    assert not (attacks.folder(211) / "models").exists()


def scores_file(folder: Path, values: dict[str, float]) -> Path:
    """Attacks on one base: the same score for two facts of two phrasings, but for 0.1 more and less."""
    folder.mkdir(parents=True)
    rows = [
        {"attack": attack, "model": model, "set": "forget", "unit": unit, "value": value + shift}
        for attack in ("none", *plan.MEASURES)
        for model, value in values.items()
        for unit, shift in ((100, 0.1), (101, 0.1), (200, -0.1), (201, -0.1))
    ]
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def every_base(tmp_path: Path, gains: list[float]) -> Attacked:
    """`quantile_newest` above equal updates by these gains, base by base; all else equal."""
    file = tmp_path / "attacked.parquet"
    for base, gain in zip(plan.BASES, gains, strict=False):
        values = {"rule": 0.5, "equal_updates": 0.5, "rerule": 0.5, "quantile_newest": 0.5 + gain}
        folder = scores_file(tmp_path / f"{base}", {"original": 0.9, "control": 0.0, **values})
        write(file, {base: folder}, {base: f"model {base}"})
    return read(file)


def test_bases_join_one_file_and_keep_the_plan(tmp_path: Path) -> None:
    found = every_base(tmp_path, [0.1, 0.3])
    assert (found.bases, found.plan) == ([211, 212], plan_hash(plan.PLAN))
    assert found.models == {211: "model 211", 212: "model 212"}
    assert by_base(found, "quantile_newest", "none") == {211: pytest.approx(0.6), 212: pytest.approx(0.8)}
    write(tmp_path / "attacked.parquet", {212: tmp_path / "211"}, {212: "new"})
    again = read(tmp_path / "attacked.parquet")
    assert by_base(again, "quantile_newest", "none")[212] == pytest.approx(0.6)
    assert again.models == {211: "model 211", 212: "new"}


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every_base(tmp_path, [0.1])
    with pytest.raises(StudyError, match="has no attacks of this study"):
        read(Path("benchmarks/survival/results.parquet"))
    other = tmp_path / "plan.md"
    other.write_text("another plan")
    monkeypatch.setattr("benchmarks.study.attacked.results.PLAN", other)
    with pytest.raises(StudyError, match="was made under plan"):
        write(tmp_path / "attacked.parquet", {212: tmp_path / "211"}, {212: "new"})


def test_differences_are_over_bases_once_all_are_done(tmp_path: Path) -> None:
    gains = [0.05, 0.1, 0.15, 0.2, 0.1, 0.1, 0.05, 0.05]
    found = every_base(tmp_path / "all", gains)
    whole = compare(found, plan.PRIMARY, plan.PRIMARY_MEASURE)
    assert (whole.difference, whole.seeds) == (pytest.approx(mean(gains), abs=1e-6), 8)
    assert whole.p_value == pytest.approx(2 / 2**8)
    lines = table_named("attacked differences", found).splitlines()[2:]
    assert len(lines) == len(plan.PAIRS) * len(plan.MEASURES)
    tested = [line for line in lines if not line.endswith("| – |")]
    assert len(tested) == 1
    assert "| more | 0.0078 |" in tested[0]
    assert "| alike |" in next(line for line in lines if line.startswith("| rerule − rule, other facts"))
    some = table_named("attacked differences", every_base(tmp_path / "some", gains[:7]))
    assert "not yet" in some
    assert "+0." not in some
    assert "7 of 8" in table_named("attacked status", every_base(tmp_path / "count", gains[:7]))


def test_scores_are_means_over_bases(tmp_path: Path) -> None:
    lines = table_named("attacked scores", every_base(tmp_path, [0.1, 0.3])).splitlines()
    row = next(line for line in lines if line.startswith("| `quantile_newest`"))
    assert row == "| `quantile_newest` | 0.700 | – | – | 0.700 | 0.700 | 0.700 | – | – | – |"
    assert [line.split("`")[1] for line in lines[2:]] == ["original", *plan.ARMS, "control"]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.01, 0.3, "more"),
        (-0.3, -0.01, "less"),
        (-0.1, 0.1, "alike"),
        (-0.11, 0.05, "open"),
        (-0.05, 0.11, "open"),
        (0.0, 0.05, "alike"),
    ],
)
def test_the_answer_is_the_plans(low: float, high: float, said: str) -> None:
    assert answer(Paired((low + high) / 2, low, high, 1.0, 0.0, 8)) == said


def test_the_command_says_what_is_missing_before_it_makes_anything(tmp_path: Path, capsys) -> None:
    write_results(tmp_path / "runs.parquet", chosen_at_best())
    out, file = tmp_path / "out", tmp_path / "made" / "file"
    words = ["--out", f"{out}", "--results", f"{file}", "--runs", f"{tmp_path / 'runs.parquet'}"]
    assert command.main(words) == 2
    error = capsys.readouterr().err
    assert error == "error: base 211 has no run of rule at its chosen rate; make the plan's runs first\n"
    assert not out.exists()
    assert not file.parent.exists()


@pytest.mark.e2e
@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_models_of_a_base_are_attacked(tmp_path: Path) -> None:
    world = WORLDS["micro"]
    study = Study(tmp_path / "study", worlds={plan.WORLD: world})
    kept = study.runs_of(plan.WORLD, 211, [Wanted(arm, BEST, 1) for arm in plan.ARMS])
    runs = [*chosen_at_best(), *kept.values()]
    attacks = Attacks(runs, tmp_path / "out", world=world, attacks=("samples", "memorisation"))
    folder = attacks.attack(211)
    assert attacks.attack(211) == folder
    write(tmp_path / "file", {211: folder}, {211: kept[Wanted("rule", BEST, 1)].model})
    found = read(tmp_path / "file")
    for measure in ("none", "samples/max_16", "memorisation/extraction_strength"):
        for model in ("original", *plan.ARMS, "control"):
            assert 0 <= by_base(found, model, measure)[211] <= 1, (measure, model)


def test_the_committed_document_says_what_the_committed_results_do() -> None:
    text = Path("docs/survival.md").read_text(encoding="utf-8")
    file = plan.PLAN.with_name("results.parquet")
    found = read(file) if file.exists() else NOTHING
    assert text.count("<!-- table: attacked ") == 3
    assert written(text, found) == text
    assert found.plan in ("", plan_hash(plan.PLAN))


def test_a_document_gets_its_tables_and_is_checked(tmp_path: Path, capsys) -> None:
    every_base(tmp_path, [0.1])
    page, words = tmp_path / "page.md", [f"{tmp_path / 'attacked.parquet'}", f"{tmp_path / 'page.md'}"]
    page.write_text("<!-- table: attacked status -->\nold\n<!-- end of table -->\n")
    with pytest.raises(SystemExit, match="not as in"):
        document.main([*words, "--check"])
    document.main(words)
    assert "| attacked | 1 of 8 | 211 |" in page.read_text()
    document.main([*words, "--check"])
    page.write_text("<!-- table: other -->\nold\n<!-- end of table -->\n")
    with pytest.raises(SystemExit, match="no table is named 'other'"):
        document.main(words)
