"""The tidy table is written and read whole, and a file that is none is named."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from recipe.rerule.evaluation import tidy

ROW = {
    "model": "base",
    "probe": 3,
    "side": "forget",
    "kind": "qa",
    "fact": "capital",
    "sample": 0,
    "prompt": "What is it?",
    "response": "Ödön",
    "rouge_l": 0.5,
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rows = pd.DataFrame([ROW, {**ROW, "sample": 1, "rouge_l": float("nan")}])
    tidy.write(tmp_path, rows)
    pd.testing.assert_frame_equal(tidy.read(tmp_path), rows)


@pytest.mark.parametrize("content", [None, b"", b"no parquet"])
def test_a_file_that_is_no_table(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / tidy.FILE).write_bytes(content)
    with pytest.raises(tidy.TableError, match=tidy.FILE):
        tidy.read(tmp_path)


def test_a_missing_column(tmp_path: Path) -> None:
    rows = pd.DataFrame([ROW]).drop(columns="fact")
    with pytest.raises(tidy.TableError, match="no column fact"):
        tidy.write(tmp_path, rows)
    rows.to_parquet(tmp_path / tidy.FILE)
    with pytest.raises(tidy.TableError, match="no column fact"):
        tidy.read(tmp_path)
