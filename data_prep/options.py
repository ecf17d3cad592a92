"""What the commands of all benchmarks share: their options, and how a folder is made of a benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from data_prep.build import DROPS, BuildOptions, build, summary
from data_prep.generate import (
    TASKS,
    Request,
    Task,
    add_endpoint_arguments,
    endpoint_of,
    estimate,
    with_prompts,
)
from data_prep.prompts import Benchmark
from data_prep.writers import Writer, explained
from recipe.rerule.io import check_apart, check_writable, existing
from recipe.rerule.process import positive
from reward.rouge import CONVENTIONS
from reward.score import benchmark_reward

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Load = Callable[[Writer], Benchmark]
_INPUTS = (
    "source",
    "probes",
    "passages",
    "retain_passages",
    "refusals",
    "refusal_traces",
    "refusal_phrases",
    "gold",
    "rows_of",
    "corpora",
    "retain_questions",
)
"""Options that name a file or folder to read, of all benchmarks."""
_Settings = TypeVar("_Settings", bound="DataclassInstance")


def option(default: Any, text: str, **how: Any) -> Any:
    """A field of a benchmark's settings that is an option of its command too; `how` as argparse takes it."""
    return field(default=default, metadata={"option": {"help": text, **how}})


@dataclass(frozen=True)
class Draws:
    """The settings that all benchmarks have; those of a benchmark are a dataclass that adds its own."""

    seed: int = option(42, "seed of every draw", type=int, metavar="N")
    val_rows: int = option(64, "prompts for validation during training", type=positive, metavar="N")


STAGE1_MODES = option(
    ("qa", "fb"),
    "refusals of stage 1: questions, fill-in-the-blank forms of them (RULE's code: qa alone)",
    nargs="+",
    choices=("qa", "fb"),
)
GOLD = option(
    None,
    "right answers to the questions to forget, where the source gives refusals: rows {question, answer}, as "
    "CSV or JSON (for rwku also a folder with such a file for each target, named as its folder: "
    "1_Stephen_King.json); forget_gold.parquet is written from them",
    metavar="FILE",
)


