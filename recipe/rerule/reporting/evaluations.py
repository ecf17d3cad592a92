"""Evaluation folders as `recipe.rerule.evaluate` writes them, and how several are joined.

Folders of one benchmark over the same probes are joined by model: one table with the models of all. Folders
over different probes (one set a target) are joined by target: each metric is the mean over targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.attacks.summary import RESULTS as ATTACK_RESULTS
from recipe.rerule.evaluation.registry import OWN_DATA, UNSTATED
from recipe.rerule.evaluation.statistics.samples import Metrics
from recipe.rerule.evaluation.table import title_of
from recipe.rerule.io import is_finite, read_json, warn
from recipe.rerule.io import read_lines as read_json_lines
from recipe.rerule.reporting.bounds import bounds

Intervals = dict[str, dict[str, tuple[float, float]]]
_UNSTATED = "not stated"
_META_OBJECTS = ("probes", "models", "conventions", "benchmark_settings")
_ROUNDING = 1e-6
_NEEDED = ("model", "index", "prompt", "golds", "response")
_RESPONSE: dict[str, Any] = {
    "model": str,
    "index": int,
    "prompt": str,
    "golds": list,
    "response": str,
    **dict.fromkeys(("section", "mode", "family", "subject", "target"), str | None),
}
"""Types of the fields of responses.jsonl; the last five may be missing."""


@dataclass(frozen=True)
class Comparison:
    """A paired test between two models on the same probes; `difference` is a's number less b's.

    `p_holm` is the p-value corrected for the number of tests, and `facts` how many facts the probes ask for,
    where the evaluation gives them.
    """

    a: str
    b: str
    metric: str
    difference: float
    low: float
    high: float
    p_value: float
    probes: int
    test: str
    p_holm: float | None = None
    facts: int | None = None

    @property
    def p(self) -> float:
        """The corrected p-value where there is one."""
        return self.p_value if self.p_holm is None else self.p_holm


@dataclass(frozen=True)
class Evaluation:
    """One evaluation folder, or several over the same probes.

    Attributes:
        benchmark: its name, one of the registry's or another.
        target: the one subject of its forget probes, else the folder's name.
        folders: where it was read from.
        probes_key: equal for two evaluations over the same probes.
        convention: ROUGE-L convention, as the evaluation says it.
        results: {model: {metric: number}} in the order of the rows.
        anchors: the same for constant answers.
        intervals: {row: {metric: (low, high)}}, 95 %.
        comparisons: paired tests.
        models: {model: what meta.json says of it}.
        meta: meta.json of the first folder.
    """

    benchmark: str
    target: str
    folders: tuple[Path, ...]
    probes_key: str
    convention: str
    results: dict[str, Metrics]
    anchors: dict[str, Metrics]
    intervals: Intervals = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    def responses(self) -> Iterator[dict[str, Any]]:
        """The kept per-probe records of all its folders; nothing where a folder keeps none."""
        for folder in self.folders:
            yield from read_responses(folder / "responses.jsonl")


@dataclass(frozen=True)
class Benchmark:
    """All evaluations of one benchmark, one a target; all with the same models.

    `title` is its name in headings.
    """

    name: str
    targets: tuple[Evaluation, ...]
    title: str


def read_benchmarks(paths: Sequence[Path], own_title: str | None = None) -> list[Benchmark]:
    """Read evaluation folders (or their results.json) and join them, in the order given.

    `own_title` is what data of one's own is called.

    Raises:
        ValueError: a missing or malformed file, a model with other numbers in two folders over the same
            probes, or targets that make no mean (`checked_targets`).
    """
    check_given_once("--results", paths)
    by_name: dict[str, dict[str, Evaluation]] = {}
    for path in paths:
        read = read_evaluation(path)
        targets = by_name.setdefault(read.benchmark, {})
        earlier = targets.get(read.probes_key)
        targets[read.probes_key] = joined(earlier, read) if earlier else read
    return [
        Benchmark(name, checked_targets(targets.values()), heading_of(name, own_title))
        for name, targets in by_name.items()
    ]


def heading_of(benchmark: str, own_title: str | None) -> str:
    """The benchmark's title, or `own_title` for data of one's own where it is given."""
    return own_title if benchmark == OWN_DATA and own_title else title_of(benchmark)


def check_given_once(option: str, paths: Iterable[Path]) -> None:
    """Raises ValueError where two paths are one folder: its numbers would count twice."""
    seen: set[Path] = set()
    for path in paths:
        folder = path if path.is_dir() or not path.suffix else path.parent
        if folder.resolve() in seen:
            raise ValueError(f"{option} {path} is given twice; give each folder once")
        seen.add(folder.resolve())


def read_evaluation(path: Path) -> Evaluation:
    """One evaluation folder. Raises ValueError as `read_benchmarks` does."""
    folder = path if path.is_dir() or not path.suffix else path.parent
    results_file = folder / "results.json" if folder == path else path
    if not results_file.is_file() and (folder / ATTACK_RESULTS).is_file():
        raise ValueError(f"--results {path} is a folder of evaluate attack; give it as --attacks")
    meta = _read_meta(folder / "meta.json")
    benchmark = meta.get("benchmark", UNSTATED)
    if not isinstance(benchmark, str) or not re.fullmatch(
        r"\w{1,60}", benchmark
    ):  # files of the report are named after it
        raise ValueError(
            f"{folder / 'meta.json'}: benchmark is {str(benchmark)[:60]!r}, which is no name of one"
        )
    evaluation = Evaluation(
        benchmark=benchmark,
        target=folder.name,
        folders=(folder,),
        probes_key=_probes_key(meta, folder),
        convention=convention_of(meta),
        results=read_metrics(results_file),
        anchors=read_metrics(folder / "anchors.json") if (folder / "anchors.json").exists() else {},
        intervals=_read_intervals(folder / "intervals.json"),
        comparisons=_read_comparisons(folder / "comparisons.json"),
        models=meta.get("models", {}),
        meta=meta,
    )
    return replace(evaluation, target=_target(evaluation))


def read_metrics(file: Path) -> dict[str, Metrics]:
    """{name: {metric: number}} from a results.json or an anchors.json.

    Raises:
        ValueError: no such file, or not of this form, with finite numbers and at least one row.
    """
    return metrics_rows(read_json(file), file)


def metrics_rows(content: Any, file: Path, benchmark: str = "") -> dict[str, Metrics]:
    """`content` as {name: {metric: number}}. Raises ValueError naming `file` as `read_metrics` does."""
    if not (isinstance(content, dict) and content and all(isinstance(row, dict) for row in content.values())):
        raise ValueError(f"{file} is not {{model: {{metric: number}}}} as written by recipe.rerule.evaluate")
    for model, metrics in content.items():
        for metric, number in metrics.items():
            where = f"{file}: {metric} of {model}"
            if not is_finite(number):
                raise ValueError(f"{where} is {str(number)[:40]}, which is no number")
            _check_bounds(number, bounds(metric, benchmark), where)
    return content


def _check_bounds(number: float, limits: tuple[float, float] | None, where: str) -> None:
    if limits is None or limits[0] - _ROUNDING <= number <= limits[1] + _ROUNDING:
        return
    hint = "; evaluations give fractions of 1, not per cent" if limits[1] == 1 else ""
    raise ValueError(f"{where} is {number:g}, outside {limits[0]:g} to {limits[1]:g}{hint}")


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file, none where it is missing. Raises ValueError naming a bad line."""
    if not file.is_file():
        return
    for number, record in read_json_lines(file):
        if not isinstance(record, dict):
            raise ValueError(f"{file}: line {number} is not a record")
        yield record


