from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from recipe.rerule.reporting.run_tables import (
    cost_table,
    hard_share_table,
    model_of,
    replay_seconds,
    step_seconds,
    storage_table,
    tau_table,
    tokens_table,
    trained_tokens,
)
from recipe.rerule.reporting.tokens import TokenUse
from recipe.rerule.runs.history import Prompt, Run, Visit
from tests.report.made import evaluation, run_of


def prompts(**rewards: dict[int, float]) -> dict[int, Prompt]:
    """A prompt a side, by the mean reward of its group at each step."""
    return {
        index: Prompt(index, side, "qa", "x", tuple(Visit(*visit) for visit in visits.items()))
        for index, (side, visits) in enumerate(rewards.items())
    }


def config(admission: str = "hard", threshold: float = 0.4, enable: bool = True) -> dict:
    return {"replay": {"enable": enable, "admission": admission, "threshold": threshold}}


STORED = [{"replay/admitted": 3.0}, {"replay/admitted": 4.0}]
MUSE = evaluation(
    benchmark="muse_books",
    results={"rerule": {"knowmem_f": 0.25}, "random": {"knowmem_f": 0.5}, "rule": {"knowmem_f": 0.75}},
    anchors={},
)
RULE = run_of("rule", [{}, {}], config=config(enable=False))
RERULE = run_of("rerule", STORED, config=config())
RANDOM = run_of("random", STORED, config=config("random"))


def texts(table) -> dict[str, list[str]]:
    return {row.name: [cell.text for cell in row.cells] for row in table.rows if row.kind == "model"}


def test_storage_sets_runs_by_what_they_store_beside_their_results_and_the_published():
    table = storage_table([RULE, RERULE, RANDOM], MUSE)
    assert texts(table) == {
        "rule": ["none", "–", "–", "75.0"],
        "rerule": ["hard", "0.4", "7", "25.0"],
        "random": ["random", "0.4", "7", "50.0"],
    }
    published = {row.name: row.cells[3].text for row in table.rows if row.kind == "published"}
    assert published["ReRULE, random storage (ReRULE paper, storage table, single run)"] == "1.5"


def test_tables_of_settings_are_left_out_where_nothing_differs_and_nothing_is_published():
    rwku = evaluation(results=MUSE.results)
    assert storage_table([RULE, RERULE], rwku) is None
    assert storage_table([RERULE, RANDOM], rwku) is not None
    assert tau_table([RERULE, RANDOM], rwku) is None
    assert tau_table([RERULE, run_of("b", STORED, config=config(threshold=0.6))], rwku) is not None


def test_tau_is_of_hard_storage_alone_and_in_order():
    later = run_of("later", STORED, config=config(threshold=0.2))
    table = tau_table([RULE, RERULE, RANDOM, later], MUSE)
    assert [(name, cells[1]) for name, cells in texts(table).items()] == [("later", "0.2"), ("rerule", "0.4")]


def test_a_run_without_a_threshold_is_left_out_of_tau_and_has_a_dash_for_it():
    unknown = run_of("unknown", STORED, config={"replay": {"enable": True, "admission": "hard"}})
    quantile = config(threshold=0.7)
    quantile["replay"]["threshold_rule"] = "quantile"
    moving = run_of("moving", STORED, config=quantile)
    table = tau_table([unknown, RERULE, moving], MUSE)
    assert list(texts(table)) == ["rerule"]
    assert texts(storage_table([unknown, RANDOM], MUSE))["unknown"][:2] == ["hard", "–"]
    assert texts(storage_table([moving, RANDOM], MUSE))["moving"][:2] == ["hard", "–"]
    assert texts(hard_share_table([moving]))["moving"] == ["0.6", *["–"] * 6]
    # Two thresholds are needed, and there is one.
    assert tau_table([unknown, RERULE, moving], evaluation(results=MUSE.results)) is None