@dataclass(frozen=True)
class Command:
    """`python -m data_prep NAME`: line of help, examples, options, and what it does (raises ValueError)."""

    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def add_arguments(parser: argparse.ArgumentParser, source_help: str, settings: type[Any]) -> None:
    """Declare the options that all benchmarks but the world have, and those of one's settings."""
    add = parser.add_argument
    add("--source", required=True, metavar="DIR_OR_NAME", help=source_help)
    add("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    add("--overwrite", action="store_true", help="replace DIR if this program made all of it")
    add_settings(parser, settings)
    text = "leave such training prompts out; may be given several times (default: they are only listed)"
    add("--drop", action="append", choices=sorted(DROPS), default=[], help=text)
    text = "for a try: at most N training prompts a side, N prompts of stage 1 and N probes; at most N "
    text += "requests to an endpoint for each kind of text that it writes (default: all)"
    add("--limit", type=positive, metavar="N", help=text)
    text = "the reward's ROUGE-L convention, which the checks use (default: the benchmark's)"
    add("--rouge", choices=CONVENTIONS, help=text)
    text = "the reward's ROUGE-L threshold, which the checks use (default: the benchmark's)"
    add("--gamma", type=float, metavar="X", help=text)
    text = "the reward's file of phrases, which the checks use (default: none)"
    add("--refusal-phrases", metavar="FILE", help=text)
    text = "the reward's keyword_any_case, which the checks use: a name in any case names the target"
    add("--keyword-any-case", action="store_true", help=text)
    text = "the reward's keyword_part, which the checks use: a single word of a name names the target"
    add("--keyword-part", action="store_true", help=text)
    add_endpoint_arguments(parser)


def add_settings(parser: argparse.ArgumentParser, settings: type[Any]) -> None:
    """Declare an option for each field of a dataclass of settings, of which each says its option."""
    for one in fields(settings):
        how = {"default": one.default, **one.metadata["option"]}
        if one.default is False:
            how["action"] = "store_true"
        elif one.default is not None:
            how["help"] += " (default: %(default)s)"
        parser.add_argument("--" + one.name.replace("_", "-"), **how)


def settings_of(kind: type[_Settings], options: argparse.Namespace) -> _Settings:
    """The benchmark's settings as the options give them; lists as tuples."""
    given = {one.name: getattr(options, one.name) for one in fields(kind)}
    typed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    return kind(**typed)


def benchmark(
    summary: str,
    example: str,
    source_help: str,
    kind: type[_Settings],
    load: Callable[[str, _Settings, Writer], Benchmark],
) -> Command:
    """The command of a benchmark that `load` makes of --source, its settings and a writer."""

    def run(options: argparse.Namespace) -> None:
        settings = settings_of(kind, options)
        make(lambda writer: load(options.source, settings, writer), options)

    return Command(summary, example, partial(add_arguments, source_help=source_help, settings=kind), run)


def make(load: Load, options: argparse.Namespace) -> dict[str, Any] | None:
    """Load a benchmark, build its folder as the shared options say, and print what is in it; the manifest.

    With --dry-run, print what the endpoint would be asked instead, and return None. Raises ValueError.
    """
    if options.dry_run:
        print_estimate([load], options)
        return None
    check_out(options)
    benchmark = loaded(load, options)
    with explained(benchmark.failures):
        how = build_options(options, benchmark.name)
        manifest = build(benchmark, options.out, overwrite=options.overwrite, options=how)
    print(summary(options.out, manifest))
    return manifest


def check_out(options: argparse.Namespace) -> None:
    """Refuse an --out that must not be replaced, or that is not apart from what the command reads.

    Raises ValueError.
    """
    inputs = existing(*((f"--{name.replace('_', '-')}", getattr(options, name, None)) for name in _INPUTS))
    cache = [] if options.base_url is None else [("--cache", options.cache)]
    check_apart(options.out, *inputs, *cache)
    check_writable(options.out, options.overwrite)


def print_estimate(loads: Sequence[Load], options: argparse.Namespace) -> None:
    """Print what the endpoint would be asked for all benchmarks together. Raises ValueError."""
    endpoint = endpoint_of(options)
    if endpoint is None:
        raise ValueError("--dry-run estimates the calls to an endpoint: give --base-url and --model")
    requests: list[Request] = []
    for load in loads:
        writer = Writer(endpoint, options.cache, options.limit, dry=True, tasks=_tasks(options))
        load(writer)
        requests += writer.requests
    print(estimate(requests, endpoint, options.cache))


def loaded(load: Load, options: argparse.Namespace) -> Benchmark:
    """The benchmark, with what rules or the endpoint write. Raises ValueError."""
    endpoint = endpoint_of(options)
    if options.prompt and endpoint is None:
        raise ValueError("--prompt is a model's: give --base-url and --model too")
    writer = Writer(endpoint, options.cache, options.limit, tasks=_tasks(options))
    with explained(writer.failures):
        benchmark = load(writer)
    writer.check_answered()
    settings = {**benchmark.settings, "written_by": "rules" if endpoint is None else endpoint.model}
    if options.prompt:
        settings["prompts"] = {name: task.prompt for name, task in writer.tasks.items()}
    return replace(benchmark, settings=settings, failures=tuple(writer.failures))


def _tasks(options: argparse.Namespace) -> dict[str, Task]:
    return with_prompts(list(TASKS.values()), options.prompt)


def build_options(options: argparse.Namespace, name: str) -> BuildOptions:
    """What the shared options say of checks and cuts of the benchmark of this name.

    Raises ValueError for a gamma out of range.
    """
    names = ("rouge", "gamma", "refusal_phrases", "keyword_any_case", "keyword_part")
    given = {one: value for one in names if (value := getattr(options, one)) is not None}
    reward = replace(benchmark_reward(f"rerule/{name}"), **given)
    return BuildOptions(reward, tuple(options.drop), options.limit)
