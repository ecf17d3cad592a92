"""The tables of docs/results.md: made from runs with known values, and those of the committed document."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.study import document
from benchmarks.study.arms import CHOOSING_SEEDS, COMPARED, EXPLAINING, OURS
from benchmarks.study.differences import compare_all, difference_cell
from benchmarks.study.document import COMPARED_WORLDS, table_named, with_tables
from benchmarks.study.report import counted
from benchmarks.study.results import read_results, write_results
from benchmarks.study.runs import StudyRun

DOCUMENT = Path("docs/results.md")
RESULTS = Path("benchmarks/study/results.parquet")


def made_run(arm: str, seed: int, retain: float, world: str = "many", model: str = "a") -> StudyRun:
    recalls = {"forget/recall": 0.25, "retain/recall": retain, "retain_unseen/recall": 0.5}
    curves = {name: [value / 2, value] for name, value in recalls.items()}
    curves["reward/retain"] = [0.0] * 50 + [retain] * 10
    return StudyRun(world, arm, seed, "abc", {}, {**recalls, "early_hard/retain": 0.75}, curves, model)


def lines(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_arms_have_their_means_and_only_seeds_that_count() -> None:
    runs = [made_run("rule", seed, retain) for seed, retain in ((1, 0.5), (2, 0.75), (CHOOSING_SEEDS, 0.0))]
    head, _, row = lines(table_named("arms many", runs))
    assert head == ["arm", "seeds", "overall", "on the way", "forget", "retain", "unseen", "early-hard"]
    # Overall is 1.75 / 3 and 2 / 3. On the way forget is 0.1875, unseen 0.375, retain 0.375 and 0.5625.
    assert row == ["`rule`", "2", "0.625 ± 0.059", "0.552", "0.250", "0.625", "0.500", "0.750"]


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
    assert row == ["rerule − rule", "+0.125", "0.500", "+0.094", "+0.000", "+0.375", "+0.000"]


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
    assert head[1:] == list(COMPARED_WORLDS)
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
    assert "| `rule` | 1 | 0.583 |" in page.read_text()
    assert page.read_text().startswith("Before.\n<!-- table: arms many -->\n| arm")
    assert page.read_text().endswith("|\n<!-- end of table -->\nAfter.\n")
    assert "as in" in run(None, "--check")
    with pytest.raises(SystemExit, match="error: no table is named 'arm many'"):
        run(old.replace("arms", "arm"))


def test_the_committed_document_says_what_the_committed_results_do() -> None:
    text, runs = DOCUMENT.read_text(encoding="utf-8"), read_results(RESULTS)
    assert text.count("<!-- table: ") == text.count("<!-- end of table -->") >= 10
    assert with_tables(text, runs) == text


def test_every_interval_in_the_document_is_one_of_the_results() -> None:
    runs = read_results(RESULTS)
    known = set()
    for world in {run.world for run in runs}:
        fresh = counted([run for run in runs if run.world == world])
        for pairs in compare_all(fresh).values():
            assert pairs.keys() <= {*COMPARED, *EXPLAINING}
            cells = [difference_cell(found) for found in pairs.values()]
            known |= {f"{cell.text} ({cell.interval})" for cell in cells if cell.interval}
    prose = re.sub(
        r"<!-- table: .*?<!-- end of table -->", "", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    said = re.findall(r"[+-]\d\.\d{3}\s\([+-]\d\.\d{3}\sto\s[+-]\d\.\d{3}\)", prose)
    assert said
    assert {" ".join(each.split()) for each in said} <= known
