"""The scores of all bases in one parquet file, as `benchmarks.survival.results`, with the plan's hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.study.attacked.plan import BASES, PLAN
from benchmarks.study.planned.plan import plan_hash
from benchmarks.study.runs import StudyError
from benchmarks.survival.results import SCHEMA, Scores, read_sets, score_table, write_table
from recipe.rerule.evaluation.attacks.material import FORGET


@dataclass(frozen=True)
class Attacked:
    """What a result file holds.

    Attributes:
        sets: scores by set (`attacks.material`), attack and model, base, and fact.
        plan: hash of the plan that they were made under.
        models: fingerprint of the stage-1 model by base.
    """

    sets: Mapping[str, Scores]
    plan: str
    models: Mapping[int, str]

    @property
    def bases(self) -> list[int]:
        """Those of the plan that were attacked."""
        found = {base for of_bases in self.sets.get(FORGET, {}).values() for base in of_bases}
        return [base for base in BASES if base in found]


def write(path: Path, folders: Mapping[int, Path], models: Mapping[int, str]) -> None:
    """Write the scores of each base's folder of attacks; other bases of a file that is there stay in it.

    models: fingerprint of each base's stage-1 model.

    Raises:
        StudyError: what is at `path` is none of this study, or of another plan.
    """
    table, told = score_table(folders), dict(models)
    if path.exists():
        before = read(path)
        if before.plan != plan_hash(PLAN):
            raise StudyError(f"{path} was made under plan {before.plan}; choose another file")
        told = {**before.models, **told}
        kept = pq.read_table(path).cast(SCHEMA)
        others = [base not in folders for base in kept["seed"].to_pylist()]
        table = pa.concat_tables([kept.filter(others), table])
    notes = {"plan": plan_hash(PLAN), "models": json.dumps({str(base): told[base] for base in sorted(told)})}
    write_table(path, table.replace_schema_metadata(notes))


def read(path: Path) -> Attacked:
    """The scores of a file.

    Raises:
        StudyError: it is missing, or none of this study.
    """
    try:
        sets, told = read_sets(path), pq.read_schema(path).metadata or {}
        models = {int(base): model for base, model in json.loads(told[b"models"]).items()}
        return Attacked(sets, told[b"plan"].decode(), models)
    except (OSError, ValueError, KeyError) as error:
        raise StudyError(f"{path} has no attacks of this study: {error!r}") from error
