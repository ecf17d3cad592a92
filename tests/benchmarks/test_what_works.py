"""`benchmarks.what_works`: its arms are settings that exist, and its table says what the responses say."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks import what_works
from tests.document_programs import composed

ANSWERS = [  # model, section, rouge_l, refused
    ("base", "forget", 1.0, 0),
    ("base", "forget", 0.5, 0),
    ("base", "retain", 1.0, 0),
    ("base", "retain", 0.6, 0),
    ("last", "forget", 0.0, 1),
    ("last", "forget", 0.2, 0),
    ("last", "retain", 1.0, 0),
    ("last", "retain", 0.44, 1),
    ("best", "forget", 0.0, 1),
    ("best", "forget", 0.2, 1),
    ("best", "retain", 1.0, 0),
    ("best", "retain", 0.42, 1),
]


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


def test_arms_differ() -> None:
    assert len(set(what_works.ARMS.values())) == len(what_works.ARMS)


def test_held_out_answers_are_averaged_by_model_and_side(tmp_path: Path) -> None:
    file = tmp_path / "responses.parquet"
    pd.DataFrame(ANSWERS, columns=["model", "side", "rouge_l", "refused"]).to_parquet(file)
    found = what_works.held_out(file)
    assert found["base"] == {
        "forget recall": 0.75,
        "forget refused": 0.0,
        "retain recall": 0.8,
        "retain refused": 0.0,
    }
    assert found["last"] == {
        "forget recall": 0.1,
        "forget refused": 0.5,
        "retain recall": 0.72,
        "retain refused": 0.5,
    }
    # 0.9 of the base model's 0.8 is 0.72: the last step reaches the goal, the best one has 0.71.
    table = what_works.table([{"platform": "gpu", "arm": "rule", "seed": 1, "held_out": found}])
    assert [row.split(" | ")[-1] for row in table.splitlines()[2:]] == ["no |", "no |", "yes |"]
    assert "| rule | gpu | 1 | last | 0.10 | 0.50 | 0.72 | 0.50 | yes |" in table
