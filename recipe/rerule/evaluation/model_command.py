"""`evaluate model`: ask models a benchmark's questions, score the answers, write the evaluation folder.

Answers are kept beside the folder as they come, so that an evaluation that was stopped asks only what is
missing.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from data_prep.contract import SECTIONS
from recipe.rerule import io
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.engine.answers import check_store, discard
from recipe.rerule.evaluation.engine.encoding import warnings
from recipe.rerule.evaluation.engine.models import (
    Model,
    add_template_argument,
    check_models,
    chosen_by_probes,
    files_of,
    path_of,
    resolve_models,
    with_prefixes,
    with_template,
)
from recipe.rerule.evaluation.engine.requests import Answers
from recipe.rerule.evaluation.engine.run import Decoding, add_decoding_arguments, decoding_of, run
from recipe.rerule.evaluation.output import EVALUATION, json_text, versions, write_folder
from recipe.rerule.evaluation.probes import Probe, file_sha256, read_probes
from recipe.rerule.evaluation.registry import (
    Benchmark,
    Row,
    add_benchmark_arguments,
    benchmark_of,
    benchmarks,
    given_paths,
    refuse_foreign,
)
from recipe.rerule.evaluation.summary import (
    UNIT,
    Facts,
    Metrics,
    Samples,
    Statistic,
    compare_all,
    few_facts_warning,
    intervals,
    metrics,
    samples_of,
    with_enough_facts,
)
from recipe.rerule.evaluation.table import format_table, unchanged
from recipe.rerule.io import check_apart, check_writable, existing, json_lines
from recipe.rerule.platform import PLATFORMS, select
from recipe.rerule.process import Progress, positive

if TYPE_CHECKING:
    import pandas as pd

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
    """What `evaluate model` was asked to do, checked; `benchmark` has its options."""

    benchmark: Benchmark
    references: dict[str, Metrics]
    models: list[Model]
    probes_file: Path
    probes: list[Probe]
    phrases_file: Path | None
    decoding: Decoding
    out: Path
    overwrite: bool
    most_compared: int


@dataclass(frozen=True)
class Scored:
    """A model or a constant baseline: its rows, as they are and as a table, and the numbers that come of
    them."""

    rows: list[Row]
    texts: list[Row]
    table: pd.DataFrame
    samples: Samples
    facts: Facts
    statistics: Mapping[str, Statistic]
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
    inputs = {"--probes": options.probes, "--refusal-phrases": options.refusal_phrases}
    inputs |= given_paths(options, benchmarks())
    check_apart(options.out, *existing(*inputs.items(), *files_of(options.prefix)))
    check_writable(options.out, options.overwrite, EVALUATION)
    check_store(kept_answers_of(options.out))
    decoding = decoding_of(options)
    probes = read_probes(options.probes)
    declared = benchmarks()[options.benchmark or benchmark_of(probes)]
    refuse_foreign(options, declared.name, benchmarks())
    benchmark = declared.evaluator(options)
    targets = [probe.subject for probe in probes if probe.section == "forget"]
    models = with_prefixes(resolve_models(options.model), options.prefix, targets)
    models = with_template(models, options.template)
    check_models(models)
    select(options.platform)
    references = benchmark.references()
    # In a run's folder --out may lie.
    runs = existing(*(("--model", path_of(one.partition("=")[2])) for one in options.model))
    check_apart(options.out, *(("--model", model.path) for model in models), runs=runs)
    said = [] if all(probe.raw for probe in probes) else list(warnings(models))
    for line in [*said, *chosen_by_probes(models, [str(probe.messages) for probe in probes])]:
        io.warn(line)
    return Evaluation(
        benchmark,
        references,
        models,
        options.probes,
        probes,
        options.refusal_phrases,
        decoding,
        options.out,
        options.overwrite,
        options.most_compared,
    )


def kept_answers_of(out: Path) -> Path:
    """Where the answers of an evaluation are kept until its folder is written."""
    return out.with_name(f"{out.name}.partial")


def evaluate_models(evaluation: Evaluation) -> None:
    """Ask, score, write the folder, print the table. Raises ValueError and EngineError."""
    benchmark, kept = evaluation.benchmark, kept_answers_of(evaluation.out)
    requests = [*benchmark.requests(evaluation.probes), *benchmark.texts.requests()]
    asked = run(evaluation.models, requests, evaluation.decoding, kept)
    with Progress("evaluate: scoring the answers"):
        scored = {
            model.name: _scored(evaluation, model.name, asked[model.name], model, benchmark.texts.records)
            for model in evaluation.models
        }
        # Constant answers; the tokenizer is the first model's.
        anchors = {
            name: _scored(
                evaluation, name, benchmark.anchor_answers(evaluation.probes, text), evaluation.models[0]
            )
            for name, text in benchmark.constant_baselines.items()
        }
    results = evaluation.references | {name: one.metrics for name, one in scored.items()}
    constant = {name: one.metrics for name, one in anchors.items()}
    with Progress("evaluate: intervals and paired tests"):
        files = _files(evaluation, scored, anchors) | {
            "results.json": json_text(results),
            "anchors.json": json_text(constant),
        }
    table = _together(scored)
    write_folder(evaluation.out, EVALUATION, _meta(evaluation, scored), files, evaluation.overwrite, table)
    discard(kept)
    print(benchmark.title)
    print(format_table(results, constant, benchmark.convention, benchmark.name))
    print(f"written to {evaluation.out}")
    # Numbers that show nothing: of too few probes, or the first model's own.
    first = next(iter(scored.values()))
    shown = [column.metric for column in benchmark.columns]
    few = few_facts_warning(first.statistics, first.samples, shown, first.facts)
    own = {name: one.metrics for name, one in scored.items()}
    for text in [few, *unchanged(own, next(iter(own)))]:
        if text is not None:
            io.warn(text)


def _scored(evaluation: Evaluation, name: str, answers: Answers, model: Model, texts: Any = None) -> Scored:
    """`texts`: gives the records of whole texts, which constant answers have none of."""
    benchmark = evaluation.benchmark
    rows = tidy.with_facts(benchmark.records(evaluation.probes, answers, model.path), benchmark.fact)
    table = tidy.from_rows({"model": name, **row} for row in rows)
    samples, facts = samples_of(table, benchmark.sets)
    statistics = benchmark.statistics(samples)
    found = metrics(samples, statistics) | benchmark.extra_metrics(samples)
    if texts is None:
        return Scored(rows, [], table, samples, facts, statistics, found)
    found |= benchmark.texts.metrics(answers)
    return Scored(rows, texts(answers), table, samples, facts, statistics, found)


def _together(scored: Mapping[str, Scored]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat([one.table for one in scored.values()], ignore_index=True)


def _files(
    evaluation: Evaluation, scored: Mapping[str, Scored], anchors: Mapping[str, Scored]
) -> dict[str, str]:
    """The files that are made from the tables, as {file: text}."""
    benchmark, first = evaluation.benchmark, next(iter(scored.values()))
    compared: list[dict[str, Any]] = []
    if 2 <= len(scored) <= evaluation.most_compared:
        # On the table's metrics alone: one more is one more to correct for.
        shown = {column.metric for column in benchmark.columns}
        common = shown.intersection(*(one.statistics for one in scored.values()))
        statistics = {name: one for name, one in first.tested.items() if name in common}
        compared = compare_all(
            {name: one.samples for name, one in scored.items()}, statistics, facts=first.facts
        )
    files = {
        "intervals.json": json_text(
            {
                name: intervals(one.samples, one.tested, facts=one.facts)
                for name, one in {**scored, **anchors}.items()
            }
        ),
        "comparisons.json": json_text(compared),
    }
    texts = [{"model": name, **record} for name, one in scored.items() for record in one.texts]
    if texts:
        files["texts.jsonl"] = json_lines(texts)
    for name, one in scored.items():  # open-unlearning's log, of the benchmarks that have one
        if (log := benchmark.log(one.rows, one.texts)) is not None:
            files[f"logs/{quote(name, safe=' @')}/{log[0]}"] = log[1]
    return files


def _meta(evaluation: Evaluation, scored: Mapping[str, Scored]) -> dict[str, Any]:
    """How the numbers came about: enough to make them again."""
    decoding, benchmark = evaluation.decoding, evaluation.benchmark
    table = next(iter(scored.values())).table
    rows: dict[str, int] = {}
    facts: dict[str, int] = {}
    for section in SECTIONS:
        of_section = table[table["side"] == section]
        parts = {section: of_section} if len(of_section) else {}
        parts |= {f"{section}/{kind}": part for kind, part in of_section.groupby("kind", sort=False)}
        rows |= {name: len(part) for name, part in parts.items()}
        facts |= {name: part["fact"].nunique() for name, part in parts.items()}
    return {
        "benchmark": benchmark.name,
        "command": shlex.join(["python", "-m", "recipe.rerule.evaluate", *sys.argv[1:]]),
        "models": {
            model.name: {"path": str(model.path), "global_step": model.step}
            | ({"prefix": model.prefix} if model.prefix else {})
            | ({"template": dict(model.template)} if model.template else {})
            for model in evaluation.models
        },
        "probes": {**_told(evaluation.probes_file), "rows": rows, "facts": facts},
        "unit": UNIT,
        "rouge_l_convention": benchmark.convention,
        **({"refusal_phrases": _told(evaluation.phrases_file)} if evaluation.phrases_file else {}),
        "benchmark_settings": dict(benchmark.settings),
        "decoding": {
            "engine": "vLLM",
            "platform": decoding.platform,
            "dtype": decoding.dtype,
            "tensor_parallel_size": decoding.tensor_parallel_size,
            "temperature": 0,
        },
        "anchors": dict(benchmark.constant_baselines),
        "versions": versions(),
    }


def _told(file: Path) -> dict[str, str]:
    return {"file": str(file), "sha256": file_sha256(file)}
