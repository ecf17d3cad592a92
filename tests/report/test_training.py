"""Tables of training runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recipe.rerule.reporting.document import value_of
from recipe.rerule.reporting.training import (
    answers_tables,
    cost_table,
    hard_share,
    hard_share_table,
    model_of,
    read_rollouts,
    settings_table,
    tokens_table,
)
from recipe.rerule.runs.history import Prompt, Run, Visit
from tests.evaluation.conftest import make_probe, write_probes
from tests.report.made import evaluation, run_of, texts


def prompts(**rewards: dict[int, float]) -> dict[int, Prompt]:
    """A prompt a side, by the mean reward of its group at each step."""
    return {
        index: Prompt(index, side, "qa", "x", tuple(Visit(*visit) for visit in visits.items()))
        for index, (side, visits) in enumerate(rewards.items())
    }


def config(admission: str = "hard", threshold: float | None = 0.4, enable: bool = True, **more) -> dict:
    return {"replay": {"enable": enable, "admission": admission, "threshold": threshold} | more}


STORED = [{"replay/admitted": 3.0}, {"replay/admitted": 4.0}]
MUSE = evaluation(
    benchmark="muse_books",
    results={"rerule": {"knowmem_f": 0.25}, "random": {"knowmem_f": 0.5}, "rule": {"knowmem_f": 0.75}},
    anchors={},
)
RULE = run_of("rule", [{}, {}], config=config(enable=False))
RERULE = run_of("rerule", STORED, config=config())
RANDOM = run_of("random", STORED, config=config("random"))
MOVING = run_of("moving", STORED, config=config(threshold_rule="quantile"))


def test_runs_stand_by_what_they_store_with_their_results_and_the_published() -> None:
    table = settings_table([RULE, MOVING, RERULE, RANDOM, run_of("unknown", STORED)], MUSE)
    assert table is not None
    assert texts(table) == {
        "moving": ["hard", "–", "7", "–"],  # another rule replaces its threshold
        "rerule": ["hard", "0.4", "7", "25.0"],
        "rule": ["none", "–", "–", "75.0"],
        "random": ["random", "0.4", "7", "50.0"],
    }
    published = texts(table, "published")
    assert published["ReRULE, random storage (ReRULE paper, storage table, single run)"][3] == "1.5"
    assert published["ReRULE, tau 0.6 (ReRULE paper, tau table, single run)"][3] == "1.3"


def test_settings_are_left_out_where_nothing_differs_and_nothing_is_published() -> None:
    rwku = evaluation(results=MUSE.results)
    assert settings_table([RULE, RERULE], rwku) is None
    assert settings_table([RERULE, RANDOM], rwku) is not None
    assert settings_table([RERULE, run_of("b", STORED, config=config(threshold=0.6))], rwku) is not None


def test_a_run_is_matched_to_its_model_by_name() -> None:
    assert model_of(RULE, evaluation()) == "rule"
    assert model_of(RERULE, evaluation()) is None
    steps = evaluation(results={"rule@5": {"forget/all": 0.5}, "rule@10": {"forget/all": 0.5}})
    assert model_of(RULE, steps) == "rule@10"


def test_hard_share_is_of_the_first_and_the_last_third() -> None:
    forget = {1: 0.3, 2: 0.5, 4: 0.9, 5: 0.2}
    retain = {1: 0.59999996, 3: 0.0, 5: 0.59}  # the first is 0.6 in float32: not below it
    moving = run_of("moving", [{}] * 5, prompts=prompts(forget=forget, retain=retain))  # a third is 2 steps
    tau = replace(moving, name="tau", config=config(threshold=0.4))
    table = hard_share_table([moving, tau])
    # At 0.6, step 1 has one hard group of two, step 2 its only one; step 4 none, step 5 both.
    assert texts(table)["moving"] == ["0.6", "0.750", "1.000", "0.000", "0.500", "0.500", "1.000"]
    assert texts(table)["tau"] == ["0.4", "0.250", "0.500", "0.000", "0.250", "0.500", "0.000"]
    published = [value_of(row, table.columns[1]) for row in table.rows if row.kind == "published"]
    assert published == [0.675, 0.475, 0.543]
    assert math.isnan(hard_share(run_of("none", [{}]), 0.6, [1], ["forget"]))


STEP = {"timing_s/step": 10.0, "timing_s/testing": 4.0, "timing_s/save_checkpoint": 1.0}
PLAIN = {"timing_s/step": 6.0}
REPLAY = {
    "replay/updates": 1.0,
    "replay/seconds/update": 1.5,
    "replay/seconds/draw": 0.25,
    "replay/seconds/offer": 0.25,
    "replay/seconds/train": 99.0,  # a part of update
}


def test_cost_by_hand() -> None:
    replayed = [{"timing_s/step": 8.0, **REPLAY}, {"timing_s/step": 10.0, **REPLAY}]
    rerule = run_of("rerule", [STEP, PLAIN, *replayed])
    rule = run_of("rule", [STEP, {**STEP, "timing_s/step": 11.0}, PLAIN, {"timing_s/step": 7.0}, {}])
    cells = texts(cost_table([rule, rerule]))
    # Step 1 warms up; replay starts at step 3: 6 s before, 18 / 2 from then on; 4 of 18, 4 of 24, 4 / 20.
    assert cells["rerule"] == ["4", "0.00944", "6.00", "9.00", "2.00", "22.2%", "16.7%", "+20.0%"]
    # Step 2 has 5 s of validation and checkpoint; step 5 was not timed.
    assert cells["rule"] == ["5", "0.00944", "6.00", "6.50", "–", "–", "–", "–"]
    assert texts(cost_table([run_of("untimed", [{}])]))["untimed"] == ["1", *["–"] * 7]


def save_tokenizer(folder: Path) -> None:
    """One token a word."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        make_probe(0, "forget", "qa", ["one two"], messages=[{"role": "user", "content": "a b c"}]),
        make_probe(1, "forget", "qa", ["one", "not counted"], messages=[{"role": "user", "content": "a"}]),
        make_probe(2, "retain", "qa", ["one"], messages=[{"role": "user", "content": "a b"}]),
    ]
    (tmp_path / "data").mkdir()
    write_probes(tmp_path / "data" / "train.parquet", rows)
    return tmp_path / "data"


