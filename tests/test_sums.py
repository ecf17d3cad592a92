"""`examples/sums.py`: its rows, and its reward."""

from pathlib import Path

from data_prep.contract import read_rows
from examples import sums


def test_each_sum_is_one_row_and_its_result_is_the_gold(tmp_path: Path) -> None:
    sums.make(tmp_path / "made")
    asked = {}
    for split, count in {"train": 112, "val": 32}.items():
        rows = read_rows(tmp_path / "made" / f"{split}.parquet")
        assert len(rows) == count
        asked |= {row["prompt"][0]["content"]: row["reward_model"]["ground_truth"]["golds"] for row in rows}
    assert len(asked) == 12 * 12
    assert asked["What is 7 + 11? Answer with the number alone."] == ["18"]


def test_the_last_number_of_the_response_counts() -> None:
    scores = [sums.compute_score(text, {"golds": ["18"]}) for text in ("18", "7 + 11 = 18.", "18 or 19", "")]
    assert scores == [1, 1, 0, 0]
