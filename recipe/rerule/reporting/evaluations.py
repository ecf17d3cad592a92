"""Folders of `evaluate model` and `evaluate judge`, and how several of them are joined.

Folders of one benchmark over the same probes are joined by model: one table with the models of all. Folders
over different probes (one set a target) are joined by target: each metric is the mean over targets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from scipy.stats import norm

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks.summary import RESULTS as ATTACK_RESULTS
from recipe.rerule.evaluation.registry import OWN_DATA, UNSTATED, benchmarks
from recipe.rerule.evaluation.summary import Metrics, holm
from recipe.rerule.evaluation.table import JUDGED, title_of
from recipe.rerule.io import file_sha256, read_json, warn

_T = TypeVar("_T")
NUMBERS = ["kind", "name", "metric", "value", "low", "high"]
TESTS = ["a", "b", "metric", "difference", "low", "high", "p_value", "p_holm", "probes", "facts", "test"]
_SUMMARY = "naturalness.json"
_ROUNDING = 1e-6
_Z_95 = norm.ppf(0.975)
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Probability = Annotated[float, Field(ge=0, le=1 + _ROUNDING)]
_Ends = Annotated[list[_Number], Field(min_length=2, max_length=2)]
_Row = Annotated[dict[str, _Number], Field(min_length=1)]


class _Test(BaseModel):
    """A paired test, as comparisons.json has it."""

    model_config = ConfigDict(strict=True)

    a: str
    b: str
    metric: str
    difference: _Number
    low: _Number
    high: _Number
    p_value: _Probability
    p_holm: _Probability | None = None
    probes: int
    facts: int | None = None
    test: str


class _Probes(BaseModel):
    """What is read of `probes` in meta.json."""

    model_config = ConfigDict(strict=True, extra="allow")

    sha256: Any = None
    facts: dict[str, int] = {}


class _Meta(BaseModel):
    """What is read of meta.json."""

    model_config = ConfigDict(strict=True, extra="allow")

    # Files of the report are named after it.
    benchmark: Annotated[str, Field(pattern=r"^\w{1,60}$")] = UNSTATED
    rouge_l_convention: str = "not stated"
    probes: _Probes = _Probes()
    models: dict[str, dict[str, Any]] = {}
    benchmark_settings: dict[str, Any] = {}


class _Summary(BaseModel):
    """What is read of naturalness.json besides the numbers."""

    model_config = ConfigDict(strict=True)

    responses_sha256: str
    judge: dict[str, Any] = {}
    rubric: dict[str, Any] = {}
    counts: dict[str, dict[str, dict[str, int]]] = {}
    limit: int | None = None


_PARTS: dict[str, TypeAdapter[Any]] = {
    "results": TypeAdapter(Annotated[dict[str, _Row], Field(min_length=1)]),
    "anchors": TypeAdapter(dict[str, dict[str, _Number]]),
    "intervals": TypeAdapter(dict[str, dict[str, _Ends]]),
    "comparisons": TypeAdapter(list[_Test]),
}
"""The numbers of an evaluation, each in a file of its own, or of a judge, in one file."""


def validated(adapter: TypeAdapter[_T], content: Any, file: Path) -> _T:
    """`content` of a JSON file, as the adapter's type. Raises ValueError, which names file and place."""
    try:
        return adapter.validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = "/".join(map(str, first["loc"])) or "the whole"
        raise ValueError(
            f"{file} is not as recipe.rerule.evaluate writes it: {place}: {first['msg']}"
        ) from None


