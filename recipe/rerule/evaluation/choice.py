"""Which benchmark `evaluate model` runs, and with which of its options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recipe.rerule.evaluation import world
from recipe.rerule.evaluation.benchmarks import (
    Benchmark,
    muse_books_benchmark,
    rwku_benchmark,
    tofu_benchmark,
    world_benchmark,
)
from recipe.rerule.evaluation.logs.metrics import min_k_auc
from recipe.rerule.evaluation.logs.open_unlearning import read_log
from recipe.rerule.evaluation.muse_books import benchmark as muse_books
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.rwku import benchmark as rwku
from recipe.rerule.evaluation.texts import NoTexts, PrivLeakTexts, RwkuTexts, Texts
from recipe.rerule.evaluation.tofu import benchmark as tofu

BENCHMARKS = ("world", "custom", "rwku", "tofu", "muse_books")
PROMPTS: Mapping[str, Sequence[str]] = {
    "rwku": tuple(rwku.PROMPTS),
    "tofu": tuple(tofu.PROMPTS),
    "muse_books": tuple(muse_books.CONVENTIONS),
}
"""The ways to ask, by benchmark; the first is the default."""
_PREFIX = "rerule/"


def add_benchmark_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --benchmark and the options of single benchmarks."""
    parser.add_argument(
        "--benchmark",
        choices=BENCHMARKS,
        help="what the probes are of (default: what their data_source says; custom for data of one's own)",
    )
    parser.add_argument(
        "--prompts",
        metavar="NAME",
        help="; ".join(f"{name}: {', '.join(known)}" for name, known in PROMPTS.items())
        + " (default: the first)",
    )
    parser.add_argument(
        "--stop",
        choices=rwku.STOPS,
        help="rwku: whether an answer ends at a newline (default: newline; docs/evaluation.md)",
    )
    parser.add_argument(
        "--retain-log",
        type=Path,
        metavar="FILE",
        help="log of a retained model, which becomes a row of the table; tofu: TOFU_EVAL.json, for forget "
        "quality; muse_books: MUSE_EVAL.json, with --texts for PrivLeak (default: MUSE's own constant)",
    )
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="DIR",
        help="rwku: the target's folder, for membership inference and fluency; muse_books: MUSE's folder "
        "privleak (forget.json, holdout.json)",
    )
    _add_world_arguments(parser)


def _add_world_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"world, custom: most new tokens a response (default: {world.MAX_TOKENS}); the others have "
        "their own",
    )
    parser.add_argument(
        "--convention",
        choices=world.CONVENTIONS,
        help=f"world, custom: ROUGE-L convention, see reward/rouge.py (default: {world.CONVENTIONS[0]})",
    )


def choose_benchmark(options: argparse.Namespace, probes: Sequence[Probe]) -> Benchmark:
    """The benchmark with its options. Raises ValueError where one is wrong, or is another benchmark's."""
    name = options.benchmark or benchmark_of(probes)
    _refuse_foreign(options, name)
    return _MAKERS[name](options)


def benchmark_of(probes: Sequence[Probe]) -> str:
    """The benchmark that the probes' data_source names; "custom" for any other.

    Raises ValueError where they name several.
    """
    names = sorted({probe.data_source.removeprefix(_PREFIX) for probe in probes})
    if len(names) > 1:
        raise ValueError(f"the probes are of {', '.join(names)}; evaluate one benchmark at a time")
    return names[0] if names[0] in BENCHMARKS else "custom"


_OPTIONS: Mapping[str, Sequence[str]] = {
    "prompts": tuple(PROMPTS),
    "stop": ("rwku",),
    "retain_log": ("tofu", "muse_books"),
    "texts": ("rwku", "muse_books"),
    "max_tokens": ("world", "custom"),
    "convention": ("world", "custom"),
}
"""Which benchmarks know an option."""


def _refuse_foreign(options: argparse.Namespace, benchmark: str) -> None:
    for option, known in _OPTIONS.items():
        if getattr(options, option) is not None and benchmark not in known:
            raise ValueError(
                f"--{option.replace('_', '-')} is an option of {', '.join(known)}, and the probes are of "
                f"{benchmark}; leave it out"
            )


def choose_texts(options: argparse.Namespace, benchmark: str) -> Texts:
    """What is measured beside the probes. Raises ValueError for a retained model's log that cannot serve."""
    if options.texts is None:
        return NoTexts()
    if benchmark == "rwku":
        return RwkuTexts(options.texts)
    if options.retain_log is None:
        return PrivLeakTexts(options.texts)
    return PrivLeakTexts(options.texts, min_k_auc(read_log(options.retain_log)))


def _prompts(options: argparse.Namespace, benchmark: str) -> str:
    known = PROMPTS[benchmark]
    name = options.prompts or known[0]
    if name not in known:
        raise ValueError(f"--prompts is {name}; {benchmark} has {', '.join(known)}")
    return name


def _world(options: argparse.Namespace, name: str = "world") -> Benchmark:
    max_tokens = world.MAX_TOKENS if options.max_tokens is None else options.max_tokens
    if max_tokens < 1:
        raise ValueError(f"--max-tokens is {max_tokens}; it must be at least 1")
    return world_benchmark(options.convention or world.CONVENTIONS[0], max_tokens, name)


def _custom(options: argparse.Namespace) -> Benchmark:
    return _world(options, "custom")


def _rwku(options: argparse.Namespace) -> Benchmark:
    return rwku_benchmark(_prompts(options, "rwku"), options.stop or "newline")


def _tofu(options: argparse.Namespace) -> Benchmark:
    return tofu_benchmark(_prompts(options, "tofu"), options.retain_log)


def _muse_books(options: argparse.Namespace) -> Benchmark:
    return muse_books_benchmark(_prompts(options, "muse_books"), options.retain_log)


_MAKERS: Mapping[str, Callable[[argparse.Namespace], Benchmark]] = {
    "world": _world,
    "custom": _custom,
    "rwku": _rwku,
    "tofu": _tofu,
    "muse_books": _muse_books,
}
