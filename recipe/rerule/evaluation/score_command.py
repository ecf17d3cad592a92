"""`evaluate score`: metrics of per-sample logs, without a model.

Each benchmark's module is imported only once it is asked for, so that the command starts fast.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.logs.kinds import (
    first_row,
    foreign,
    is_record,
    scorer_of_log,
    scorer_of_record,
)
from recipe.rerule.evaluation.logs.metrics import Scored, compute
from recipe.rerule.evaluation.logs.open_unlearning import Log, LogError, read_log
from recipe.rerule.evaluation.logs.records import Record, by_model
from recipe.rerule.evaluation.registry import UNSTATED, benchmarks, scorers
from recipe.rerule.evaluation.scoring import OPTIONS, LogScorer, RecordMetrics, RecordScorer
from recipe.rerule.io import read_json
from recipe.rerule.process import Progress

_DESCRIPTION = """\
Score a log of single samples without a model. Every number is computed from the samples; aggregates in the
log are not used. docs/evaluation.md says how."""
_ITSELF = "compared with itself every model has a forget quality of 1 and a PrivLeak of 0"
_NAME_WIDTH = 34
_WIDTH = 100


def add_score_parser(commands: Any) -> None:
    """Adds `score` to the subcommands of `evaluate`; its `run` is `run_score`."""
    parser = commands.add_parser(
        "score",
        help="score a log of single samples without a model",
        description=_DESCRIPTION,
        epilog="examples:\n" + "".join(benchmark.score_example for benchmark in benchmarks().values()),
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
        help=f"{_users('allow_unequal')}: compare with a retained model even where its log is of other "
        "questions",
    )
    parser.add_argument(
        "--json", action="store_true", help="end with one JSON object {metric: number} on a line"
    )
    parser.set_defaults(run=run_score)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--benchmark", choices=tuple(scorers()), required=True, help="the benchmark of the log"
    )
    parser.add_argument(
        "--log",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="per-sample values: a log in open-unlearning's form (NAME_EVAL.json), or, for "
        f"{_users('model')}, records (responses.jsonl), of which several files count together",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=f"{_users('model')}: the model whose answers are scored, where the files hold those of several",
    )
    parser.add_argument(
        "--retain-log",
        type=Path,
        metavar="FILE",
        help=f"{_users('retain_log')}: log of the model trained without the forget set, for the metrics that "
        "compare with it",
    )


def _users(option: str) -> str:
    """The benchmarks that have a use for an option, each by the name that it is first known by."""
    names = [name for name, scorer in scorers().items() if option in scorer.options]
    return ", ".join(name for name in names if name in benchmarks())


def run_score(options: argparse.Namespace) -> int:
    """Prints the metrics; exit code 0. Raises ValueError where the log cannot be scored."""
    with Progress(f"evaluate score: {options.log[0]}"):
        scored = _score(options)
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


def _score(options: argparse.Namespace) -> Scored:
    """The metrics of the files. Raises ValueError."""
    scorer = scorers()[options.benchmark]
    _refuse(options, *(name for name in OPTIONS if name not in scorer.options))
    if isinstance(scorer, RecordScorer):
        return _score_records(options, scorer)
    if len(options.log) > 1:
        raise LogError(f"--log is given {len(options.log)} files; a {options.benchmark} log is one")
    log = _log(options.log[0], scorer, options.benchmark)
    retain = None if options.retain_log is None else _log(options.retain_log, scorer, options.benchmark)
    if retain is not None and options.log[0].samefile(options.retain_log):
        raise LogError(
            f"--log and --retain-log are the same file, {options.retain_log}: {_ITSELF}; give --retain-log "
            "the log of a model trained without the forget set"
        )
    scored = scorer.score(log, retain, _wanted(options), options)
    scored.notes.extend(log.null_notes())
    if retain is not None:
        scored.notes.extend(f"{retain.name}: {note}" for note in retain.null_notes())
        if log.metrics == retain.metrics:
            scored.notes.append(f"{log.name} and {retain.name} hold the same values: {_ITSELF}")
    return scored


def _log(path: Path, scorer: LogScorer, asked: str) -> Log:
    """The log, which may be no other benchmark's. Raises LogError."""
    if is_record(first_row(path)):
        names = [other.name for other in _record_scorers()]
        hint = "; logs of ours lie in logs/ of an evaluation"
        raise LogError(foreign(path, "answers one by one", asked, names, hint))
    log = read_log(path)
    _refuse_other_log(path, log.metrics, asked, scorer)
    return log


def _refuse_other_log(path: Path, content: Any, asked: str, scorer: LogScorer | None = None) -> None:
    """Raises LogError where the content is a log of another scorer than this one."""
    found = scorer_of_log(content, _log_scorers())
    if found is not None and found is not scorer:
        raise LogError(foreign(path, f"a log of {found.title}", asked, [found.name]))


def _check_records(path: Path, asked: str, scorer: RecordScorer) -> None:
    """Raises LogError where a file that must hold records is a log of all metrics, or of other records."""
    row = first_row(path)
    for content in (row, _whole(path)):
        _refuse_other_log(path, content, asked)
    if scorer.mark is not None and is_record(row) and scorer_of_record(row, [scorer]) is None:
        raise LogError(f"{path}: {scorer.mark.absent}: score it with --benchmark {UNSTATED}")


def _log_scorers() -> list[LogScorer]:
    """Every one once: benchmarks may share one."""
    return [scorer for scorer in dict.fromkeys(scorers().values()) if isinstance(scorer, LogScorer)]


def _record_scorers() -> list[RecordScorer]:
    """Every one once, those that know their records by a mark first."""
    found = [scorer for scorer in dict.fromkeys(scorers().values()) if isinstance(scorer, RecordScorer)]
    return sorted(found, key=lambda scorer: scorer.mark is None)


def _whole(path: Path) -> Any:
    try:
        return read_json(path, nan=True)
    except (ValueError, OSError):
        return None


def _wanted(options: argparse.Namespace) -> list[str] | None:
    return None if options.metrics is None else [name.strip() for name in options.metrics.split(",")]


def _score_records(options: argparse.Namespace, scorer: RecordScorer) -> Scored:
    """Scores records of one model."""
    metrics = scorer.load()
    records = _of_one_model(_read_records(options, scorer, metrics), options.model)
    samples = metrics.samples(records)
    found = metrics.statistics(samples)
    own = {name: lambda name=name: float(found[name](samples)) for name in found}
    scored = compute(own, {}, _wanted(options))
    return Scored(scored.metrics, [*scored.notes, *_record_notes(options, scorer)], metrics.LEGEND)


def _record_notes(options: argparse.Namespace, scorer: RecordScorer) -> list[str]:
    """Whether another benchmark knows the records by its mark."""
    other = scorer_of_record(first_row(options.log[0]), _record_scorers())
    if other is None or other is scorer or other.mark is None:
        return []
    return [f"{other.mark.present}; --benchmark {other.name} scores them as {other.title} does"]


def _read_records(options: argparse.Namespace, scorer: RecordScorer, metrics: RecordMetrics) -> list[Record]:
    """The records of all files. Raises ValueError, first of all where a file is of another benchmark."""
    _check_once(options.log)
    try:
        return metrics.read_records(*options.log)
    except ValueError:
        for path in options.log:
            _check_records(path, options.benchmark, scorer)
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