@dataclass(frozen=True)
class Evaluation:
    """One evaluation folder, or several over the same probes.

    Attributes:
        benchmark: its name, one of the registry's or another; of a judge's scores "naturalness_NAME".
        target: the one subject of its forget probes, else the folder's name.
        folders: where it was read from.
        probes_key: equal for two evaluations over the same probes.
        convention: how it asked and scored; of a judge's scores which judge and rubric, in its own words.
        numbers: a row for each model or constant answer and metric, with the columns NUMBERS: `kind` is
            "model" or "anchor", `low` and `high` are the ends of the 95 % interval, NaN without one.
        tests: paired tests, with the columns TESTS; `difference` is the number of `a` less that of `b`, and
            `p_holm` and `facts` are NaN where the evaluation does not give them.
        models: {model: what meta.json says of it}; of a judge's scores {model or constant answer: how many
            "responses" it has and how many of these are "missing" a score}.
        meta: meta.json of the first folder.
    """

    benchmark: str
    target: str
    folders: tuple[Path, ...]
    probes_key: str
    convention: str
    numbers: pd.DataFrame
    tests: pd.DataFrame
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def results(self) -> dict[str, Metrics]:
        """{model: {metric: number}}, models in their order."""
        return self._rows("model")

    @cached_property
    def anchors(self) -> dict[str, Metrics]:
        """The same for constant answers."""
        return self._rows("anchor")

    def _rows(self, kind: str) -> dict[str, Metrics]:
        rows = self.numbers[self.numbers["kind"] == kind].groupby("name", sort=False)
        return {str(name): dict(zip(of["metric"], of["value"], strict=True)) for name, of in rows}

    def responses(self) -> pd.DataFrame | None:
        """The tidy table of all its folders; None where no folder keeps one.

        A model that several folders evaluated on the same probes has its first answers.
        """
        tables = [tidy.read_responses(one) for one in self.folders if (one / tidy.FILE).is_file()]
        kept: list[pd.DataFrame] = []
        for table in tables:
            seen = {model for earlier in kept for model in earlier["model"].unique()}
            kept.append(table[~table["model"].isin(seen)])
        return pd.concat(kept, ignore_index=True) if kept else None


@dataclass(frozen=True)
class Benchmark:
    """All evaluations of one benchmark, one a target, all with the same models; `title` is for headings."""

    name: str
    title: str
    targets: tuple[Evaluation, ...]

    @cached_property
    def mean(self) -> Evaluation:
        """The mean over the targets."""
        return mean_over_targets(self.targets)


def read_benchmarks(paths: Sequence[Path], own_title: str | None = None) -> list[Benchmark]:
    """Read evaluation folders (or their results.json) and join them, in the order given.

    `own_title` is what data of one's own is called.

    Raises ValueError: a missing or malformed file, a model with other numbers in two folders over the same
    probes, or targets whose mean would compare what is not alike: with other models, asked or scored
    differently, or one target twice.
    """
    check_given_once("--results", paths)
    return _joined(map(read_evaluation, paths), lambda name: heading_of(name, own_title))


def heading_of(benchmark: str, own_title: str | None) -> str:
    """The benchmark's title, or `own_title` for data of one's own where it is given."""
    return own_title if benchmark == OWN_DATA and own_title else title_of(benchmark)


def folder_of(path: Path) -> Path:
    """The folder that is given by its own path, or by that of a file in it."""
    return path if path.is_dir() or not path.suffix else path.parent


def check_given_once(option: str, paths: Iterable[Path]) -> None:
    """Raises ValueError where two paths are one folder: its numbers would count twice."""
    for first, second in combinations(paths, 2):
        if folder_of(first).resolve() == folder_of(second).resolve():
            raise ValueError(f"{option} {second} is given twice; give each folder once")


def read_evaluation(path: Path) -> Evaluation:
    """One evaluation folder. Raises ValueError as `read_benchmarks` does."""
    folder = folder_of(path)
    files = {part: folder / f"{part}.json" for part in _PARTS}
    if folder != path:
        files["results"] = path
    if not files["results"].is_file() and (folder / ATTACK_RESULTS).is_file():
        raise ValueError(f"--results {path} is a folder of evaluate attack; give it as --attacks")
    meta_file = folder / "meta.json"
    meta = read_json(meta_file) if meta_file.exists() else {}
    known = validated(TypeAdapter(_Meta), meta, meta_file)
    parts = {part: read_json(file) for part, file in files.items() if part == "results" or file.exists()}
    declared = benchmarks().get(known.benchmark)
    numbers, tests = _numbers(parts, files, declared.fractions if declared else "", 1)
    settings = known.benchmark_settings.items()
    asked = [f"{name.replace('_', ' ')}: {value}" for name, value in settings if value is not None]
    evaluation = Evaluation(
        known.benchmark,
        folder.name,
        (folder,),
        # An evaluation that does not say its probes is taken to stand alone.
        str(known.probes.sha256 or folder.resolve()),
        "; ".join([known.rouge_l_convention, *asked]),
        numbers,
        tests,
        known.models,
        meta,
    )
    return replace(evaluation, target=_target(evaluation))


