"""The benchmarks that evaluation and report know.

All that is one benchmark's stands in `benchmarks/NAME/` behind one `Benchmark`, the BENCHMARK of its module
`declaration`. Other packages register theirs through the entry-point group `rerule.benchmarks`; one of them
that cannot be used is left out, with a warning.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from recipe.rerule import io
from recipe.rerule.evaluation.anchors import ANCHORS
from recipe.rerule.evaluation.columns import Column
from recipe.rerule.evaluation.options import Option, check_options
from recipe.rerule.evaluation.published import PublishedFigures
from recipe.rerule.evaluation.recovery import Recovery

if TYPE_CHECKING:  # what only some commands need
    from recipe.rerule.evaluation.evaluator import Evaluator
    from recipe.rerule.evaluation.probes import Probe
    from recipe.rerule.evaluation.scoring import Scorer

BUILT_IN = ("world", "custom", "rwku", "muse_books", "muse_news", "tofu")
UNSTATED = "world"
"""The benchmark of an evaluation that does not say its own, and of records that have no mark."""
OWN_DATA = "custom"
"""The benchmark of probes whose data_source names none."""
GROUP = "rerule.benchmarks"
_PREFIX = "rerule/"
_NAME = re.compile(r"\w{1,60}")  # files of the report are named after it


def own_fact(record: Mapping[str, Any]) -> Hashable:
    """Every probe asks for a fact of its own."""
    return record["index"]


@dataclass(frozen=True)
class Benchmark:
    """All that evaluation and report need to know of one benchmark.

    Its module is imported by every command, so what takes long to import belongs into the functions.

    Attributes:
        name: in data_source ("rerule/NAME"), in meta.json and as --benchmark; letters, digits and "_".
        title: in headings.
        columns: of the table of results.
        legend: what the columns mean.
        evaluator: what `evaluate model` does, with the command's options. Raises ValueError
            where one is wrong.
        options: of `evaluate model` for this benchmark; several benchmarks may share one.
        scorer: what `evaluate score` does; None where the benchmark has no files to score.
        aliases: other names for `evaluate score`.
        constant_baselines: answers that are the same whatever is asked, by name (`anchors`).
        fact: what a record asks for, which is the unit of intervals and tests where the evaluator names the
            `sets` of records. Hashable.
        recovery: which records an attack counts, and by which of their numbers.
        pair: metrics of the report's scatter plot, forgetting across and keeping up; None for no plot.
        published: figures of papers.
        fractions: regular expression of the metrics that lie between 0 and 1; the report refuses others.
        units: what the metrics are that are no fractions of 1, by the first part of their names.
        commands: adds subcommands to `evaluate`.
        model_example: lines for the help of `evaluate model`.
        score_example: lines for the help of `evaluate score`.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    legend: str
    evaluator: Callable[[argparse.Namespace], Evaluator]
    options: tuple[Option, ...] = ()
    scorer: Scorer | None = None
    aliases: tuple[str, ...] = ()
    constant_baselines: Mapping[str, str] = field(default_factory=lambda: ANCHORS)
    fact: Callable[[Mapping[str, Any]], Hashable] = own_fact
    recovery: Recovery = field(default_factory=Recovery)
    pair: tuple[str, str] | None = None
    published: PublishedFigures = field(default_factory=PublishedFigures)
    fractions: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    commands: Callable[[Any], None] = lambda commands: None
    model_example: str = ""
    score_example: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError where something declared cannot be."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"its name is {self.name!r}; 1 to 60 letters, digits and _ are allowed")
        if not callable(self.evaluator):
            raise ValueError(f"its evaluator is {self.evaluator!r}, which cannot be called")
        known = {column.metric for column in self.columns}
        if unknown := [metric for metric in self.pair or () if metric not in known]:
            raise ValueError(f"its pair names {unknown[0]}, which is none of its columns")
        re.compile(self.fractions)


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """All benchmarks by name: the built-in ones in their order, then those of other packages."""
    found = {name: _built_in(name) for name in BUILT_IN}
    for entry in entry_points(group=GROUP):
        try:
            declared = _loaded(entry, found)
        # Whatever a package of others does: the rest goes on.
        except (Exception, SystemExit) as error:
            reason = io.describe(error)
            io.warn(f"benchmark {entry.name} ({entry.value}) is left out: {reason}")
        else:
            found[declared.name] = declared
    return found


def find(name: str) -> Benchmark | None:
    """The benchmark of that name, None where there is none."""
    return benchmarks().get(name)


def scorers() -> dict[str, Scorer]:
    """By name, aliases included: what `evaluate score` knows."""
    return {
        name: benchmark.scorer
        for benchmark in benchmarks().values()
        if benchmark.scorer is not None
        for name in (benchmark.name, *benchmark.aliases)
    }


def published(benchmark: str) -> PublishedFigures:
    """The published figures of a benchmark; none where it has none, or is not known."""
    declared = find(benchmark)
    return PublishedFigures() if declared is None else declared.published


def benchmark_of(probes: Sequence[Probe]) -> str:
    """The benchmark that the probes' data_source names; that of data of one's own for any other.

    Raises ValueError where they name several.
    """
    names = sorted({probe.data_source.removeprefix(_PREFIX) for probe in probes})
    if len(names) > 1:
        raise ValueError(f"the probes are of {', '.join(names)}; evaluate one benchmark at a time")
    return names[0] if names[0] in benchmarks() else OWN_DATA


def _built_in(name: str) -> Benchmark:
    module = importlib.import_module(f"{__package__}.benchmarks.{name}.declaration")
    return module.BENCHMARK


def _loaded(entry: EntryPoint, known: Mapping[str, Benchmark]) -> Benchmark:
    """What an entry point gives. Raises ValueError where it is no benchmark, or one of its names is taken."""
    from recipe.rerule.evaluation.scoring import LogScorer, RecordScorer

    declared = entry.load()
    if not isinstance(declared, Benchmark):
        raise ValueError(f"it is no {__name__}.Benchmark")
    if not isinstance(declared.scorer, LogScorer | RecordScorer | None):
        raise ValueError(f"its scorer is {declared.scorer!r}, no RecordScorer and no LogScorer")
    taken = set(_names(known.values()))
    if same := [name for name in _names([declared]) if name in taken]:
        raise ValueError(f"there is a benchmark {same[0]} already")
    check_options(declared.options, [one for benchmark in known.values() for one in benchmark.options])
    return declared


def _names(declared: Iterable[Benchmark]) -> Iterator[str]:
    for benchmark in declared:
        yield from (benchmark.name, *benchmark.aliases)
