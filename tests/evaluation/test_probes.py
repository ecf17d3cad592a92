"""Probes are read as they were written. What is no probe is in tests/refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipe.rerule.evaluation.probes import Probe, read_probes
from tests.evaluation.conftest import REFERENCES, make_probe, write_probes


def test_probes_are_read_as_written_in_file_order(tmp_path: Path, probes: list[Probe]) -> None:
    compared = [
        make_probe(number, section, "qa", ["Paris"], reference=reference, fact="capital")
        for number, (section, reference) in enumerate(REFERENCES.items(), 10)
    ]
    file = write_probes(tmp_path / "probes.parquet", [*probes, *compared])
    assert read_probes(file) == [*probes, *compared]
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table, table.slice(3, 1)]), file)
    with pytest.raises(ValueError, match=r"probes\.parquet: row 8: .*index"):
        read_probes(file)
