"""Command-line options that all benchmarks share, and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from data_prep.build import BuildOptions, build, summary
from data_prep.checks import DROPS
from data_prep.generate import Request, add_endpoint_arguments, endpoint_of, estimate
from data_prep.prompts import Benchmark
from data_prep.writers import Allowance, DryWriter, EndpointWriter, RuleWriter, Writer, explained
from recipe.rerule.io import check_apart, check_writable, existing
from recipe.rerule.process import positive
from reward import RewardConfig
from reward.rouge import CONVENTIONS


def add_arguments(parser: argparse.ArgumentParser, source_help: str) -> None:
    """Declare --source, --out, --overwrite, --seed, --val-rows, --drop, --rouge and --gamma."""
    parser.add_argument("--source", required=True, metavar="DIR_OR_NAME", help=source_help)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument("--overwrite", action="store_true", help="replace DIR if this program made all of it")
    parser.add_argument(
        "--seed", type=int, default=42, metavar="N", help="seed of every draw (default: %(default)s)"
    )
    parser.add_argument(
        "--val-rows", type=positive, default=64, metavar="N",
        help="prompts for validation during training (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--drop", action="append", choices=sorted(DROPS), default=[],
        help="leave such training prompts out; may be given several times (default: they are only listed)",
    )  # fmt: skip
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="for a try: at most N training prompts a side, N prompts of stage 1 and N probes; at most N "
        "requests to an endpoint for each kind of text that it writes (default: all)",
    )
    parser.add_argument(
        "--rouge", choices=CONVENTIONS, default=RewardConfig.rouge,
        help="the reward's ROUGE-L convention, which the checks use (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--gamma", type=float, default=0.3, metavar="X",
        help="the reward's ROUGE-L threshold, which the checks use (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--refusal-phrases", metavar="FILE",
        help="the reward's file of phrases, which the checks use (default: none)",
    )  # fmt: skip
    add_endpoint_arguments(parser)


def add_stage1_modes(parser: argparse.ArgumentParser) -> None:
    """Declare --stage1-modes."""
    parser.add_argument(
        "--stage1-modes", nargs="+", choices=("qa", "fb"), default=["qa", "fb"],
        help="refusals of stage 1: questions, fill-in-the-blank forms of them (default: both)",
    )  # fmt: skip


def add_gold(parser: argparse.ArgumentParser, further: str = "") -> None:
    """Declare --gold."""
    parser.add_argument(
        "--gold", metavar="FILE",
        help="right answers to the questions to forget, where the source gives refusals: rows {question, "
        f"answer}}, as CSV or JSON{further}; forget_gold.parquet is written from them",
    )  # fmt: skip


Load = Callable[[Writer], Benchmark]
_INPUTS = ("source", "probes", "passages", "retain_passages", "refusals", "refusal_phrases", "gold")
"""Options that name a file or folder to read, of all benchmarks."""


def make(load: Load, options: argparse.Namespace) -> None:
    """Load a benchmark, build its folder as the shared options say, and print what is in it.

    With --dry-run, print what the endpoint would be asked instead. Raises ValueError.
    """
    if options.dry_run:
        print_estimate([load], options)
        return
    check_out(options)
    benchmark = loaded(load, options)
    with explained(benchmark.failures):
        manifest = build(benchmark, options.out, overwrite=options.overwrite, options=build_options(options))
    print(summary(options.out, manifest))


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
    requests = [request for load in loads for request in _requests_of(load, options)]
    print(estimate(requests, endpoint, options.cache if options.cache.is_dir() else None))


def _requests_of(load: Load, options: argparse.Namespace) -> list[Request]:
    dry = DryWriter(Allowance(options.limit))
    load(dry)
    return dry.requests


def loaded(load: Load, options: argparse.Namespace) -> Benchmark:
    """The benchmark, with what rules or the endpoint write. Raises ValueError."""
    endpoint = endpoint_of(options)
    if endpoint is None:
        return _loaded(load, RuleWriter(), "rules")
    writer = EndpointWriter(endpoint, options.cache, Allowance(options.limit))
    with explained(writer.failures):
        benchmark = _loaded(load, writer, endpoint.model)
    writer.check_answered()
    return benchmark


def _loaded(load: Load, writer: Writer, written_by: str) -> Benchmark:
    benchmark = load(writer)
    settings = {**benchmark.settings, "written_by": written_by}
    return replace(benchmark, settings=settings, failures=tuple(writer.failures))


def build_options(options: argparse.Namespace) -> BuildOptions:
    """What the shared options say of checks and cuts. Raises ValueError for a gamma out of range."""
    reward = RewardConfig(rouge=options.rouge, gamma=options.gamma, refusal_phrases=options.refusal_phrases)
    return BuildOptions(reward, tuple(options.drop), options.limit)
