"""The tidy table is written and read whole, and a file that is none is named."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from recipe.rerule.evaluation import tidy

ROW: dict[str, Any] = {
    **{"model": "base", "probe": 3, "side": "forget", "kind": "qa", "fact": "capital", "sample": 0},
    **{"prompt": "What is it?", "response": "Ödön", "rouge_l": 0.5},
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probe": "3"}, "column probe holds something"),
        ({"response": None}, "column response holds something"),
        ({"family": 1}, "column family holds something"),
        ({"golds": []}, "column golds holds something"),
        ({}, "two responses of one probe .model base, side forget, kind qa, probe 3, sample 0"),
        (None, "no column fact; a tidy table has model, probe"),
    ],
)
def test_responses_are_checked_in_full(tmp_path, changes, message):
    rows = pd.DataFrame([ROW | (changes or {})] * 2)
    (rows.drop(columns="fact") if changes is None else rows).to_parquet(tmp_path / tidy.FILE)
    with pytest.raises(ValueError, match=message):
        tidy.read_responses(tmp_path)


def test_rows_become_columns_of_numbers_and_facts_their_first_probe() -> None:
    rows = [{"probe": 7, "f": "a", "x": True}, {"probe": 8, "f": "a", "x": None}, {"probe": 9, "f": "b"}]
    named = tidy.with_facts([*rows, {"probe": 3, "f": "a", "fact": "birthplace"}], lambda row: row["f"])
    assert [row["fact"] for row in named] == ["probe 7", "probe 7", "probe 9", "birthplace"]
    table = tidy.from_rows(named)
    assert list(table) == ["probe", "fact", "f", "x"]
    assert table["x"].isna().tolist() == [False, True, True, True]
    assert table["x"].dtype == float
