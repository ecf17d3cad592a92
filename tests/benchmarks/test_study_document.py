"""The tables of docs/results.md: made from runs with known values, and those of the committed document."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.study import document
from benchmarks.study.arms import CHOOSING_SEEDS, OURS
from benchmarks.study.document import COMPARED_WORLDS, table_named, with_tables
from benchmarks.study.measures import REFUSED_SAMPLED, value_of
from benchmarks.study.results import read_results, write_results
from benchmarks.study.runs import StudyRun

DOCUMENT = Path("docs/results.md")
RESULTS = Path("benchmarks/study/results.parquet")


def made_run(arm: str, seed: int, retain: float, world: str = "many", model: str = "a") -> StudyRun:
    recalls = {"forget/recall": 0.25, "retain/recall": retain, "retain_unseen/recall": 0.5}
    curves = {name: [value / 2, value] for name, value in recalls.items()}
    curves["reward/retain"] = [0.0] * 50 + [retain] * 10
    final = {**recalls, "early_hard/retain": 0.75, "compute": 1.25e6}
    final |= {"forget/refused": 0.875, "reward/forget/last": 0.625}
    settings = {"reward": {"lambda_forget": 1.0}}
    return StudyRun(world, arm, seed, "abc", settings, final, curves, model)


def lines(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_arms_have_their_means_and_only_seeds_that_count() -> None:
    runs = [made_run("rule", seed, retain) for seed, retain in ((1, 0.5), (2, 0.75), (CHOOSING_SEEDS, 0.0))]
    head, _, row = lines(table_named("arms many", runs))
    assert head[:5] == ["arm", "seeds", "stage-1 models", "M tokens", "mean score"]
    assert head[5:10] == ["mean over training", "forget", "retain", "unseen", "early-hard"]
    assert head[10:] == ["forget refused, greedy", "forget refused, sampled"]
    # The score is 1.75 / 3 and 2 / 3. In training forget is 0.1875, unseen 0.375, retain 0.375 and 0.5625.
    assert row[1:6] == ["2", "1", "1.25", "0.625 ± 0.059", "0.552"]
    assert row[6:] == ["0.250", "0.625", "0.500", "0.750", "0.875", "0.625"]


def test_sampled_refusals_are_the_reward_only_where_that_is_for_refusals() -> None:
    run = made_run("rule", 1, 0.5)
    assert value_of(run, REFUSED_SAMPLED) == 0.625
    assert value_of(replace(run, settings={"reward": {"lambda_forget": 0.5}}), REFUSED_SAMPLED) is None
    assert value_of(replace(run, settings={}), REFUSED_SAMPLED) is None


def test_ideas_are_ordered_by_overall_and_of_the_seeds_for_choosing() -> None:
    runs = [made_run(arm, CHOOSING_SEEDS, retain) for arm, retain in (("rule", 0.25), ("recent", 0.75))]
    rows = lines(table_named("ideas many", [*runs, made_run("rerule", 1, 1.0)]))[2:]
    assert [row[:4] for row in rows] == [
        ["`recent`", "the newest hard groups", "1", "0.667"],
        ["`rule`", "RULE", "1", "0.500"],
    ]


def test_differences_pair_runs_of_one_seed_and_one_model() -> None:
    runs = [made_run("rule", seed, 0.25, model=model) for seed, model in ((1, "a"), (2, "a"), (3, "a"))]
    runs += [made_run("rerule", seed, 0.625, model=model) for seed, model in ((1, "a"), (2, "a"), (3, "b"))]
    (row,) = lines(table_named("differences many", runs))[2:]
    # One of four exchanges of two equal signs is as far out, and its mirror image.
    assert row == ["rerule − rule", "2", "1", "+0.125", "0.500", "+0.094", "+0.000", "+0.375", "+0.000"]


def test_single_runs_are_shown_by_seed_beside_those_through_verl() -> None:
    runs = [made_run("rule", 2, 0.25), made_run("rule", 1, 0.5), made_run("random", 1, 0.5)]
    rows = lines(table_named("loop and recipe", [*runs, made_run("rule", 1, 0.75, "many-verl")]))[2:]
    assert rows == [["`rule`", "0.50 0.25", "0.75"]]


def test_worlds_stand_side_by_side() -> None:
    retain = {"rule": 0.25, "rerule": 0.5, OURS: 1.0}
    runs = [
        made_run(arm, seed, retain[arm], world)
        for arm in retain
        for seed in (1, 2)
        for world in COMPARED_WORLDS
    ]
    head, _, *rows = lines(table_named(f"gains of {OURS}", runs))
    assert head[1:] == [f"{world} (2 seeds, 1 stage-1 model)" for world in COMPARED_WORLDS]
    assert rows[0] == [f"{OURS} − rule", *["+0.250"] * 4]
    assert rows[1] == [f"{OURS} − rerule", *["+0.167"] * 4]


def test_each_model_of_a_world_stands_for_itself() -> None:
    retain = {("a", "rule"): 0.25, ("a", OURS): 0.5, ("b", "rule"): 0.75, ("b", OURS): 0.75}
    runs = [
        made_run(arm, seed + 10 * (model == "b"), value, "slow", model)
        for (model, arm), value in retain.items()
        for seed in (1, 2, 3)
    ]
    head, _, rule, *rows = lines(table_named("models", [*runs, made_run("rule", 1, 0.0, "tofu", "a")]))
    assert head == ["", "slow, seeds 1 to 3", "slow, seeds 11 to 13"]
    assert rule == ["rule", "0.500 ± 0.000", "0.667 ± 0.000"]
    assert [f"{OURS} − rule", "+0.083", "+0.000"] in rows


def test_the_command_writes_checks_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path / "results.parquet", [made_run("rule", 1, 0.5)])
    page = tmp_path / "page.md"

    def run(text: str | None = None, *more: str) -> str:
        if text is not None:
            page.write_text(text)
        monkeypatch.setattr(sys, "argv", ["document", str(tmp_path / "results.parquet"), str(page), *more])
        document.main()
        return capsys.readouterr().out

    old = "Before.\n<!-- table: arms many -->\nold\n<!-- end of table -->\nAfter.\n"
    with pytest.raises(SystemExit, match=r"page\.md is not as in"):
        run(old, "--check")
    assert page.read_text() == old
    assert "tables written" in run()
    assert "| `rule` | 1 | 1 | 1.25 | 0.583 |" in page.read_text()
    assert page.read_text().startswith("Before.\n<!-- table: arms many -->\n| arm")
    assert page.read_text().endswith("|\n<!-- end of table -->\nAfter.\n")
    assert "as in" in run(None, "--check")
    with pytest.raises(SystemExit, match="error: no table is named 'arm many'"):
        run(old.replace("arms", "arm"))


def test_a_page_names_how_many_seeds_and_models_a_world_has() -> None:
    models = {1: "a", 2: "a", 3: "b"}
    runs = [
        made_run(arm, seed, 0.5, world, model)
        for world in COMPARED_WORLDS
        for seed, model in models.items()
        for arm in ("rule", "rerule", "random")
        if (arm, seed) != ("random", 3)
    ]
    head = lines(table_named("gains of rerule", runs))[0]
    assert head[1] == "many (2 to 3 seeds, 1 to 2 stage-1 models)"


def test_the_committed_document_says_what_the_committed_results_do() -> None:
    text, runs = DOCUMENT.read_text(encoding="utf-8"), read_results(RESULTS)
    assert text.count("<!-- table: ") == text.count("<!-- end of table -->") >= 10
    assert with_tables(text, runs) == text
