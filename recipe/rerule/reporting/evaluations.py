"""Evaluation folders as `recipe.rerule.evaluate` writes them, and how several are joined.

Folders of one benchmark over the same probes are joined by model: one table with the models of all. Folders
over different probes (one set a target) are joined by target: each metric is the mean over targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks.summary import RESULTS as ATTACK_RESULTS
from recipe.rerule.evaluation.registry import OWN_DATA, UNSTATED
from recipe.rerule.evaluation.summary import Metrics
from recipe.rerule.evaluation.table import title_of
from recipe.rerule.io import read_json, warn
from recipe.rerule.io import read_lines as read_json_lines
from recipe.rerule.reporting.bounds import bounds

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T")
Intervals = dict[str, dict[str, tuple[float, float]]]
_ROUNDING = 1e-6
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Probability = Annotated[float, Field(ge=0, le=1 + _ROUNDING)]


class Comparison(BaseModel):
    """A paired test between two models on the same probes; `difference` is a's number less b's.

    `p_holm` is the p-value corrected for the number of tests, and `facts` how many facts the probes ask for,
    where the evaluation gives them.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    a: str
    b: str
    metric: str
    difference: _Number
    low: _Number
    high: _Number
    p_value: _Probability
    probes: int
    test: str
    p_holm: _Probability | None = None
    facts: int | None = None

    @property
    def p(self) -> float:
        """The corrected p-value where there is one."""
        return self.p_value if self.p_holm is None else self.p_holm


class _Meta(BaseModel):
    """What is read of meta.json."""

    model_config = ConfigDict(strict=True, extra="allow")

    # Files of the report are named after it.
    benchmark: Annotated[str, Field(pattern=r"^\w{1,60}$")] = UNSTATED
    rouge_l_convention: str | None = None
    probes: dict[str, Any] = {}
    models: dict[str, dict[str, Any]] = {}
    conventions: dict[str, Any] = {}
    benchmark_settings: dict[str, Any] = {}


_METRICS: TypeAdapter[dict[str, dict[str, float]]] = TypeAdapter(dict[str, dict[str, _Number]])
_INTERVALS: TypeAdapter[dict[str, dict[str, list[float]]]] = TypeAdapter(
    dict[str, dict[str, Annotated[list[_Number], Field(min_length=2, max_length=2)]]]
)
_COMPARISONS: TypeAdapter[list[Comparison]] = TypeAdapter(list[Comparison])


def validated(adapter: TypeAdapter[_T], content: Any, file: Path) -> _T:
    """`content` of a JSON file, as the adapter's type. Raises ValueError naming the file and the first
    place."""
    try:
        return adapter.validate_python(content, strict=True)
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

    def responses(self) -> pd.DataFrame | None:
        """The tidy table of all its folders; None where no folder keeps one.

        A model that several folders evaluated on the same probes has its first answers.
        """
        import pandas as pd

        tables = [tidy.read_responses(one) for one in self.folders if (one / tidy.FILE).is_file()]
        if not tables:
            return None
        kept: list[Any] = []
        seen: set[str] = set()
        for table in tables:
            kept.append(table[~table["model"].isin(seen)])
            seen.update(table["model"])
        return pd.concat(kept, ignore_index=True)


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
    evaluation = Evaluation(
        benchmark=meta.get("benchmark", UNSTATED),
        target=folder.name,
        folders=(folder,),
        probes_key=_probes_key(meta, folder),
        convention=convention_of(meta),
        results=read_metrics(results_file),
        anchors=read_metrics(folder / "anchors.json") if (folder / "anchors.json").exists() else {},
        intervals=parse_intervals(_optional(folder / "intervals.json", {}), folder / "intervals.json"),
        comparisons=parse_comparisons(
            _optional(folder / "comparisons.json", []), folder / "comparisons.json"
        ),
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
    rows = validated(_METRICS, content, file)
    if not rows:
        raise ValueError(f"{file} has no rows; recipe.rerule.evaluate writes {{model: {{metric: number}}}}")
    for model, metrics in rows.items():
        for metric, number in metrics.items():
            limits = bounds(metric, benchmark)
            if limits and not limits[0] - _ROUNDING <= number <= limits[1] + _ROUNDING:
                hint = "; evaluations give fractions of 1, not per cent" if limits[1] == 1 else ""
                raise ValueError(
                    f"{file}: {metric} of {model} is {number:g}, outside {limits[0]:g} to {limits[1]:g}{hint}"
                )
    return rows


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file, none where it is missing. Raises ValueError naming a bad line."""
    if not file.is_file():
        return
    for number, record in read_json_lines(file):
        if not isinstance(record, dict):
            raise ValueError(f"{file}: line {number} is not a record")
        yield record


def _optional(file: Path, default: Any) -> Any:
    return read_json(file) if file.exists() else default


def _read_meta(file: Path) -> dict[str, Any]:
    """meta.json, {} where there is none. Raises ValueError where a part that is read is of another type."""
    meta = _optional(file, {})
    validated(TypeAdapter(_Meta), meta, file)
    return dict(meta)


def parse_intervals(content: Any, file: Path) -> Intervals:
    """Intervals as JSON has them. Raises ValueError naming `file` where they are of another form."""
    found: Intervals = {}
    for row, metrics in validated(_INTERVALS, content, file).items():
        for metric, (low, high) in metrics.items():
            if low > high:
                raise ValueError(f"{file}: the interval of {metric} of {row} ends before it begins")
            found.setdefault(row, {})[metric] = (low, high)
    return found


def parse_comparisons(content: Any, file: Path) -> tuple[Comparison, ...]:
    """Paired tests as JSON has them. Raises ValueError naming `file` where they are of another form."""
    found: list[Comparison] = validated(_COMPARISONS, content, file)
    return tuple(found)


def convention_of(meta: Mapping[str, Any]) -> str:
    """The ROUGE-L convention, then how the benchmark asked, as far as meta.json says it."""
    conventions = meta.get("conventions", {})
    rouge_l = meta.get("rouge_l_convention", conventions.get("rouge_l", "not stated"))
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
    table = evaluation.responses()
    name = next((column for column in ("target", "subject") if table is not None and column in table), None)
    if table is None or name is None or not len(table):
        return evaluation.target
    forget = table[(table["model"] == table["model"].iloc[0]) & (table["side"] == "forget")]
    subjects = [one for one in forget[name].unique() if one]
    return str(subjects[0]) if len(subjects) == 1 else evaluation.target


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
