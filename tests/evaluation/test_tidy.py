"""A tidy table of responses that is none is named; golden files have whole ones."""

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