def trained_on(folder: Path, *indices: int) -> Run:
    """A run that visited forget prompts twice, 100 and 20 tokens, and retain prompts with unknown tokens."""
    visits = {
        0: Prompt(0, "forget", "qa", "Ada", (Visit(1, 0.5, 100), Visit(2, 0.5, 20))),
        2: Prompt(2, "retain", "qa", "Ben", (Visit(1, 0.5),)),
        9: Prompt(9, "retain", "qa", "Ben", (Visit(1, 0.5),)),
    }
    metrics = [{"replay/drawn_tokens": 1000.0}, {"replay/drawn_tokens": 500.0}]
    return run_of("mine", metrics, prompts={index: visits[index] for index in indices}, folder=folder)


def test_used_rows_count_once_against_all_rows_of_their_side(tmp_path: Path, data: Path) -> None:
    save_tokenizer(tmp_path / "run" / "global_step_3" / "actor" / "huggingface")
    table = tokens_table([trained_on(tmp_path / "run", 0, 2)], data)
    # 5 of 5 + 2 forget tokens, and all 3 of the retain side.
    assert texts(table)["mine"] == ["5", "71.4%", "3", "100.0%", "120", "–", "1,500"]


def test_a_run_on_other_rows_is_refused(tmp_path: Path, data: Path) -> None:
    save_tokenizer(tmp_path / "run" / "global_step_3" / "actor" / "huggingface")
    with pytest.raises(ValueError, match=r"trained on prompt 9, which .*train.parquet lacks"):
        tokens_table([trained_on(tmp_path / "run", 0, 9)], data)


def test_the_tokenizer_may_be_that_of_the_first_model(tmp_path: Path, data: Path) -> None:
    run = trained_on(tmp_path, 0)
    with pytest.raises(ValueError, match=r"run mine: no tokenizer in .*leave --data out"):
        tokens_table([run], data)
    save_tokenizer(tmp_path / "stage1")
    started = {"actor_rollout_ref": {"model": {"path": f"{tmp_path / 'stage1'}"}}}
    assert texts(tokens_table([replace(run, config=started)], data))["mine"][0] == "5"


MIXED = [("yes", 1.0), ("no", 0.0), ("yes", 1.0)]


def write_step(folder: Path, step: int, *groups: tuple[int, str, list[tuple[str, float]]]) -> Path:
    lines = [
        {"index": index, "step": step, "side": side, "mode": "qa", "prompt": f"Q{index}?", "response": text,
         "reward": reward}
        for index, side, answers in groups
        for text, reward in answers
    ]  # fmt: skip
    file = folder / "records" / "rollouts" / f"{step}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_the_groups_with_the_widest_rewards_of_each_side_at_the_first_replay(tmp_path: Path) -> None:
    write_step(tmp_path, 1, (1, "forget", MIXED))
    write_step(
        tmp_path,
        2,
        (9, "retain", [*MIXED, ("  ", 0.0)]),
        (5, "forget", [("a", 0.5), ("b", 0.5)]),
        (4, "forget", MIXED),
        (6, "retain", [("same", 1.0), ("same", 1.0)]),
        (7, "forget", [("a", 0.0), ("b", 1.0), ("c", 1.0)]),
        (8, "forget", [("a", 0.5), ("b", 0.0)]),
    )
    run = run_of("../a b", [{}, {"replay/updates": 1.0}], folder=tmp_path)
    tables = answers_tables([run, replace(run, name="../a/b")])
    assert [table.title for table in tables[:3]] == [f"../a b, step 2: Q{index}?" for index in (7, 4, 9)]
    # The files stay in their folder, whatever the run is called.
    names = [f"answers_{number}__a_b_{place}" for number in (1, 2) for place in (1, 2, 3)]
    assert [table.name for table in tables] == names
    assert texts(tables[2]) == {"yes": ["1", "2"], "no": ["0", "1"], "(empty)": ["0", "1"]}


def test_without_replay_it_is_the_middle_step_and_without_texts_there_is_no_table(tmp_path: Path) -> None:
    run = run_of("rule", [{}], folder=tmp_path)
    assert answers_tables([run]) == []
    for step in (1, 2, 3, 10):
        write_step(tmp_path, step, (step, "retain", MIXED))
    assert [table.title for table in answers_tables([run])] == ["rule, step 3: Q3?"]


@pytest.mark.parametrize("line", ['{"index": 1}', '["x"]', '{"index": 4, "reward": true}'])
def test_a_bad_record_is_named(tmp_path: Path, line: str) -> None:
    file = write_step(tmp_path, 1, (4, "forget", MIXED))
    file.write_text(f"{file.read_text()}{line}\n")
    with pytest.raises(ValueError, match=r"1\.jsonl: line 4 is not a record of a rollout"):
        read_rollouts(file)
