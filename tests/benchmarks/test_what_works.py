"""`benchmarks.what_works`: its arms are settings that exist, and its table says what the responses say."""

import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import what_works
from tests.document_programs import composed


@pytest.mark.parametrize("name", what_works.ARMS)
def test_the_settings_of_an_arm_exist(name: str) -> None:
    arm = what_works.ARMS[name]
    for platform, settings in what_works.PLATFORMS.items():
        composed("recipe.rerule.sft", (f"platform={platform}", *what_works.STAGE1, *arm.stage1))
        if arm.stage2 is not None:
            words = (f"platform={platform}", *what_works.STAGE2, *settings, *arm.stage2)
            assert composed("recipe.rerule.main", words).replay.enable == ("replay.enable=true" in arm.stage2)
        if arm.po:
            composed("recipe.rerule.unlearn", (f"platform={platform}", *what_works.PO))


def test_held_out_answers_are_averaged_by_model_and_side(tmp_path: Path) -> None:
    """0.9 of the base model's 0.8 is 0.72: the last step reaches the goal, the best one has 0.71."""
    answers = {  # model: recalls and refusals of two forget and of two retain answers
        "base": ([1.0, 0.5, 1.0, 0.6], [0, 0, 0, 0]),
        "last": ([0.0, 0.2, 1.0, 0.44], [1, 0, 0, 1]),
        "best": ([0.0, 0.2, 1.0, 0.42], [1, 1, 0, 1]),
    }
    sides = ["forget", "forget", "retain", "retain"]
    tables = [
        pd.DataFrame({"model": name, "side": sides, "rouge_l": recalls, "refused": refused})
        for name, (recalls, refused) in answers.items()
    ]
    pd.concat(tables).to_parquet(tmp_path / "responses.parquet")
    found = what_works.held_out(tmp_path / "responses.parquet")
    names = ("forget recall", "forget refused", "retain recall", "retain refused")
    assert {model: tuple(values[name] for name in names) for model, values in found.items()} == {
        "base": (0.75, 0.0, 0.8, 0.0),
        "last": (0.1, 0.5, 0.72, 0.5),
        "best": (0.1, 1.0, 0.71, 0.5),
    }
    table = what_works.table(
        [{"platform": "gpu", "arm": "rule", "seed": 1, "held_out": found, "reward": 0.875}]
    )
    assert [row.split(" | ")[-1] for row in table.splitlines()[2:]] == ["no |", "no |", "yes |"]
    assert "| rule | gpu | 1 | last | 0.10 | 0.50 | 0.72 | 0.50 | 0.88 | yes |" in table


def test_reward_is_the_mean_of_the_last_ten_steps_and_of_both_sides(tmp_path: Path) -> None:
    """Steps 3 to 12: forget 0.3 to 1.2, mean 0.75; retain 0.5; validations are no steps."""
    steps = [{"reward/forget/mean": step / 10, "reward/retain/mean": 0.5} for step in range(1, 13)]
    lines = [json.dumps({"step": 0, "data": step}) for step in [*steps, {"val-health/score": 1.0}]]
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "metrics.jsonl").write_text("\n".join(lines))
    assert what_works.reward(tmp_path) == 0.625
