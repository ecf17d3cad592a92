from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipe.rerule.evaluation.probes import file_sha256, read_probes


def test_probes_are_read_as_written_in_file_order(probes_file, probes):
    assert read_probes(probes_file) == probes


def test_answers_to_compare_are_read(compared_probes_file, compared_probes):
    assert read_probes(compared_probes_file) == compared_probes


def test_a_missing_column_is_named(probes_file, tmp_path):
    table = pq.read_table(probes_file).drop_columns(["reward_model"])
    pq.write_table(table, tmp_path / "less.parquet")
    with pytest.raises(ValueError, match=r"less\.parquet.*reward_model"):
        read_probes(tmp_path / "less.parquet")


def test_a_missing_field_is_named(probes_file, tmp_path):
    rows = pq.read_table(probes_file).to_pylist()
    for row in rows:
        del row["extra_info"]["section"]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "less.parquet")
    with pytest.raises(ValueError, match=r"extra_info\.section"):
        read_probes(tmp_path / "less.parquet")


def test_an_empty_file_is_refused(probes_file, tmp_path):
    pq.write_table(pq.read_table(probes_file).slice(0, 0), tmp_path / "none.parquet")
    with pytest.raises(ValueError, match=r"none\.parquet"):
        read_probes(tmp_path / "none.parquet")


def test_an_index_that_occurs_twice_is_refused(probes_file, tmp_path):
    table = pq.read_table(probes_file)
    pq.write_table(pa.concat_tables([table, table.slice(3, 1)]), tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match=r"twice\.parquet: row 6: .*index"):
        read_probes(tmp_path / "twice.parquet")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.parquet"):
        read_probes(tmp_path / "nowhere.parquet")


def test_file_hash(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"abc")
    # the published SHA-256 test vector for "abc"
    assert file_sha256(tmp_path / "file").startswith("ba7816bf8f01cfea414140de5dae2223")
    assert file_sha256(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()