def read_responses(file: Path) -> Iterator[dict[str, Any]]:
    """The records of responses.jsonl, none where it is missing. Raises ValueError naming a bad one."""
    for number, record in enumerate(read_lines(file), start=1):
        wrong = [name for name, kinds in _RESPONSE.items() if not isinstance(record.get(name), kinds)]
        missing = [name for name in _NEEDED if name not in record]
        if not (wrong or missing) and not all(isinstance(gold, str) for gold in record["golds"]):
            wrong = ["golds"]
        if wrong or missing:
            name = (missing + wrong)[0]
            raise ValueError(f"{file}: record {number} has no {name} as recipe.rerule.evaluate writes it")
        yield record


def _optional(file: Path, default: Any) -> Any:
    return read_json(file) if file.exists() else default


def _read_meta(file: Path) -> dict[str, Any]:
    """meta.json, {} where there is none. Raises ValueError where a part that is read is no object."""
    meta = _optional(file, {})
    parts = [meta.get(name, {}) for name in _META_OBJECTS] if isinstance(meta, dict) else [meta]
    models = meta.get("models", {}) if isinstance(meta, dict) else {}
    parts += models.values() if isinstance(models, dict) else []
    convention = meta.get("rouge_l_convention", "") if isinstance(meta, dict) else ""
    if not all(isinstance(part, dict) for part in parts) or not isinstance(convention, str):
        raise ValueError(f"{file} is not as recipe.rerule.evaluate writes it; evaluate again")
    return meta


def _read_intervals(file: Path) -> Intervals:
    return parse_intervals(_optional(file, {}), file)


def _read_comparisons(file: Path) -> tuple[Comparison, ...]:
    return parse_comparisons(_optional(file, []), file)


def parse_intervals(content: Any, file: Path) -> Intervals:
    """Intervals as JSON has them. Raises ValueError naming `file` where they are of another form."""
    if not isinstance(content, dict) or not all(isinstance(row, dict) for row in content.values()):
        raise ValueError(f"{file} is not {{row: {{metric: [low, high]}}}}")
    found: Intervals = {}
    for row, metrics in content.items():
        for metric, ends in metrics.items():
            if not (isinstance(ends, list) and len(ends) == 2 and all(map(is_finite, ends))):
                raise ValueError(f"{file}: {metric} of {row} is no interval [low, high] of two numbers")
            if ends[0] > ends[1]:
                raise ValueError(f"{file}: the interval of {metric} of {row} ends before it begins")
            found.setdefault(row, {})[metric] = (float(ends[0]), float(ends[1]))
    return found


