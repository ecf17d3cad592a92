"""`evaluate score`: metrics of per-sample logs, without a model.

Each benchmark's module is imported only once it is asked for, so that the command starts fast.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.logs.kinds import first_row, foreign, kind_of_log, kind_of_record
from recipe.rerule.evaluation.logs.metrics import Scored
from recipe.rerule.evaluation.logs.open_unlearning import Log, LogError, read_log
from recipe.rerule.evaluation.logs.records import Record, by_model
from recipe.rerule.process.json_input import read_json
from recipe.rerule.process.progress import Progress

_DESCRIPTION = """\
Score a log of single samples without a model. Every number is computed from the samples; aggregates in the
log are not used. docs/evaluation.md says how."""
_EXAMPLES = """\
examples:
  python -m recipe.rerule.evaluate score --benchmark tofu --log TOFU_EVAL.json --retain-log RETAIN_EVAL.json
      a log of open-unlearning; forget quality compares with the log of a retained model
  python -m recipe.rerule.evaluate score --benchmark muse-books --log MUSE_EVAL.json --json
      the last line of the output is one JSON object, for a program
  python -m recipe.rerule.evaluate score --benchmark rwku --model rerule --log outputs/rwku/*/responses.jsonl
      the answers of one model to several targets: every number is the mean over the targets
"""
_NAME_WIDTH = 34
_ONE_NAME = {"muse": "muse-books", "muse_books": "muse-books"}
_WIDTH = 100
Scorer = Callable[[argparse.Namespace], Scored]


def add_score_parser(commands: Any) -> None:
    """Adds `score` to the subcommands of `evaluate`; its `run` is `run_score`."""
    parser = commands.add_parser(
        "score",
        help="score a log of single samples without a model",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    _add_files(parser)
    parser.add_argument(
        "--metrics", metavar="NAME,...", help="only these, all of which must come out (default: what can be)"
    )
    parser.add_argument(
        "--variants", action="store_true", help="also other definitions of the metrics, under other names"
    )
    parser.add_argument(
        "--allow-unequal",
        action="store_true",
        help="TOFU: compare with a retained model even where its log is of other questions",
    )
    parser.add_argument(
        "--json", action="store_true", help="end with one JSON object {metric: number} on a line"
    )
    parser.set_defaults(run=run_score)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--benchmark", choices=SCORERS, required=True, help="the benchmark of the log")
    parser.add_argument(
        "--log",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="per-sample values: TOFU_EVAL.json, MUSE_EVAL.json, or records of rwku, world or custom "
        "(responses.jsonl), of which several files count together",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="rwku, world, custom: the model whose answers are scored, where the files hold those of several",
    )
    parser.add_argument(
        "--retain-log",
        type=Path,
        metavar="FILE",
        help="log of the model trained without the forget set (TOFU: forget_quality; TOFU, MUSE: privleak)",
    )


def run_score(options: argparse.Namespace) -> int:
    """Prints the metrics; exit code 0. Raises ValueError where the log cannot be scored."""
    with Progress(f"evaluate score: {options.log[0]}"):
        scored = SCORERS[options.benchmark](options)
    for note in scored.notes:
        print(f"note: {note}", file=sys.stderr)
    print(format_metrics(scored.metrics))
    for line in textwrap.wrap(scored.legend, _WIDTH):
        print(line)
    if options.json:
        # After the notes, whatever the streams' buffers: the object is the last line.
        sys.stderr.flush()
        print(json.dumps(scored.metrics, allow_nan=False), flush=True)
    return 0


def format_metrics(metrics: Mapping[str, float | None]) -> str:
    """One metric a line; a dash for one that cannot be computed."""
    return "\n".join(f"{name.ljust(_NAME_WIDTH)} {_number(value):>12}" for name, value in metrics.items())


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.5e}" if 0 < abs(value) < 1e-3 else f"{value:.6f}"


def _logs(options: argparse.Namespace) -> tuple[Log, Log | None]:
    _refuse(options, "model")
    if len(options.log) > 1:
        raise LogError(f"--log is given {len(options.log)} files; a {options.benchmark} log is one")
    retain = None if options.retain_log is None else _log(options.retain_log, options.benchmark)
    return _log(options.log[0], options.benchmark), retain


def _log(path: Path, asked: str) -> Log:
    """The log, which may be no other benchmark's. Raises LogError."""
    kind = kind_of_record(first_row(path))
    log = read_log(path) if kind is None else Log(str(path), {})
    kind = kind or kind_of_log(log.metrics)
    if kind is not None and kind != _ONE_NAME.get(asked, asked):
        raise LogError(foreign(path, kind, asked))
    return log


def _check_records(path: Path, asked: str) -> None:
    """Raises LogError where a file that must hold records is a log of all metrics."""
    kind = kind_of_log(first_row(path)) or kind_of_log(_whole(path))
    if kind is not None:
        raise LogError(foreign(path, kind, asked))
    if asked == "rwku" and kind_of_record(first_row(path)) == "world":
        raise LogError(f"{path}: its answers name no target, as RWKU's do: score it with --benchmark world")


def _whole(path: Path) -> Any:
    try:
        return read_json(path, nan=True)
    except (ValueError, OSError):
        return None


def _wanted(options: argparse.Namespace) -> list[str] | None:
    return None if options.metrics is None else [name.strip() for name in options.metrics.split(",")]


def _score_tofu(options: argparse.Namespace) -> Scored:
    from recipe.rerule.evaluation.tofu import score as tofu_score

    log, retain = _logs(options)
    return tofu_score.score(
        log,
        retain,
        wanted=_wanted(options),
        variants=options.variants,
        allow_unequal=options.allow_unequal,
    )


def _score_muse(options: argparse.Namespace) -> Scored:
    from recipe.rerule.evaluation.muse_books import log as muse_log

    _refuse(options, "allow_unequal")
    log, retain = _logs(options)
    return muse_log.score(log, retain, wanted=_wanted(options), variants=options.variants)


def _score_rwku(options: argparse.Namespace) -> Scored:
    from recipe.rerule.evaluation.rwku import benchmark as rwku

    return _score_records(options, rwku)


def _score_world(options: argparse.Namespace) -> Scored:
    from recipe.rerule.evaluation import world

    return _score_records(options, world)


def _score_records(options: argparse.Namespace, benchmark: Any) -> Scored:
    """Scores records of one model with the statistics of `benchmark`, a module."""
    from recipe.rerule.evaluation.logs.metrics import compute

    _refuse(options, "retain_log", "variants", "allow_unequal")
    records = _of_one_model(_read_records(options, benchmark), options.model)
    samples = benchmark.samples(records)
    found = benchmark.statistics(samples)
    own = {name: lambda name=name: float(found[name](samples)) for name in found}
    scored = compute(own, {}, _wanted(options))
    return Scored(scored.metrics, [*scored.notes, *_record_notes(options)], benchmark.LEGEND)


def _record_notes(options: argparse.Namespace) -> list[str]:
    named = options.benchmark == "world" and kind_of_record(first_row(options.log[0])) == "rwku"
    return ["the answers name a target, as RWKU's do; --benchmark rwku scores them as RWKU does"] * named


def _read_records(options: argparse.Namespace, benchmark: Any) -> list[Record]:
    """The records of all files. Raises ValueError, first of all where a file is of another benchmark."""
    _check_once(options.log)
    try:
        return benchmark.read_records(*options.log)
    except ValueError:
        for path in options.log:
            _check_records(path, options.benchmark)
        raise


def _check_once(paths: Sequence[Path]) -> None:
    """Raises LogError where a file is given twice."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise LogError(f"--log {path} is given twice")
        seen.add(path.resolve())


def _of_one_model(records: Sequence[Record], name: str | None) -> Sequence[Record]:
    """The records of the model `name`, or of the only one there is. Raises LogError."""
    models = by_model(records)
    known = ", ".join(models)
    if name is None and len(models) > 1:
        raise LogError(f"the records are of {known}; say which with --model")
    if name is not None and name not in models:
        raise LogError(f"--model is {name}, and the records are of {known or 'none'}")
    return records if name is None else models[name]


def _refuse(options: argparse.Namespace, *names: str) -> None:
    """Raises LogError where an option is given that has no meaning for the benchmark."""
    for name in names:
        if getattr(options, name):
            option = "--" + name.replace("_", "-")
            raise LogError(f"{option} has no meaning for --benchmark {options.benchmark}; leave it out")


SCORERS: Mapping[str, Scorer] = {
    "tofu": _score_tofu,
    "muse-books": _score_muse,
    "muse": _score_muse,
    "muse_books": _score_muse,
    "rwku": _score_rwku,
    "world": _score_world,
    "custom": _score_world,
}
"""By the name of the benchmark."""
