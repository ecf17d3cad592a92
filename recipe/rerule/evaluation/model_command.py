"""`evaluate model`: ask models a benchmark's questions, score the answers, write the evaluation folder.

Answers are kept beside the folder as they come, so that an evaluation that was stopped asks only what is
missing.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recipe.rerule import io
from recipe.rerule.evaluation.engine.answers import check_store, discard
from recipe.rerule.evaluation.engine.decoding import Decoding, add_decoding_arguments, decoding_of
from recipe.rerule.evaluation.engine.models import (
    Model,
    check_models,
    chosen_by_probes,
    path_of,
    resolve_models,
)
from recipe.rerule.evaluation.engine.prefixes import files_of, with_prefixes
from recipe.rerule.evaluation.engine.requests import Answers
from recipe.rerule.evaluation.engine.run import run
from recipe.rerule.evaluation.engine.template import add_template_argument, warnings, with_template
from recipe.rerule.evaluation.evaluator import Evaluator, Record
from recipe.rerule.evaluation.options import add_benchmark_arguments, given_paths, refuse_foreign
from recipe.rerule.evaluation.output import EVALUATION, json_text, write_folder
from recipe.rerule.evaluation.probes import (
    Probe,
    count_by_section,
    facts_by_section,
    file_sha256,
    read_probes,
)
from recipe.rerule.evaluation.registry import Benchmark, benchmark_of, benchmarks
from recipe.rerule.evaluation.statistics.comparison import compare_all
from recipe.rerule.evaluation.statistics.facts import UNIT, Facts, facts_of, with_facts
from recipe.rerule.evaluation.statistics.few import few_facts_warning, with_enough_facts
from recipe.rerule.evaluation.statistics.intervals import intervals
from recipe.rerule.evaluation.statistics.samples import Metrics, Samples, Statistic, metrics
from recipe.rerule.evaluation.table import format_table, unchanged
from recipe.rerule.evaluation.versions import versions
from recipe.rerule.io import check_apart, check_writable, existing, json_lines
from recipe.rerule.platform import PLATFORMS, select
from recipe.rerule.process import Progress, positive

MOST_COMPARED = 6
"""Models up to which every two are tested against each other by default; more take minutes."""
_DESCRIPTION = """\
Ask models a benchmark's probes and score their answers. Writes a folder with the metrics, their intervals,
paired tests and every answer, and prints a table. Needs vLLM."""
_EXAMPLE = """\
examples:
  python -m recipe.rerule.evaluate model --platform cpu --probes outputs/quickstart/world/probes.parquet \\
      --model base=outputs/quickstart/world/model --model rerule=outputs/quickstart/rerule --out outputs/world
      the base model and a stage-2 run, on a machine without an accelerator
  python -m recipe.rerule.evaluate model --platform cpu --probes outputs/quickstart/world/probes.parquet \\
      --model base=outputs/quickstart/world/model --model icu=outputs/quickstart/world/model --prefix icu \\
      --out outputs/in_context
      in-context unlearning: the same weights, told to act as if they had forgotten
"""


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate model` was asked to do, checked."""

    benchmark: Benchmark
    evaluator: Evaluator
    references: dict[str, Metrics]
    models: list[Model]
    probes_file: Path
    probes: list[Probe]
    decoding: Decoding
    out: Path
    overwrite: bool
    most_compared: int

    @property
    def kept_answers(self) -> Path:
        """Where answers are kept until the folder is written."""
        return kept_answers_of(self.out)


@dataclass(frozen=True)
class Row:
    """A model or a constant baseline: its scored answers, to the probes and to whole texts."""

    records: list[Record]
    texts: list[Record]
    samples: Samples
    statistics: Mapping[str, Statistic]
    facts: Facts | None
    metrics: Metrics

    @property
    def tested(self) -> dict[str, Statistic]:
        """The statistics that have facts enough for an interval and a test."""
        return with_enough_facts(self.statistics, self.samples, self.facts)