def read_naturalness(folders: Sequence[Path], known: Sequence[Benchmark]) -> list[Benchmark]:
    """The scores of a judge (`evaluate judge`) on the responses of `known` evaluations.

    Each evaluation of a benchmark has the name "naturalness_BENCHMARK". The checksum of the responses says to
    which evaluation a folder belongs.

    Raises ValueError: no such scores, scores of responses that no evaluation given has, or scores that do not
    compare.
    """
    check_given_once("--naturalness", folders)
    targets = {
        file_sha256(folder / tidy.FILE): (benchmark.name, target.target)
        for benchmark in known
        for target in benchmark.targets
        for folder in target.folders
        if folders and (folder / tidy.FILE).is_file()
    }
    read = [_read_scores(folder, targets) for folder in folders]
    for first, second in combinations(read, 2):
        if first.benchmark == second.benchmark and first.convention != second.convention:
            raise ValueError(
                f"{first.folders[0]} and {second.folders[0]} are of different judges or rubrics, so that "
                "their scores do not compare; give them to reports of their own"
            )
    titles = {f"{JUDGED}{benchmark.name}": f"Naturalness on {benchmark.title}" for benchmark in known}
    return _joined(read, titles.__getitem__)


def _read_scores(folder: Path, targets: Mapping[str, tuple[str, str]]) -> Evaluation:
    file = folder / _SUMMARY
    content = read_json(file)
    summary = validated(TypeAdapter(_Summary), content, file)
    if summary.responses_sha256 not in targets:
        raise ValueError(f"{folder} has scores of responses that no --results folder holds")
    benchmark, target = targets[summary.responses_sha256]
    numbers, tests = _numbers(content, dict.fromkeys(_PARTS, file), ".*", 100)
    judge, rubric = summary.judge, summary.rubric
    note = (
        f"{content.get('note', '')} Judge: {judge.get('model', 'not stated')}, temperature "
        f"{judge.get('temperature', 'not stated')}; rubric version {rubric.get('version', 'not stated')}, "
        f"{rubric.get('scale', 'scale not stated')}, sha256 {str(rubric.get('sha256', 'not stated'))[:8]}; "
        f"{'all probes' if summary.limit is None else f'at most {summary.limit} probes of a section'}."
    ).strip()
    counts = {
        name: {what: sum(one.get(what, 0) for one in sections.values()) for what in ("responses", "missing")}
        for name, sections in summary.counts.items()
    }
    return Evaluation(
        f"{JUDGED}{benchmark}", target, (folder,), target, note, numbers, tests, counts, content
    )


