"""`evaluate score`: metrics of single answers, without a model.

Three kinds of files are scored: the tidy table of an evaluation (responses.parquet), whose metric columns
count as they are; a log of open-unlearning; and records of a benchmark's own code. pandas and a benchmark's
own libraries are imported only where they are needed, so that the command starts fast.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.logs import Log, LogError, Scored, compute, read_log
from recipe.rerule.evaluation.registry import (
    SCORE_OPTIONS,
    Benchmark,
    add_phrases_argument,
    benchmarks,
    by_any_name,
)
from recipe.rerule.evaluation.row_files import first_record
from recipe.rerule.evaluation.summary import samples_of
from recipe.rerule.io import read_json
from recipe.rerule.process import Progress

if TYPE_CHECKING:
    import pandas as pd

_DESCRIPTION = """\
Score single answers without a model. Every number is computed from the samples; aggregates in a log are
not used. docs/evaluation.md says how."""
_ITSELF = "compared with itself every model has a forget quality of 1 and a PrivLeak of 0"
_NAME_WIDTH = 34
_WIDTH = 100


def add_score_parser(commands: Any) -> None:
    """Adds `score` to the subcommands of `evaluate`; its `run` is `run_score`."""
    parser = commands.add_parser(
        "score",
        help="score single answers without a model",
        description=_DESCRIPTION,
        epilog="examples:\n" + "".join(benchmark.score_example for benchmark in benchmarks().values()),
    )
    parser.add_argument(
        "--benchmark", choices=tuple(by_any_name()), required=True, help="the benchmark of the file"
    )
    parser.add_argument(
        "--log",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="responses.parquet of an evaluation, of which several count together; a log in the form of "
        f"open-unlearning (NAME_EVAL.json; {_users('retain_log')}); or records of a benchmark's own code",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="the model whose answers are scored, where responses.parquet holds those of several",
    )
    parser.add_argument(
        "--retain-log",
        type=Path,
        metavar="FILE",
        help=f"{_users('retain_log')}: log of the model trained without the forget set, for the metrics that "
        "compare with it",
    )
    add_phrases_argument(parser)
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


def _users(option: str) -> str:
    """The benchmarks whose logs have a use for an option."""
    return ", ".join(one.name for one in benchmarks().values() if option in one.score_options)


def run_score(options: argparse.Namespace) -> int:
    """Prints the metrics; exit code 0. Raises ValueError where the file cannot be scored."""
    benchmark = by_any_name()[options.benchmark].with_phrases(options.refusal_phrases)
    with Progress(f"evaluate score: {options.log[0]}"):
        seen: set[Path] = set()
        for path in options.log:
            if path.resolve() in seen:
                raise LogError(f"--log {path} is given twice")
            seen.add(path.resolve())
        if benchmark.score_options and not any(path.suffix == ".parquet" for path in options.log):
            scored = _score_log(options, benchmark)
        else:
            scored = _score_answers(options, benchmark)
    for note in scored.notes:
        print(f"note: {note}", file=sys.stderr)
    print(format_metrics(scored.metrics))
    for line in textwrap.wrap(benchmark.score_legend or benchmark.legend, _WIDTH):
        print(line)
    if options.json:
        # After the notes, whatever the streams' buffers: the object is the last line.
        sys.stderr.flush()
        print(json.dumps(scored.metrics, allow_nan=False), flush=True)
    return 0


def format_metrics(metrics: Mapping[str, float | None]) -> str:
    """One metric a line; a dash for one that cannot be computed."""

    def number(value: float | None) -> str:
        if value is None:
            return "–"
        return f"{value:.5e}" if 0 < abs(value) < 1e-3 else f"{value:.6f}"

    return "\n".join(f"{name.ljust(_NAME_WIDTH)} {number(value):>12}" for name, value in metrics.items())


def _wanted(options: argparse.Namespace) -> list[str] | None:
    return None if options.metrics is None else [name.strip() for name in options.metrics.split(",")]


def _refuse(options: argparse.Namespace, allowed: Sequence[str]) -> None:
    """Raises LogError where an option is given that has no meaning for the benchmark's file."""
    for name in SCORE_OPTIONS:
        if name not in allowed and getattr(options, name):
            option, what = f"--{name.replace('_', '-')}", options.log[0].suffix or "this"
            raise LogError(
                f"{option} has no meaning for a {what} file of --benchmark {options.benchmark}; leave it out"
            )


def _refuse_foreign(path: Path, content: Any, asked: str) -> None:
    """Raises LogError where a JSON value is a log or a record of other benchmarks than `asked`."""
    others = [one.name for one in benchmarks().values() if one.holds(content)]
    if others and by_any_name()[asked].name not in others:
        raise LogError(
            f"{path} holds a log of {benchmarks()[others[0]].title}, and --benchmark is {asked}: score it "
            f"with --benchmark {' or '.join(others)}"
        )


