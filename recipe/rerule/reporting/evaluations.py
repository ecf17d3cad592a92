"""Evaluation folders as `recipe.rerule.evaluate` writes them, and how several are joined.

Folders of one benchmark over the same probes are joined by model: one table with the models of all. Folders
over different probes (RWKU has one set a target) are joined by target: each metric is the mean over targets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.statistics.samples import Metrics
from recipe.rerule.evaluation.table import title_of

Intervals = dict[str, dict[str, tuple[float, float]]]
_UNSTATED = "not stated"
_META_OBJECTS = ("probes", "models", "conventions", "benchmark_settings")


@dataclass(frozen=True)
class Comparison:
    """A paired test between two models on the same probes; `difference` is a's number less b's.

    `p_holm` is the p-value corrected for the number of tests, where the evaluation gives one.
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

    @property
    def p(self) -> float:
        """The corrected p-value where there is one."""
        return self.p_value if self.p_holm is None else self.p_holm


@dataclass(frozen=True)
class Evaluation:
    """One evaluation folder, or several over the same probes.

    Attributes:
        benchmark: "world", "custom", "rwku", "muse_books", "tofu" or another.
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
            yield from read_lines(folder / "responses.jsonl")


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
    by_name: dict[str, dict[str, Evaluation]] = {}
    for path in paths:
        read = read_evaluation(path)
        targets = by_name.setdefault(read.benchmark, {})
        earlier = targets.get(read.probes_key)
        targets[read.probes_key] = joined(earlier, read) if earlier else read
    return [
        Benchmark(name, checked_targets(targets.values()), _title(name, own_title))
        for name, targets in by_name.items()
    ]


def _title(benchmark: str, own_title: str | None) -> str:
    return own_title if benchmark == "custom" and own_title else title_of(benchmark)


def read_evaluation(path: Path) -> Evaluation:
    """One evaluation folder. Raises ValueError as `read_benchmarks` does."""
    folder = path if path.is_dir() or not path.suffix else path.parent
    results_file = folder / "results.json" if folder == path else path
    meta = _read_meta(folder / "meta.json")
    benchmark = meta.get("benchmark", "world")
    if not re.fullmatch(r"\w+", str(benchmark)):  # files of the report are named after it
        raise ValueError(f"{folder / 'meta.json'}: benchmark is {benchmark!r}, which is no name of one")
    evaluation = Evaluation(
        benchmark=benchmark,
        target=folder.name,
        folders=(folder,),
        probes_key=_probes_key(meta, folder),
        convention=convention_of(meta),
        results=read_metrics(results_file),
        anchors=read_metrics(folder / "anchors.json") if (folder / "anchors.json").is_file() else {},
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


def metrics_rows(content: Any, file: Path) -> dict[str, Metrics]:
    """`content` as {name: {metric: number}}. Raises ValueError naming `file` as `read_metrics` does."""
    if not (isinstance(content, dict) and content and all(map(_is_metrics, content.values()))):
        raise ValueError(f"{file} is not {{model: {{metric: number}}}} as written by recipe.rerule.evaluate")
    return content


def _is_metrics(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(number, int | float) and math.isfinite(number) for number in value.values()
    )


def read_json(file: Path) -> Any:
    """Raises ValueError where the file is missing or is not JSON."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file, none where it is missing. Raises ValueError naming a bad line."""
    if not file.is_file():
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{file}: line {number} is not JSON") from error
            if not isinstance(record, dict):
                raise ValueError(f"{file}: line {number} is not a record")
            yield record


def _optional(file: Path, default: Any) -> Any:
    return read_json(file) if file.is_file() else default


def _read_meta(file: Path) -> dict[str, Any]:
    """meta.json, {} where there is none. Raises ValueError where a part that is read is no object."""
    meta = _optional(file, {})
    parts = [meta.get(name, {}) for name in _META_OBJECTS] if isinstance(meta, dict) else [meta]
    models = meta.get("models", {}) if isinstance(meta, dict) else {}
    parts += models.values() if isinstance(models, dict) else []
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{file} is not as recipe.rerule.evaluate writes it; evaluate again")
    return meta


def _read_intervals(file: Path) -> Intervals:
    return parse_intervals(_optional(file, {}), file)


def _read_comparisons(file: Path) -> tuple[Comparison, ...]:
    return parse_comparisons(_optional(file, []), file)


def parse_intervals(content: Any, file: Path) -> Intervals:
    """Intervals as JSON has them. Raises ValueError naming `file` where they are of another form."""
    try:
        return {
            row: {metric: (float(low), float(high)) for metric, (low, high) in metrics.items()}
            for row, metrics in content.items()
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{file} is not {{row: {{metric: [low, high]}}}}: {error}") from error


def parse_comparisons(content: Any, file: Path) -> tuple[Comparison, ...]:
    """Paired tests as JSON has them. Raises ValueError naming `file` where they are of another form."""
    names = [name for name in Comparison.__dataclass_fields__ if name != "p_holm"]
    try:
        return tuple(
            Comparison(**{name: item[name] for name in names}, p_holm=item.get("p_holm")) for item in content
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} is no list of paired tests: {error} is missing or wrong") from error


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

    Raises ValueError where a model has other numbers in them.
    """
    for name in first.results.keys() & second.results.keys():
        if first.results[name] != second.results[name]:
            raise ValueError(
                f"model {name} has other numbers in {second.folders[0]} than in {first.folders[0]}, over the "
                "same probes; give each model its own name"
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
