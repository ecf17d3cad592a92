from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe.rerule.reporting.rollouts import answers_tables, read_groups, rollout_steps, telling_groups
from tests.report.made import run_of


def write_step(folder: Path, step: int, *groups: tuple[int, str, list[tuple[str, float]]]) -> None:
    lines = [
        {"index": index, "step": step, "side": side, "mode": "qa", "prompt": f"Q{index}?", "response": text,
         "reward": reward}
        for index, side, answers in groups
        for text, reward in answers
    ]  # fmt: skip
    file = folder / "records" / "rollouts" / f"{step}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


MIXED = [("yes", 1.0), ("no", 0.0), ("yes", 1.0)]


def test_the_groups_with_the_widest_rewards_of_each_side_at_the_first_replay(tmp_path):
    write_step(tmp_path, 1, (1, "forget", MIXED))
    write_step(
        tmp_path,
        2,
        (5, "forget", [("a", 0.5), ("b", 0.5)]),
        (4, "forget", MIXED),
        (6, "retain", [("same", 1.0), ("same", 1.0)]),
        (7, "forget", [("a", 0.0), ("b", 1.0), ("c", 1.0)]),
        (8, "forget", [("a", 0.5), ("b", 0.0)]),
    )
    run = run_of("mine", [{}, {"replay/updates": 1.0}], folder=tmp_path)
    assert rollout_steps(run) == [1, 2]
    assert [(group.step, group.index) for group in telling_groups(run)] == [(2, 7), (2, 4)]


def test_without_replay_it_is_the_middle_step(tmp_path):
    for step in (1, 2, 3, 10):
        write_step(tmp_path, step, (step, "retain", MIXED))
    assert [group.step for group in telling_groups(run_of("rule", [{}], folder=tmp_path))] == [3]


def test_equal_answers_stand_once_with_their_number(tmp_path):
    write_step(tmp_path, 1, (4, "forget", [*MIXED, ("  ", 0.0)]))
    (table,) = answers_tables([run_of("mine", [{}], folder=tmp_path)])
    assert [(row.name, [cell.text for cell in row.cells]) for row in table.rows] == [
        ("yes", ["1", "2"]),
        ("no", ["0", "1"]),
        ("(empty)", ["0", "1"]),
    ]
    assert table.title == "mine, step 1: Q4?"


def test_the_file_of_a_table_stays_in_its_folder_whatever_the_run_is_called(tmp_path):
    write_step(tmp_path, 1, (4, "forget", MIXED))
    runs = [run_of(name, [{}], folder=tmp_path) for name in ("../a b", "../a/b")]
    assert [table.name for table in answers_tables(runs)] == ["answers_1__a_b_1", "answers_2__a_b_1"]


def test_a_run_without_texts_has_no_such_tables(tmp_path):
    assert answers_tables([run_of("mine", [{}], folder=tmp_path)]) == []


def test_a_bad_record_is_named(tmp_path):
    write_step(tmp_path, 1, (4, "forget", MIXED))
    with (tmp_path / "records" / "rollouts" / "1.jsonl").open("a") as file:
        file.write('{"index": 1}\n')
    with pytest.raises(ValueError, match=r"1\.jsonl: line 4 is not a record of a rollout"):
        read_groups(run_of("mine", [{}], folder=tmp_path), 1)