def _numbers(
    parts: Mapping[str, Any], files: Mapping[str, Path], bounded: str, most: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Numbers and tests of the parts of an evaluation. Raises ValueError naming the file of a wrong part.

    `bounded` is a regular expression of the metrics that lie between 0 and `most`.
    """
    empty: dict[str, Any] = {"anchors": {}, "intervals": {}, "comparisons": []}
    results, anchors, intervals, tests = (
        validated(adapter, parts.get(part, empty.get(part)), files[part]) for part, adapter in _PARTS.items()
    )
    rows = []
    for kind, part, of_kind in (("model", "results", results), ("anchor", "anchors", anchors)):
        for name, metrics in of_kind.items():
            for metric, value in metrics.items():
                if re.fullmatch(bounded, metric) and not -_ROUNDING <= value <= most + _ROUNDING:
                    hint = "; evaluations give fractions of 1, not per cent" if most == 1 else ""
                    raise ValueError(
                        f"{files[part]}: {metric} of {name} is {value:g}, outside 0 to {most}{hint}"
                    )
                low, high = intervals.get(name, {}).get(metric, (math.nan, math.nan))
                if low > high:
                    told = f"the interval of {metric} of {name} ends before it begins"
                    raise ValueError(f"{files['intervals']}: {told}")
                rows.append((kind, name, metric, value, low, high))
    told = pd.DataFrame([test.model_dump() for test in tests], columns=TESTS)
    return pd.DataFrame(rows, columns=NUMBERS), told.astype({"p_holm": float, "facts": float})


def _target(evaluation: Evaluation) -> str:
    """The one subject of the forget probes, else the folder's name."""
    table = evaluation.responses()
    forget = pd.DataFrame() if table is None else table[table["side"] == "forget"]
    column = "target" if "target" in forget else "subject"
    subjects = [one for one in forget.get(column, pd.Series(dtype=str)).unique() if one]
    return str(subjects[0]) if len(subjects) == 1 else evaluation.target


def _joined(evaluations: Iterable[Evaluation], title: Callable[[str], str]) -> list[Benchmark]:
    """The evaluations by benchmark and target, in order. Raises ValueError as `read_benchmarks` does."""
    by_name: dict[str, dict[str, Evaluation]] = {}
    for read in evaluations:
        targets = by_name.setdefault(read.benchmark, {})
        earlier = targets.get(read.probes_key)
        targets[read.probes_key] = _with_models_of(earlier, read) if earlier else read
    for targets in by_name.values():
        for first, second in combinations(targets.values(), 2):
            _check_compare(first, second)
    return [Benchmark(name, title(name), tuple(targets.values())) for name, targets in by_name.items()]


def _with_models_of(first: Evaluation, second: Evaluation) -> Evaluation:
    """Two evaluations over the same probes: the models of both, and how each was asked where that differs.

    Warns where the second has no further model. Raises ValueError where a model has other numbers in them.
    """
    places = f"{second.folders[0]} than in {first.folders[0]}"
    for name in first.results.keys() & second.results.keys():
        if first.results[name] != second.results[name]:
            raise ValueError(
                f"model {name} has other numbers in {places}, over the same probes; give each model its own "
                "name"
            )
    if second.results.keys() <= first.results.keys():
        warn(
            f"{second.folders[0]} has the same results as {first.folders[0]}; it adds no model to the report"
        )
    told = [
        {
            "refusal phrases": one.meta.get("refusal_phrases"),
            "dtype": one.meta.get("decoding", {}).get("dtype"),
        }
        for one in (first, second)
    ]
    if differ := [what for what in told[0] if told[0][what] != told[1][what]]:
        warn(f"{places} differ in {' and '.join(differ)}, and their models are in one table")
    convention = first.convention
    if second.convention != convention:
        convention = f"{convention}; of {', '.join(second.results)}: {second.convention}"
    numbers = pd.concat([first.numbers, second.numbers]).drop_duplicates(["kind", "name", "metric"])
    tests = pd.concat([first.tests, _turned(second.tests, first.tests)]).drop_duplicates(["a", "b", "metric"])
    if tests["p_holm"].notna().all():  # each folder has corrected for its own tests alone
        tests = tests.assign(p_holm=holm(list(tests["p_value"])))
    return replace(
        first,
        folders=first.folders + second.folders,
        convention=convention,
        numbers=numbers,
        tests=tests,
        models={**first.models, **second.models},
    )


def _check_compare(first: Evaluation, other: Evaluation) -> None:
    """Whether the mean over two targets compares what is alike. Warns of copies; raises ValueError."""
    places = f"{first.folders[0]} and {other.folders[0]}"
    if set(other.results) != set(first.results):
        raise ValueError(
            f"{first.folders[0]} evaluates {', '.join(first.results)}, but {other.folders[0]} evaluates "
            f"{', '.join(other.results)}, on other probes; the mean over targets needs the same models"
        )
    if other.convention != first.convention:
        raise ValueError(
            f"{first.folders[0]} has {first.convention!r}, but {other.folders[0]} {other.convention!r}; "
            "the mean over targets needs one way of asking and scoring"
        )
    if other.target == first.target != other.folders[0].name:  # folders' names may be alike
        raise ValueError(f"{places} are both on {other.target}, over different probes; give one of them")
    if other.results == first.results:
        warn(
            f"{places} have the same results, though their probes are not said to be the same; the mean "
            "counts both"
        )


def mean_over_targets(targets: Sequence[Evaluation]) -> Evaluation:
    """One evaluation with the mean of every metric that all targets have; of one target, that one itself.

    Each target weighs the same. Probes of different targets are independent, so the half-widths of the
    targets' intervals add in squares, each side for itself. The targets themselves count as fixed: the
    intervals say nothing about other targets. A mean difference has a normal interval and p-value.
    """
    if len(targets) == 1:
        return targets[0]
    count = len(targets)
    every = pd.concat([target.numbers for target in targets])
    # A number pooled over probes is no mean of the targets' own; `evaluate score` pools their records.
    every = every[~every["metric"].str.contains("all_pooled")]
    every = every.assign(
        below=(every["value"] - every["low"]) ** 2, above=(every["high"] - every["value"]) ** 2
    )
    fewest: dict[str, int] = {}
    for target in targets:
        for section, facts in target.meta.get("probes", {}).get("facts", {}).items():
            fewest[section] = min(facts, fewest.get(section, facts))
    groups = every.groupby(["kind", "name", "metric"], sort=False)
    mean = groups["value"].mean()
    widths = groups[["below", "above"]].sum(min_count=count) ** 0.5 / count
    numbers = pd.DataFrame({"value": mean, "low": mean - widths["below"], "high": mean + widths["above"]})
    return replace(
        targets[0],
        target=f"mean over {count} targets",
        folders=tuple(folder for target in targets for folder in target.folders),
        meta={**targets[0].meta, "probes": {**targets[0].meta.get("probes", {}), "facts": fewest}},
        numbers=numbers[groups.size() == count].reset_index(),
        tests=_mean_tests(pd.concat([_turned(one.tests, targets[0].tests) for one in targets]), count),
    )


def _turned(tests: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """The tests, with the models of each pair in the order in which `like` has them."""
    known = set(zip(like["a"], like["b"], strict=True))
    pairs = zip(tests["a"], tests["b"], strict=True)
    other = [(b, a) in known and (a, b) not in known for a, b in pairs]
    found = tests.copy()
    found.loc[other, ["a", "b"]] = tests.loc[other, ["b", "a"]].to_numpy()
    found.loc[other, "difference"] = -tests.loc[other, "difference"]
    found.loc[other, ["low", "high"]] = -tests.loc[other, ["high", "low"]].to_numpy()
    return found


def _mean_tests(tests: pd.DataFrame, count: int) -> pd.DataFrame:
    """Of each test that all `count` targets have: the mean difference, its normal interval and p-values."""
    groups = tests.assign(square=((tests["high"] - tests["low"]) / 2) ** 2).groupby(
        ["a", "b", "metric"], sort=False
    )
    mean = groups.agg(difference=("difference", "mean"), probes=("probes", "sum"))
    mean["facts"] = groups["facts"].sum(min_count=count)
    half = groups["square"].sum() ** 0.5 / count
    mean["low"], mean["high"] = mean["difference"] - half, mean["difference"] + half
    # Without any spread p is 1 where nothing differs, which is 0 / 0, and else 0.
    z = (mean["difference"].abs() / half * _Z_95).astype(float)  # of no tests at all it is of objects
    mean["p_value"] = 2 * pd.Series(norm.sf(z), mean.index).fillna(0.5)
    mean["test"] = f"normal approximation over {count} targets"
    mean = mean[groups.size() == count]
    return mean.assign(p_holm=holm(list(mean["p_value"]))).reset_index()[TESTS]