def _score_log(options: argparse.Namespace, benchmark: Benchmark) -> Scored:
    """The metrics of a log in open-unlearning's form. Raises LogError."""
    _refuse(options, benchmark.score_options)
    if len(options.log) > 1:
        raise LogError(f"--log is given {len(options.log)} files; a {options.benchmark} log is one")
    log = _log(options.log[0], options.benchmark)
    retain = None if options.retain_log is None else _log(options.retain_log, options.benchmark)
    if retain is not None and options.log[0].samefile(options.retain_log):
        raise LogError(
            f"--log and --retain-log are the same file, {options.retain_log}: {_ITSELF}; give --retain-log "
            "the log of a model trained without the forget set"
        )
    scored = benchmark.score_log(log, retain, _wanted(options), options)
    assert scored is not None  # of a benchmark with score_options
    scored.notes.extend(log.null_notes())
    if retain is not None:
        scored.notes.extend(f"{retain.name}: {note}" for note in retain.null_notes())
        if log.metrics == retain.metrics:
            scored.notes.append(f"{log.name} and {retain.name} hold the same values: {_ITSELF}")
    return scored


def _log(path: Path, asked: str) -> Log:
    """The log, which may be no other benchmark's. Raises LogError."""
    _refuse_foreign(path, first_record(path), asked)
    log = read_log(path)
    _refuse_foreign(path, log.metrics, asked)
    return log


def _score_answers(options: argparse.Namespace, benchmark: Benchmark) -> Scored:
    """The metrics of the answers of one model, in tidy tables or records. Raises ValueError."""
    import pandas as pd

    _refuse(options, ("model", "refusal_phrases"))
    notes: list[str] = []
    tables = []
    for path in options.log:
        if path.suffix == ".parquet" or path.is_dir():
            tables.append(tidy.read_responses(path))
            if benchmark.phrases is not None:
                notes += _judged_again(tables[-1], path, benchmark)
            notes += _other_benchmark(path, benchmark)
            continue
        first = first_record(path)
        for content in (first, _whole(path)):
            _refuse_foreign(path, content, options.benchmark)
        if not path.is_file():
            raise LogError(f"{path}: no such file")
        if not benchmark.holds(first):
            raise LogError(
                f"{path} holds nothing that --benchmark {options.benchmark} scores; give {tidy.FILE}"
            )
        tables.append(
            tidy.from_rows({"model": "", "fact": "", **row} for row in benchmark.read_records(path))
        )
    table = _of_one_model(pd.concat(tables, ignore_index=True), options.model)
    place = [name for name in ("target", "side", "kind", "probe", "sample") if name in table]
    twice = table[table.duplicated(place)]
    if len(twice):
        told = ", ".join(f"{name} {value}" for name, value in twice.iloc[0][place].items())
        raise LogError(f"two answers to one probe ({told}): give each file once")
    try:
        samples, _ = samples_of(table, benchmark.sets)
    except ValueError as error:
        raise LogError(f"{options.log[0]} holds no answers of {benchmark.title}: {error}") from error
    statistics = benchmark.statistics(samples)
    if not statistics:
        raise LogError(f"{options.log[0]} has none of the columns that {benchmark.title} is scored by")
    own = {name: partial(_number, statistic, samples) for name, statistic in statistics.items()}
    scored = compute(own, {}, _wanted(options))
    return Scored(scored.metrics, [*scored.notes, *notes])


def _number(statistic: Any, samples: Any) -> float:
    return float(statistic(samples))


def _judged_again(table: pd.DataFrame, path: Path, benchmark: Benchmark) -> list[str]:
    """Judge the refusals of a table again, in place; a note on how many are other than before."""
    if "refused" not in table:
        raise LogError(f"{path} has no column refused, which --refusal-phrases judges again; leave it out")
    known = table["refused"].notna()
    judged = table.loc[known, "response"].map(benchmark.refuses).astype(float)
    changed = int((judged != table.loc[known, "refused"]).sum())
    table.loc[known, "refused"] = judged
    return [f"{path}: with --refusal-phrases {changed} of {len(judged)} responses are judged otherwise"]


def _whole(path: Path) -> Any:
    try:
        return read_json(path, nan=True)
    except (ValueError, OSError):
        return None


def _other_benchmark(path: Path, benchmark: Benchmark) -> list[str]:
    """A note where the evaluation that wrote a table says that it is of another benchmark."""
    meta = _whole((path if path.is_dir() else path.parent) / "meta.json")
    other = meta.get("benchmark") if isinstance(meta, dict) else None
    if other in (None, benchmark.name) or other not in benchmarks():
        return []
    return [f"{path} is of {benchmarks()[other].title}; --benchmark {other} scores it as such"]


def _of_one_model(table: pd.DataFrame, name: str | None) -> pd.DataFrame:
    """The rows of the model `name`, or of the only one there is. Raises LogError."""
    known = list(dict.fromkeys(table["model"]))
    if name is None and len(known) > 1:
        raise LogError(f"the answers are of {', '.join(known)}; say which with --model")
    if name is not None and name not in known:
        raise LogError(f"--model is {name}, and the answers are of {', '.join(known) or 'none'}")
    return table if name is None else table[table["model"] == name]
