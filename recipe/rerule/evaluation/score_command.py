"""`evaluate score`: metrics of single answers, without a model.

Two kinds of files are scored: the tidy table of an evaluation (responses.parquet), whose metric columns count
as they are, and a log of open-unlearning. pandas and a benchmark's own libraries are imported only where they
are needed, so that the command starts fast.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.logs import Log, Scored, compute, read_log, retained_metrics
from recipe.rerule.evaluation.registry import Benchmark, add_phrases_argument, benchmarks, name_of
from recipe.rerule.evaluation.summary import metrics, samples_of
from recipe.rerule.io import read_record
from recipe.rerule.process import Progress

if TYPE_CHECKING:
    import pandas as pd

_DESCRIPTION = """\
Score single answers without a model. Every number is computed from the samples; aggregates in a log are
not used. docs/evaluation.md says how."""
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
        "--benchmark",
        type=name_of,
        choices=tuple(benchmarks()),
        required=True,
        help="the benchmark of the file",
    )
    with_logs = ", ".join(one.name for one in benchmarks().values() if one.log_file)
    parser.add_argument(
        "--log", type=Path, nargs="+", required=True, metavar="FILE",
        help="responses.parquet of an evaluation, of which several count together, or a log in the form of "
        f"open-unlearning (NAME_EVAL.json; {with_logs})",
    )  # fmt: skip
    parser.add_argument(
        "--model", metavar="NAME",
        help="the model whose answers are scored, where responses.parquet holds those of several",
    )  # fmt: skip
    parser.add_argument(
        "--retain-log", type=Path, metavar="FILE",
        help=f"{with_logs}: log of the model trained without the forget set, for the metrics that compare "
        "with it",
    )  # fmt: skip
    add_phrases_argument(parser)
    parser.add_argument(
        "--json", action="store_true", help="end with one JSON object {metric: number} on a line"
    )
    parser.set_defaults(run=run_score)


def run_score(options: argparse.Namespace) -> int:
    """Prints the metrics; exit code 0. Raises ValueError where the file cannot be scored."""
    benchmark = benchmarks()[options.benchmark].with_phrases(options.refusal_phrases)
    with Progress(f"evaluate score: {options.log[0]}"):
        paths = [path.resolve() for path in options.log]
        if twice := [path for path in options.log if paths.count(path.resolve()) > 1]:
            raise ValueError(f"--log {twice[0]} is given twice")
        is_table = any(path.is_dir() or path.suffix == ".parquet" for path in options.log)
        is_log = benchmark.log_file and not is_table
        scored = (_score_log if is_log else _score_answers)(options, benchmark)
    for note in scored.notes:
        print(f"note: {note}", file=sys.stderr)
    for name, value in scored.metrics.items():
        small = value is not None and 0 < abs(value) < 1e-3
        shown = "–" if value is None else f"{value:.5e}" if small else f"{value:.6f}"
        print(f"{name.ljust(_NAME_WIDTH)} {shown:>12}")
    for line in textwrap.wrap(benchmark.score_legend or benchmark.legend, _WIDTH):
        print(line)
    if options.json:
        # After the notes, whatever the streams' buffers: the object is the last line.
        sys.stderr.flush()
        print(json.dumps(scored.metrics, allow_nan=False), flush=True)
    return 0


def _refuse(options: argparse.Namespace, name: str) -> None:
    """Raises ValueError where an option is given that has no meaning for the benchmark's file."""
    if getattr(options, name):
        option = f"--{name.replace('_', '-')}"
        raise ValueError(
            f"{option} has no meaning for {options.log[0]} of --benchmark {options.benchmark}; leave it out"
        )


def _score_log(options: argparse.Namespace, benchmark: Benchmark) -> Scored:
    """The metrics of a log in open-unlearning's form. Raises ValueError."""
    _refuse(options, "model")
    _refuse(options, "refusal_phrases")  # the logs hold no refusals
    if len(options.log) > 1:
        raise ValueError(f"--log is given {len(options.log)} files; a {options.benchmark} log is one")
    log = read_log(options.log[0])
    retain = None if options.retain_log is None else read_log(options.retain_log)
    if retain is not None and log.metrics == retain.metrics:
        raise ValueError(
            f"{log.name} and --retain-log {retain.name} hold the same values: compared with itself every "
            "model has a forget quality of 1 and a PrivLeak of 0; give --retain-log the log of a model "
            "trained without the forget set"
        )
    if retain is not None:
        # Refuses a log of another benchmark. Of a copy: what is null in other metrics needs no note.
        copied = Log(retain.name, retain.metrics)
        retained_metrics(benchmark.log_computations(copied, None), copied)
    scored = compute(benchmark.log_computations(log, retain), log, retain)
    scored.notes.extend(log.null.values())
    if retain is not None:
        scored.notes.extend(f"{retain.name}: {note}" for note in retain.null.values())
    return scored


def _judged_again(table: pd.DataFrame, path: Path, benchmark: Benchmark) -> str:
    """Judge the refusals of a table again, in place; a note on how many are other than before."""
    if "refused" not in table:
        raise ValueError(f"{path} has no column refused, which --refusal-phrases judges again; leave it out")
    known = table["refused"].notna()
    judged = table.loc[known, "response"].map(benchmark.refuses).astype(float)
    changed = int((judged != table.loc[known, "refused"]).sum())
    table.loc[known, "refused"] = judged
    return f"{path}: with --refusal-phrases {changed} of {len(judged)} responses are judged otherwise"


def _score_answers(options: argparse.Namespace, benchmark: Benchmark) -> Scored:
    """The metrics of the answers of one model, in tidy tables. Raises ValueError."""
    import pandas as pd

    _refuse(options, "retain_log")
    notes, tables = [], []
    for path in options.log:
        tables.append(tidy.read_responses(path))
        if benchmark.phrases is not None:
            notes.append(_judged_again(tables[-1], path, benchmark))
        # The evaluation that wrote a table says of which benchmark it is.
        marker = (path if path.is_dir() else path.parent) / "meta.json"
        meta = read_record(marker) if marker.is_file() else {}
        other = str(meta.get("benchmark", benchmark.name))
        if other != benchmark.name and other in benchmarks():
            title = benchmarks()[other].title
            notes.append(f"{path} is of {title}; --benchmark {other} scores it as such")
    table, name = pd.concat(tables, ignore_index=True), options.model
    known = list(dict.fromkeys(table["model"]))
    if name is None and len(known) > 1:
        raise ValueError(f"the answers are of {', '.join(known)}; say which with --model")
    if name is not None and name not in known:
        raise ValueError(f"--model is {name}, and the answers are of {', '.join(known) or 'none'}")
    table = table if name is None else table[table["model"] == name]
    if twice := tidy.first_repeated(table):
        raise ValueError(f"two answers to one probe ({twice}): give each file once")
    try:
        samples, _ = samples_of(table, benchmark.sets)
    except ValueError as error:
        raise ValueError(f"{options.log[0]} holds no answers of {benchmark.title}: {error}") from error
    statistics = benchmark.statistics(samples)
    if not statistics:
        raise ValueError(f"{options.log[0]} has none of the columns that {benchmark.title} is scored by")
    return Scored(dict(metrics(samples, statistics)), notes)