def add_model_parser(commands: Any) -> None:
    """Adds `model` to the subcommands of `evaluate`."""
    summary = "ask models the probes and score their answers"
    examples = _EXAMPLE + "".join(benchmark.model_example for benchmark in benchmarks().values())
    parser = commands.add_parser("model", help=summary, description=_DESCRIPTION, epilog=examples)
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME=PATH",
        help="a Hugging Face folder or name, a stage-2 run folder (its best checkpoint by validation, or its "
        "last one if it kept no best), RUN@best, RUN@last, one of its global_step_N, or RUN@all (each of its "
        "checkpoints); repeat the option for more models",
    )
    parser.add_argument(
        "--prefix",
        action="append",
        default=[],
        metavar="NAME[=FILE]",
        help="in-context unlearning: put the text of FILE before every question of model NAME, with what "
        "is to be forgotten in the place of {target}; without FILE, the project's own text; repeat the "
        "option for more models",
    )
    add_template_argument(parser)
    parser.add_argument(
        "--probes",
        type=Path,
        required=True,
        metavar="FILE",
        help="probes.parquet, made by python -m data_prep",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier evaluation in --out")
    parser.add_argument(
        "--platform", choices=PLATFORMS, default="gpu", help="where vLLM runs (default: %(default)s)"
    )
    parser.add_argument(
        "--most-compared",
        type=positive,
        default=MOST_COMPARED,
        metavar="N",
        help="test every two models against each other if there are at most N (default: %(default)s); the "
        "time of the tests grows with the square of the number of models",
    )
    add_decoding_arguments(parser)
    add_benchmark_arguments(parser, benchmarks())
    parser.set_defaults(run=run_model)


def run_model(options: argparse.Namespace) -> int:
    """Exit code 0. Raises ValueError where the input is wrong, EngineError where vLLM fails."""
    evaluate_models(checked(options))
    return 0


def checked(options: argparse.Namespace) -> Evaluation:
    """The evaluation asked for. Raises ValueError on anything wrong with it, before vLLM starts."""
    _check_out(options)
    decoding = decoding_of(options)
    probes = read_probes(options.probes)
    benchmark = benchmarks()[options.benchmark or benchmark_of(probes)]
    refuse_foreign(options, benchmark.name, benchmarks())
    evaluator = benchmark.evaluator(options)
    targets = [probe.subject for probe in probes if probe.section == "forget"]
    models = with_prefixes(resolve_models(options.model), options.prefix, targets)
    models = with_template(models, options.template)
    check_models(models)
    select(options.platform)
    references = evaluator.references()
    _check_models(options.out, options.model, models)
    if not all(probe.raw for probe in probes):
        for line in warnings(models):
            io.warn(line)
    for line in chosen_by_probes(models, [str(probe.messages) for probe in probes]):
        io.warn(line)
    return Evaluation(
        benchmark,
        evaluator,
        references,
        models,
        options.probes,
        probes,
        decoding,
        options.out,
        options.overwrite,
        options.most_compared,
    )


def kept_answers_of(out: Path) -> Path:
    """Where the answers of an evaluation are kept until its folder is written."""
    return out.with_name(f"{out.name}.partial")


def _check_out(options: argparse.Namespace) -> None:
    """Refuse an --out that is not ours to replace, or is not apart from the inputs. Raises ValueError."""
    inputs = {"--probes": options.probes} | given_paths(options, benchmarks())
    check_apart(options.out, *existing(*inputs.items(), *files_of(options.prefix)))
    check_writable(options.out, options.overwrite, EVALUATION)
    check_store(kept_answers_of(options.out))


def _check_models(out: Path, given: Sequence[str], models: Sequence[Model]) -> None:
    """Refuse an --out that holds a model or lies in one; in a run's folder it may lie. Raises ValueError."""
    runs = existing(*(("--model", path_of(one.partition("=")[2])) for one in given))
    check_apart(out, *(("--model", model.path) for model in models), runs=runs)


def evaluate_models(evaluation: Evaluation) -> None:
    """Ask, score, write the folder, print the table. Raises ValueError and EngineError."""
    benchmark, evaluator = evaluation.benchmark, evaluation.evaluator
    requests = [*evaluator.requests(evaluation.probes), *evaluator.texts.requests()]
    asked = run(evaluation.models, requests, evaluation.decoding, evaluation.kept_answers)
    with Progress("evaluate: scoring the answers"):
        rows = {model.name: _row(evaluation, asked[model.name], model) for model in evaluation.models}
        anchors = _anchors(evaluation)
    results = evaluation.references | _metrics(rows)
    with Progress("evaluate: intervals and paired tests"):
        files = {"results.json": json_text(results)} | _files(evaluation, rows, anchors)
    write_folder(evaluation.out, EVALUATION, _meta(evaluation, rows), files, evaluation.overwrite)
    discard(evaluation.kept_answers)
    print(benchmark.title)
    print(format_table(results, _metrics(anchors), evaluator.convention, benchmark.name))
    print(f"written to {evaluation.out}")
    _warn(benchmark, rows)


def _warn(benchmark: Benchmark, rows: Mapping[str, Row]) -> None:
    """Warn of numbers that show nothing: of too few probes, or the first model's own."""
    first = next(iter(rows.values()))
    shown = [column.metric for column in benchmark.columns]
    few = few_facts_warning(first.statistics, first.samples, shown, first.facts)
    for text in [few, *unchanged(_metrics(rows), next(iter(rows)))]:
        if text is not None:
            io.warn(text)


def _row(evaluation: Evaluation, answers: Answers, model: Model) -> Row:
    row = _probe_row(evaluation, answers, model)
    texts = evaluation.evaluator.texts
    return replace(row, texts=texts.records(answers), metrics=row.metrics | texts.metrics(answers))


def _probe_row(evaluation: Evaluation, answers: Answers, model: Model) -> Row:
    evaluator = evaluation.evaluator
    fact = evaluation.benchmark.fact
    records = with_facts(evaluator.records(evaluation.probes, answers, model.path), fact)
    facts = None if evaluator.sets is None else facts_of(records, evaluator.sets, fact)
    samples = evaluator.samples(records)
    statistics = evaluator.statistics(samples)
    found = metrics(samples, statistics) | evaluator.extra_metrics(samples)
    return Row(records, [], samples, statistics, facts, found)


def _anchors(evaluation: Evaluation) -> dict[str, Row]:
    """Constant answers; the tokenizer is the first model's."""
    answers_of = partial(evaluation.evaluator.anchor_answers, evaluation.probes)
    model = evaluation.models[0]
    constant = evaluation.benchmark.constant_baselines
    return {name: _probe_row(evaluation, answers_of(text), model) for name, text in constant.items()}


def _metrics(rows: Mapping[str, Row]) -> dict[str, Metrics]:
    return {name: row.metrics for name, row in rows.items()}


def _files(evaluation: Evaluation, rows: Mapping[str, Row], anchors: Mapping[str, Row]) -> dict[str, str]:
    """The evaluation folder but for results.json and meta.json, as {file: text}."""
    all_rows = {**rows, **anchors}
    files = {
        "anchors.json": json_text(_metrics(anchors)),
        "intervals.json": json_text(
            {name: intervals(row.samples, row.tested, facts=row.facts) for name, row in all_rows.items()}
        ),
        "comparisons.json": json_text(_comparisons(evaluation, rows)),
        "responses.jsonl": json_lines(
            [{"model": name, **record} for name, row in rows.items() for record in row.records]
        ),
    }
    texts = [{"model": name, **record} for name, row in rows.items() for record in row.texts]
    return files | ({"texts.jsonl": json_lines(texts)} if texts else {}) | _logs(evaluation.evaluator, rows)


def _comparisons(evaluation: Evaluation, rows: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Paired tests of every two models, on the table's metrics: one more is one more to correct for."""
    if not 2 <= len(rows) <= evaluation.most_compared:
        return []
    shown = {column.metric for column in evaluation.benchmark.columns}
    common = set.intersection(*(set(row.statistics) for row in rows.values())) & shown
    first = next(iter(rows.values()))
    statistics = {name: one for name, one in first.tested.items() if name in common}
    return compare_all({name: row.samples for name, row in rows.items()}, statistics, facts=first.facts)


def _logs(evaluator: Evaluator, rows: Mapping[str, Row]) -> dict[str, str]:
    """open-unlearning's log of every model, for the benchmarks that have one."""
    files = {}
    for name, row in rows.items():
        log = evaluator.log(row.records, row.texts)
        if log is not None:
            file, text = log
            files[f"logs/{quote(name, safe=' @')}/{file}"] = text
    return files


def _meta(evaluation: Evaluation, rows: Mapping[str, Row]) -> dict[str, Any]:
    """How the numbers came about: enough to make them again."""
    decoding = evaluation.decoding
    first = next(iter(rows.values()))
    return {
        "benchmark": evaluation.benchmark.name,
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
        "models": {
            model.name: {"path": str(model.path), "global_step": model.step}
            | ({"prefix": model.prefix} if model.prefix else {})
            | ({"template": dict(model.template)} if model.template else {})
            for model in evaluation.models
        },
        "probes": {
            "file": str(evaluation.probes_file),
            "sha256": file_sha256(evaluation.probes_file),
            "rows": count_by_section(evaluation.probes),
            "facts": facts_by_section(first.records),
        },
        "unit": UNIT,
        "rouge_l_convention": evaluation.evaluator.convention,
        "benchmark_settings": dict(evaluation.evaluator.settings),
        "decoding": {
            "engine": "vLLM",
            "platform": decoding.platform,
            "dtype": decoding.dtype,
            "tensor_parallel_size": decoding.tensor_parallel_size,
            "temperature": 0,
        },
        "anchors": dict(evaluation.benchmark.constant_baselines),
        "versions": versions(),
    }
