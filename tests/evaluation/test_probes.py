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


def without_section(table: pa.Table) -> pa.Table:
    rows = table.to_pylist()
    for row in rows:
        del row["extra_info"]["section"]
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["reward_model"]), r"made\.parquet.*reward_model"),
        (without_section, r"extra_info\.section"),
        (lambda table: table.slice(0, 0), r"made\.parquet"),
        (lambda table: pa.concat_tables([table, table.slice(3, 1)]), r"made\.parquet: row 6: .*index"),
        (None, r"made\.parquet"),
    ],
)
def test_rows_that_are_no_probes_are_named(change, message, probes_file, tmp_path):
    if change is not None:
        pq.write_table(change(pq.read_table(probes_file)), tmp_path / "made.parquet")
    with pytest.raises(ValueError, match=message):
        read_probes(tmp_path / "made.parquet")


def test_file_hash(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"abc")
    # the published SHA-256 test vector for "abc"
    assert file_sha256(tmp_path / "file").startswith("ba7816bf8f01cfea414140de5dae2223")
    assert file_sha256(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()
