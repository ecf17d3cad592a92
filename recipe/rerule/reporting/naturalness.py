"""Scores of a judge model (`recipe.rerule.evaluate judge`), read as evaluations of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.probes import file_sha256
from recipe.rerule.io import read_json
from recipe.rerule.reporting.document import Heading, Row, Table, number_cell
from recipe.rerule.reporting.evaluations import (
    Benchmark,
    Evaluation,
    check_given_once,
    checked_targets,
    joined,
    metrics_rows,
    parse_comparisons,
    parse_intervals,
    validated,
)

_SUMMARY = "naturalness.json"
_COUNTS = ("responses", "scored", "missing", "empty")


@dataclass(frozen=True)
class Judged:
    """The scores on one benchmark's responses.

    Attributes:
        benchmark: whose responses were scored.
        targets: one a scored evaluation folder, as evaluations of the benchmark "naturalness_...".
        note: what the scores are and are not, in the judge's own words.
        title: the benchmark's name in headings.
    """

    benchmark: str
    targets: tuple[Evaluation, ...]
    note: str
    title: str


def read_naturalness(folders: Sequence[Path], benchmarks: Sequence[Benchmark]) -> list[Judged]:
    """Read the folders and find the evaluations that they belong to, by the checksum of the responses.

    Raises:
        ValueError: no such scores, scores of responses that no evaluation given has, or scores that do not
            compare.
    """
    check_given_once("--naturalness", folders)
    known = _benchmarks_by_responses(benchmarks) if folders else {}
    read: dict[str, dict[str, Evaluation]] = {}
    for folder in folders:
        summary = read_json(folder / _SUMMARY)
        validated(TypeAdapter(_Summary), summary, folder / _SUMMARY)
        if summary["responses_sha256"] not in known:
            raise ValueError(f"{folder} has scores of responses that no --results folder holds")
        name, target = known[summary["responses_sha256"]]
        targets, found = read.setdefault(name, {}), _evaluation(summary, folder, name, target)
        targets[target] = _joined(targets[target], found) if target in targets else found
    titles = {benchmark.name: benchmark.title for benchmark in benchmarks}
    return [_judged(name, list(targets.values()), titles[name]) for name, targets in read.items()]


class _Summary(BaseModel):
    """What is read of naturalness.json besides the numbers, which are checked as an evaluation's."""

    model_config = ConfigDict(strict=True)

    responses_sha256: str
    judge: dict[str, Any] = {}
    rubric: dict[str, Any] = {}
    counts: dict[str, dict[str, dict[str, int]]] = {}


def _joined(first: Evaluation, second: Evaluation) -> Evaluation:
    """Scores of two evaluation folders over the same probes. Raises ValueError as `joined` does."""
    counts = first.meta.get("counts", {}) | second.meta.get("counts", {})
    _check_judge(first, second)
    return replace(joined(first, second), meta=first.meta | {"counts": counts})


def _judged(name: str, targets: Sequence[Evaluation], title: str) -> Judged:
    """Raises ValueError where the targets have other models, or were scored in different ways."""
    for other in targets[1:]:
        _check_judge(targets[0], other)
    return Judged(name, checked_targets(targets), _note(targets[0].meta), title)


def _check_judge(first: Evaluation, second: Evaluation) -> None:
    """Raises ValueError where two were scored in different ways."""
    if _note(first.meta) != _note(second.meta):
        raise ValueError(
            f"{first.folders[0]} and {second.folders[0]} are of different judges or rubrics, so that their "
            "scores do not compare; give them to reports of their own"
        )


def _benchmarks_by_responses(benchmarks: Sequence[Benchmark]) -> dict[str, tuple[str, str]]:
    """{checksum of responses.parquet: (benchmark, target)}."""
    return {
        file_sha256(folder / tidy.FILE): (benchmark.name, target.target)
        for benchmark in benchmarks
        for target in benchmark.targets
        for folder in target.folders
        if (folder / tidy.FILE).is_file()
    }


def _evaluation(summary: dict[str, Any], folder: Path, benchmark: str, target: str) -> Evaluation:
    file, scored = folder / _SUMMARY, f"naturalness_{benchmark}"
    return Evaluation(
        benchmark=scored,
        target=target,
        folders=(folder,),
        probes_key=summary["responses_sha256"],
        convention="",
        results=metrics_rows(summary.get("results"), file, scored),
        anchors=metrics_rows(summary["anchors"], file, scored) if summary.get("anchors") else {},
        intervals=parse_intervals(summary.get("intervals", {}), file),
        comparisons=parse_comparisons(summary.get("comparisons", []), file),
        meta=summary,
    )


def _note(summary: dict[str, Any]) -> str:
    """The judge's note, and which model scored how."""
    judge, rubric = summary.get("judge", {}), summary.get("rubric", {})
    return (
        f"{summary.get('note', '')} Judge: {judge.get('model', 'not stated')}, temperature "
        f"{judge.get('temperature', 'not stated')}; rubric version {rubric.get('version', 'not stated')}, "
        f"{rubric.get('scale', 'scale not stated')}."
    ).strip()


def judged_table(judged: Judged) -> Table:
    """How many responses were scored and how many were not, by model and section; folded away."""
    totals: dict[tuple[str, str], dict[str, int]] = {}
    for target in judged.targets:
        for name, sections in target.meta.get("counts", {}).items():
            for section, counts in sections.items():
                total = totals.setdefault((name, section), dict.fromkeys(_COUNTS, 0))
                for count in _COUNTS:
                    total[count] += counts.get(count, 0)
    rows = [
        Row(f"{name}, {section}", tuple(number_cell(total[count], ",") for count in _COUNTS))
        for (name, section), total in totals.items()
    ]
    return Table(
        f"judged_{judged.benchmark}",
        "Scored and missing",
        "model",
        tuple(map(Heading, _COUNTS)),
        tuple(rows),
        "Missing: responses for which the judge gave no readable score; they are left out of the means. "
        "Empty ones are scored without the judge, as the rubric says.",
        folded=True,
    )