def test_a_run_is_matched_to_its_model_by_folder_then_by_name(tmp_path: Path):
    run = run_of("mine", STORED, folder=tmp_path / "run")
    models = {
        "early": {"path": f"{tmp_path}/run/global_step_5/actor/huggingface", "global_step": 5},
        "late": {"path": f"{tmp_path}/run/global_step_20/actor/huggingface", "global_step": 20},
        "other": {"path": f"{tmp_path}/run2/global_step_90", "global_step": 90},
    }
    assert model_of(run, evaluation(models=models)) == "late"
    assert model_of(run_of("rule", STORED, folder=tmp_path / "x"), evaluation(models=models)) == "rule"
    assert model_of(run_of("none", STORED, folder=tmp_path / "x"), evaluation(models=models)) is None
    steps = evaluation(results={"rule@5": {}, "rule@10": {}})
    assert model_of(run_of("rule", STORED, folder=tmp_path / "x"), steps) == "rule@10"


def test_hard_share_is_of_the_first_and_the_last_third():
    forget = {1: 0.3, 2: 0.5, 4: 0.9, 5: 0.2}
    retain = {1: 0.59999996, 3: 0.0, 5: 0.59}  # the first is 0.6 in float32: not below it
    steps: list[dict[str, float]] = [{}] * 5  # a third is rounded up to two steps
    moving = Run("moving", (1, 2, 3, 4, 5), tuple(steps), prompts(forget=forget, retain=retain))
    tau = replace(moving, name="tau", config=config(threshold=0.4))
    table = hard_share_table([moving, tau])
    # At 0.6, step 1 has one hard group of two, step 2 its only one; step 4 none, step 5 both.
    assert texts(table)["moving"] == ["0.6", "0.750", "1.000", "0.000", "0.500", "0.500", "1.000"]
    assert texts(table)["tau"] == ["0.4", "0.250", "0.500", "0.000", "0.250", "0.500", "0.000"]
    assert [row.cells[1].value for row in table.rows if row.kind == "published"] == [0.675, 0.475, 0.543]


STEP = {"timing_s/step": 10.0, "timing_s/testing": 4.0, "timing_s/save_checkpoint": 1.0}
REPLAY = {
    "replay/updates": 1.0,
    "replay/seconds/update": 1.5,
    "replay/seconds/draw": 0.25,
    "replay/seconds/offer": 0.25,
    "replay/seconds/train": 99.0,  # a part of update
}


def test_seconds_leave_out_validation_checkpoints_and_parts_counted_twice():
    run = run_of("a", [STEP, {"timing_s/step": 3.0, **REPLAY}, {}])
    assert step_seconds(run)[:2] == [5.0, 3.0]
    assert math.isnan(step_seconds(run)[2])
    assert replay_seconds(run) == [0.0, 2.0, 0.0]


def test_cost_by_hand():
    plain = {"timing_s/step": 6.0}
    rerule = run_of(
        "rerule", [STEP, plain, {"timing_s/step": 8.0, **REPLAY}, {"timing_s/step": 10.0, **REPLAY}]
    )
    rule = run_of("rule", [STEP, plain, plain, {"timing_s/step": 7.0}])
    cells = texts(cost_table([rule, rerule]))
    # Step 1 warms up; replay starts at step 3: 6 s before, 18 / 2 from then on; 4 of 18, 4 of 24, 4 / 20.
    assert cells["rerule"] == ["4", "0.01", "6.00", "9.00", "2.00", "22.2%", "16.7%", "+20.0%"]
    assert cells["rule"] == ["4", "0.01", "6.00", "6.50", "–", "–", "–", "–"]


def test_published_cost_stands_with_its_caution():
    table = cost_table([RULE])
    added = {row.name: row.cells[-1].text for row in table.rows if row.kind == "published"}
    assert added["TOFU forget01, ReRULE † (ReRULE paper, 4 A800, single run)"] == "+11.1%"
    assert "validates at every step" in table.caption


def test_tokens_by_side():
    prompts = {
        1: Prompt(1, "forget", "qa", "Ada", (Visit(1, 0.5, 100), Visit(2, 0.5, 20))),
        2: Prompt(2, "retain", "qa", "Ben", (Visit(1, 0.5),)),
    }
    run = run_of("a", [{"replay/drawn_tokens": 1000.0}, {"replay/drawn_tokens": 500.0}])
    run = type(run)(run.name, run.steps, run.metrics, prompts)
    assert trained_tokens(run, "forget") == 120
    assert trained_tokens(run, "retain") is None
    use = {"a": {"forget": TokenUse(1200, 1600), "retain": TokenUse(0, 0)}}
    assert texts(tokens_table(use, [run]))["a"] == ["1,200", "75.0%", "0", "–", "120", "–", "1,500"]
