"""The results of all worlds in a folder of two files, which can be committed and continued elsewhere.

runs.parquet has the measures, as `benchmarks.study.results` writes them; scores.parquet has the score of
every probe under every attack, as `benchmarks.survival.results` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.leaderboard.table import method_of
from benchmarks.scoreboard.plan import REFERENCES, Axis
from benchmarks.study import results as study_results
from benchmarks.study.runs import StudyRun
from benchmarks.survival import results as attack_results
from recipe.rerule.reporting.attacks.results import CONTROL

RUNS, SCORES = "runs.parquet", "scores.parquet"
_KEY = ("seed", "model")


@dataclass(frozen=True)
class Results:
    """Measures by method and world, and scores of the facts to forget by attack and method."""

    runs: Mapping[tuple[str, int], StudyRun]
    scores: attack_results.Scores

    @property
    def methods(self) -> list[str]:
        """All rows, in the order of the file."""
        return list(dict.fromkeys(method for method, _ in self.runs))

    def values(self, method: str, axis: Axis) -> dict[int, float]:
        """A method's number on each world where it has been measured."""
        if axis.measures:
            finals = {seed: run.final for (name, seed), run in self.runs.items() if name == method}
            return {seed: mean(final[one] for one in axis.measures) for seed, final in finals.items()}
        leaked = self._means(axis.attack, _attacked_name(method))
        floor = self._means(axis.attack, CONTROL)
        return {seed: value - floor[seed] for seed, value in leaked.items() if seed in floor}

    def _means(self, attack: str, model: str) -> dict[int, float]:
        return {seed: mean(facts.values()) for seed, facts in self.scores.get((attack, model), {}).items()}


def _attacked_name(method: str) -> str:
    return next((name for name, row in REFERENCES.items() if row == method), method)


def read(folder: Path) -> Results:
    """The results in a folder. Raises ValueError where a file is missing or is another one."""
    runs = study_results.read_results(folder / RUNS)
    return Results(
        {(method_of(run), run.seed): run for run in runs}, attack_results.read_results(folder / SCORES)
    )


def finished(folder: Path, methods: Sequence[str]) -> set[int]:
    """The worlds of which a folder has every one of these methods. Raises as `read`."""
    if not (folder / RUNS).is_file():
        return set()
    runs = read(folder).runs
    seeds = {seed for _, seed in runs}
    return {seed for seed in seeds if all((method, seed) in runs for method in methods)}


def add(folder: Path, seed: int, runs: Sequence[StudyRun], attacks: Path) -> None:
    """Put a world into the folder's files, in place of what they have of the same methods on it.

    Raises:
        ValueError: a file in the folder is another one, or has other methods on the world that started from
            another stage-1 model, as another machine trains it; or the attacks' folder has no scores.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = study_results.read_results(folder / RUNS) if (folder / RUNS).is_file() else []
    again = {(method_of(run), run.seed) for run in runs}
    kept = [run for run in known if (method_of(run), run.seed) not in again]
    _check_start(folder / RUNS, kept, runs)
    new = folder / f"{SCORES}.new"
    attack_results.write_results(new, {seed: attacks})
    _merge(folder / SCORES, new)
    study_results.write_results(folder / RUNS, [*kept, *runs])


def _check_start(path: Path, kept: Sequence[StudyRun], runs: Sequence[StudyRun]) -> None:
    starts = {run.seed: run.model for run in runs}
    for run in kept:
        if starts.get(run.seed, run.model) != run.model:
            raise ValueError(
                f"{path} has {method_of(run)} of world {run.seed} from another stage-1 model, as another "
                "machine trains it; give another --results, or run all methods of that world again"
            )


def _merge(path: Path, new: Path) -> None:
    """Replace `path` by its rows and those of `new`, which win where both have a world and model."""
    table = pq.read_table(new)
    if path.is_file():
        attack_results.read_sets(path)
        known = pq.read_table(path)
        again = {tuple(row.values()) for row in table.select(_KEY).group_by(_KEY).aggregate([]).to_pylist()}
        stays = [tuple(row.values()) not in again for row in known.select(_KEY).to_pylist()]
        table = pa.concat_tables([known.filter(pa.array(stays, pa.bool_())), table])
    pq.write_table(table.cast(attack_results.SCHEMA), new, compression="zstd")
    new.replace(path)
