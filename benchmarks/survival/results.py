"""The scores of all seeds in one parquet file, which can be committed.

A row is the score of one unit of evidence (a probe, or a text) of one set under one attack on one model. A
unit that is a number is a probe of the world.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recipe.rerule.evaluation.attack_command.output import SCORES
from recipe.rerule.evaluation.attacks.material import FORGET
from recipe.rerule.evaluation.benchmarks.world.declaration import PHRASINGS
from recipe.rerule.process.json_input import read_lines

SCHEMA = pa.schema(
    {
        "seed": pa.int64(),
        "attack": pa.dictionary(pa.int32(), pa.string()),
        "model": pa.dictionary(pa.int32(), pa.string()),
        "set": pa.dictionary(pa.int32(), pa.string()),
        "unit": pa.string(),
        "value": pa.float32(),
    }
)
Scores = Mapping[tuple[str, str], Mapping[int, Mapping[Hashable, float]]]
"""{(attack, model): {seed: {fact: mean score}}}, of the units of one set."""


def write_results(path: Path, folders: Mapping[int, Path]) -> None:
    """Write the scores of each seed's attack folder. Raises ValueError where one has none."""
    write_table(path, score_table(folders))


def score_table(folders: Mapping[int, Path]) -> pa.Table:
    """The scores of each seed's attack folder, as SCHEMA says. Raises ValueError where one has none."""
    rows = [
        {"seed": seed, **record, "unit": str(record["unit"])}
        for seed, folder in folders.items()
        for _, record in read_lines(folder / SCORES)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a file, which is whole or as it was."""
    part = path.with_name(path.name + ".part")
    pq.write_table(table, part, compression="zstd")
    part.replace(path)


def read_results(path: Path) -> Scores:
    """The mean score of each fact to forget. Raises ValueError where the file is no such results."""
    return read_sets(path).get(FORGET, {})


def read_sets(path: Path) -> dict[str, Scores]:
    """The mean score of each fact, by set (`attacks.material`). Raises as `read_results`."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path} is no result file of benchmarks.survival: {error}") from None
    if table.schema.names != SCHEMA.names:
        raise ValueError(f"{path} has the columns {table.schema.names}, not those of benchmarks.survival")
    values: dict[str, Any] = defaultdict(_nested)
    for row in table.to_pylist():
        place = values[row["set"]][row["attack"], row["model"]][row["seed"]]
        place.setdefault(_fact(row["unit"]), []).append(row["value"])
    return {name: _means(of_set) for name, of_set in values.items()}


def _nested() -> Any:
    return defaultdict(lambda: defaultdict(dict))


def _means(of_set: Any) -> Scores:
    return {
        place: {
            seed: {fact: sum(of_fact) / len(of_fact) for fact, of_fact in facts.items()}
            for seed, facts in seeds.items()
        }
        for place, seeds in of_set.items()
    }


def _fact(unit: str) -> Hashable:
    """All phrasings of a fact are one; a text is a fact of its own."""
    return int(unit) // PHRASINGS if unit.isdecimal() else unit
