"""Options of `evaluate model` that only some benchmarks have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipe.rerule.evaluation.registry import Benchmark


@dataclass(frozen=True)
class Option:
    """An option of one benchmark; those of one name are one option of the command.

    Attributes:
        name: as "retain_log", which the command line spells --retain-log. A value that is a `Path` is an
            input, from which --out has to stay apart.
        help: what it means for the benchmark.
        type: of its value.
        metavar: stands for its value in the help.
        choices: all values there are.
    """

    name: str
    help: str
    type: Callable[[str], Any] = str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def flag(self) -> str:
        """As it is given."""
        return f"--{self.name.replace('_', '-')}"


COMMAND = frozenset(
    {
        "help", "model", "prefix", "template", "probes", "out", "overwrite", "platform", "benchmark", "run",
        "most_compared", "dtype", "tensor_parallel_size", "gpu_memory_utilization", "train", "control",
        "attacks", "budget", "folds", "seeds", "json", "cache", "keep_models",
    }
)  # fmt: skip
"""Names that `evaluate model` and `evaluate attack` have for themselves."""
Shared = dict[str, list[tuple[str, Option]]]
"""{option: [(benchmark, what it declares)]}"""


def add_benchmark_arguments(parser: argparse.ArgumentParser, benchmarks: Mapping[str, Benchmark]) -> None:
    """Declare --benchmark and the options of single benchmarks."""
    parser.add_argument(
        "--benchmark",
        choices=tuple(benchmarks),
        help="the benchmark of the probes (default: what their data_source says; custom: your own data)",
    )
    for declared in _by_option(benchmarks.values()).values():
        _add(parser, declared)


def check_options(new: Sequence[Option], known: Iterable[Option]) -> None:
    """Raises ValueError where a benchmark's options clash with the command's or with other benchmarks'."""
    earlier = {option.name: option for option in known}
    for option in new:
        if not callable(option.type):
            raise ValueError(
                f"the type of its option {option.flag} is {option.type!r}, which cannot be called"
            )
        if option.name in COMMAND:
            raise ValueError(f"its option {option.flag} is one of the command itself")
        same = earlier.get(option.name, option)
        if (same.type, same.choices) != (option.type, option.choices):
            raise ValueError(
                f"its option {option.flag} has another type or other choices than that of others"
            )


def given_paths(options: argparse.Namespace, benchmarks: Mapping[str, Benchmark]) -> dict[str, Path]:
    """The inputs among the benchmarks' options, by flag."""
    names = {one.name: one.flag for benchmark in benchmarks.values() for one in benchmark.options}
    values = {flag: getattr(options, name, None) for name, flag in names.items()}
    return {flag: value for flag, value in values.items() if isinstance(value, Path)}


def refuse_foreign(options: argparse.Namespace, chosen: str, benchmarks: Mapping[str, Benchmark]) -> None:
    """Raises ValueError where an option is given that is another benchmark's."""
    for declared in _by_option(benchmarks.values()).values():
        known, option = [benchmark for benchmark, _ in declared], declared[0][1]
        if getattr(options, option.name, None) is not None and chosen not in known:
            raise ValueError(
                f"{option.flag} is an option of {', '.join(known)}, and the probes are of {chosen}; leave it "
                "out"
            )


def one_of(options: argparse.Namespace, name: str, benchmark: str, known: Sequence[str]) -> str:
    """The value of an option, by default the first of `known`. Raises ValueError where it is none of them."""
    value = getattr(options, name) or known[0]
    if value not in known:
        raise ValueError(f"--{name.replace('_', '-')} is {value}; {benchmark} has {', '.join(known)}")
    return str(value)


def _by_option(benchmarks: Iterable[Benchmark]) -> Shared:
    found: Shared = {}
    for benchmark in benchmarks:
        for option in benchmark.options:
            found.setdefault(option.name, []).append((benchmark.name, option))
    return found


def _add(parser: argparse.ArgumentParser, declared: Sequence[tuple[str, Option]]) -> None:
    first = declared[0][1]
    parser.add_argument(
        first.flag,
        dest=first.name,
        type=first.type,
        metavar=first.metavar,
        choices=first.choices,
        help=_help(declared),
    )


def _help(declared: Sequence[tuple[str, Option]]) -> str:
    """What each benchmark says of an option; benchmarks that say the same stand together."""
    texts: dict[str, list[str]] = {}
    for benchmark, option in declared:
        texts.setdefault(option.help, []).append(benchmark)
    told = "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())
    return told.replace("%", "%%")  # argparse takes it for a format