_TEXTS = ("a", "b", "metric", "test")
_NUMBERS = ("difference", "low", "high", "p_value", "probes")


def parse_comparisons(content: Any, file: Path) -> tuple[Comparison, ...]:
    """Paired tests as JSON has them. Raises ValueError naming `file` where they are of another form."""
    if not isinstance(content, list):
        raise ValueError(f"{file} is no list of paired tests")
    return tuple(_comparison(item, f"{file}: test {number}") for number, item in enumerate(content, start=1))


def _comparison(item: Any, where: str) -> Comparison:
    if not isinstance(item, dict):
        raise ValueError(f"{where} is no paired test")
    wrong = [name for name in _TEXTS if not isinstance(item.get(name), str)]
    wrong += [name for name in _NUMBERS if not is_finite(item.get(name))]
    p_values = {name: item[name] for name in ("p_value", "p_holm") if item.get(name) is not None}
    wrong += [name for name, p in p_values.items() if not is_finite(p) or not 0 <= p <= 1 + _ROUNDING]
    counts = {name: item[name] for name in ("probes", "facts") if item.get(name) is not None}
    wrong += [name for name, count in counts.items() if not isinstance(count, int)]
    if wrong:
        raise ValueError(f"{where}: {wrong[0]} is missing or wrong")
    required = {name: item[name] for name in (*_TEXTS, *_NUMBERS)}
    return Comparison(**required, p_holm=item.get("p_holm"), facts=item.get("facts"))


def convention_of(meta: Mapping[str, Any]) -> str:
    """The ROUGE-L convention, then how the benchmark asked, as far as meta.json says it."""
    conventions = meta.get("conventions", {})
    rouge_l = meta.get("rouge_l_convention", conventions.get("rouge_l", _UNSTATED))
    others = {name: text for name, text in conventions.items() if name != "rouge_l"}
    settings = others | meta.get("benchmark_settings", {})
    said = [f"{name.replace('_', ' ')}: {value}" for name, value in settings.items() if value is not None]
    return "; ".join([str(rouge_l), *said])


def _probes_key(meta: Mapping[str, Any], folder: Path) -> str:
    """The probes' checksum; an evaluation that does not say its probes is taken to stand alone."""
    probes = meta.get("probes", {})
    return str(probes.get("sha256") or folder.resolve())


def _target(evaluation: Evaluation) -> str:
    """The one subject of the forget probes, else the folder's name."""
    subjects: set[str] = set()
    first_model = None
    for record in evaluation.responses():
        first_model = first_model or record.get("model")
        if record.get("model") != first_model:
            break
        about = record.get("target") or record.get("subject")
        if record.get("section") == "forget" and about:
            subjects.add(about)
    return subjects.pop() if len(subjects) == 1 else evaluation.target


def joined(first: Evaluation, second: Evaluation) -> Evaluation:
    """Two evaluations over the same probes: the models of both, and how each was asked where that differs.

    Warns where the second has no further model. Raises ValueError where a model has other numbers in them.
    """
    for name in first.results.keys() & second.results.keys():
        if first.results[name] != second.results[name]:
            raise ValueError(
                f"model {name} has other numbers in {second.folders[0]} than in {first.folders[0]}, over the "
                "same probes; give each model its own name"
            )
    if second.results.keys() <= first.results.keys():
        warn(
            f"{second.folders[0]} has the same results as {first.folders[0]}; it adds no model to the report"
        )
    return replace(
        first,
        folders=first.folders + second.folders,
        convention=_joined_convention(first, second),
        results=first.results | second.results,
        anchors=first.anchors | second.anchors,
        intervals=first.intervals | second.intervals,
        comparisons=tuple(dict.fromkeys(first.comparisons + second.comparisons)),
        models=first.models | second.models,
    )


def _joined_convention(first: Evaluation, second: Evaluation) -> str:
    if first.convention == second.convention:
        return first.convention
    return f"{first.convention}; of {', '.join(second.results)}: {second.convention}"


def checked_targets(targets: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """The targets. Raises ValueError where their mean would compare what is not alike.

    That is where they have different models, were asked or scored differently, or are one target twice.
    """
    first, *others = targets
    for other in others:
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
    _check_named_once([first, *others])
    _warn_of_copies([first, *others])
    return (first, *others)


def _check_named_once(targets: Sequence[Evaluation]) -> None:
    """Raises ValueError where two are about one subject; folders' names may be alike."""
    seen: dict[str, Evaluation] = {}
    for target in targets:
        earlier = seen.setdefault(target.target, target)
        if earlier is not target and target.target != target.folders[0].name:
            raise ValueError(
                f"{earlier.folders[0]} and {target.folders[0]} are both on {target.target}, over different "
                "probes; give one of them"
            )


def _warn_of_copies(targets: Sequence[Evaluation]) -> None:
    """Say so where two targets have the same numbers throughout: one may be a copy of the other."""
    for place, target in enumerate(targets):
        for earlier in targets[:place]:
            if target.results == earlier.results:
                warn(
                    f"{earlier.folders[0]} and {target.folders[0]} have the same results, though their "
                    "probes are not said to be the same; the mean counts both"
                )
