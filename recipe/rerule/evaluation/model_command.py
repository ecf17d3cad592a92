"""`evaluate model`: ask models a benchmark's questions, score the answers, write the evaluation folder.

Answers are kept beside the folder as they come, so that an evaluation that was stopped asks only what is
missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from recipe.rerule import io
from recipe.rerule.evaluation import options as shared
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.engine.answers import check_kept, discard
from recipe.rerule.evaluation.engine.models import Model, with_prefixes
from recipe.rerule.evaluation.engine.requests import Answers
from recipe.rerule.evaluation.engine.run import decoding_of, run
from recipe.rerule.evaluation.logs import log_text
from recipe.rerule.evaluation.output import EVALUATION, json_text, versions, write_folder
from recipe.rerule.evaluation.probes import Probe, read_probes
from recipe.rerule.evaluation.registry import Benchmark, Row, benchmarks
from recipe.rerule.evaluation.summary import (
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
from recipe.rerule.evaluation.table import columns_of, format_table, unchanged
from recipe.rerule.io import json_lines
from recipe.rerule.platform import select
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
    shared.add_arguments(
        parser,
        "a Hugging Face folder or name, a stage-2 run folder (its best checkpoint by validation, or its "
        "last one if it kept no best), RUN@best, RUN@last, one of its global_step_N, or RUN@all (each of its "
        "checkpoints); repeat the option for more models",
    )
    parser.add_argument(
        "--prefix", action="append", default=[], metavar="NAME[=FILE]",
        help="in-context unlearning: put the text of FILE before every question of model NAME, with what "
        "is to be forgotten in the place of {target}; without FILE, the project's own text; repeat the "
        "option for more models",
    )  # fmt: skip
    parser.add_argument(
        "--most-compared", type=positive, default=MOST_COMPARED, metavar="N",
        help="test every two models against each other if there are at most N (default: %(default)s); the "
        "time of the tests grows with the square of the number of models",
    )  # fmt: skip
    parser.set_defaults(run=run_model)


def run_model(options: argparse.Namespace) -> int:
    """Check everything, then ask, score, write the folder and print the table. Exit code 0.

    Raises ValueError where the input is wrong, before vLLM starts, and EngineError where vLLM fails.
    """
    kept = options.out.with_name(f"{options.out.name}.partial")
    prefixes = [("--prefix", spec.partition("=")[2]) for spec in options.prefix if spec.partition("=")[2]]
    shared.check_folders(options, {"--probes": options.probes}, prefixes, EVALUATION)
    check_kept(kept)
    decoding = decoding_of(options)
    probes = read_probes(options.probes)
    benchmark = shared.benchmark_from(options, probes)
    targets = [probe.subject for probe in probes if probe.section == "forget"]
    models = with_prefixes(shared.models_from(options, options.model), options.prefix, targets)
    select(options.platform)
    references = benchmark.references()
    shared.warn_of_models(models, probes)
    requests = [*benchmark.requests(probes), *benchmark.texts.requests()]
    asked = run(models, requests, decoding, kept)
    with Progress("evaluate: scoring the answers"):
        scored = {one.name: _scored(benchmark, probes, one, asked[one.name], texts=True) for one in models}
        # Constant answers; the tokenizer is the first model's.
        anchors = {
            name: _scored(benchmark, probes, models[0], benchmark.anchor_answers(probes, text), texts=False)
            for name, text in benchmark.constant_baselines.items()
        }
    own = {name: one.metrics for name, one in scored.items()}
    results, constant = references | own, {name: one.metrics for name, one in anchors.items()}
    with Progress("evaluate: intervals and paired tests"):
        files = _files(benchmark, scored, anchors, options.most_compared) | {
            "results.json": json_text(results),
            "anchors.json": json_text(constant),
        }
    meta = shared.origin(options, benchmark, models, decoding)
    first = next(iter(scored.values()))
    meta["probes"] |= _counts(first.table)
    meta |= {"anchors": dict(benchmark.constant_baselines), "versions": versions()}
    import pandas as pd  # which takes two seconds

    table = pd.concat([one.table for one in scored.values()], ignore_index=True)
    write_folder(options.out, EVALUATION, meta, files, options.overwrite, table)
    discard(kept)
    print(benchmark.title)
    print(format_table(results, constant, benchmark.convention, benchmark.name))
    print(f"written to {options.out}")
    # Numbers that show nothing: of too few probes, or the first model's own.
    shown = [column.metric for column in benchmark.columns]
    few = few_facts_warning(first.statistics, first.samples, shown, first.facts)
    for text in [*few, *unchanged(own, next(iter(own)))]:
        io.warn(text)
    return 0


def _scored(benchmark: Benchmark, probes: list[Probe], model: Model, answers: Answers, texts: bool) -> Scored:
    """`texts`: whether there are answers to whole texts, which constant answers have none of."""
    rows = tidy.with_facts(benchmark.records(probes, answers, model.path), benchmark.fact)
    table = tidy.from_rows({"model": model.name, **row} for row in rows)
    samples, facts = samples_of(table, benchmark.sets)
    statistics = benchmark.statistics(samples)
    found = metrics(samples, statistics) | benchmark.extra_metrics(samples)
    records = benchmark.texts.records(answers) if texts else []
    if records:
        found |= benchmark.texts.metrics(records)
    return Scored(rows, records, table, samples, facts, statistics, found)


def _files(
    benchmark: Benchmark, scored: Mapping[str, Scored], anchors: Mapping[str, Scored], most_compared: int
) -> dict[str, str]:
    """The files that are made from the tables, as {file: text}."""
    first, compared = next(iter(scored.values())), list[dict[str, Any]]()
    if 2 <= len(scored) <= most_compared:
        # On the table's metrics alone: one more is one more to correct for.
        found = {name: one.metrics for name, one in scored.items()}
        shown = {column.metric for column in columns_of(benchmark.name, found)}
        common = shown.intersection(*(one.statistics for one in scored.values()))
        statistics = {name: one for name, one in first.tested.items() if name in common}
        samples = {name: one.samples for name, one in scored.items()}
        compared = compare_all(samples, statistics, facts=first.facts)
    ends = {
        name: intervals(one.samples, one.tested, facts=one.facts)
        for name, one in {**scored, **anchors}.items()
    }
    files = {"intervals.json": json_text(ends), "comparisons.json": json_text(compared)}
    if texts := [{"model": name, **record} for name, one in scored.items() for record in one.texts]:
        files["texts.jsonl"] = json_lines(texts)
    for name, one in scored.items():  # open-unlearning's log, of the benchmarks that have one
        if benchmark.log_file:
            log = log_text(benchmark.log_metrics(one.rows, one.texts))
            files[f"logs/{quote(name, safe=' @')}/{benchmark.log_file}"] = log
    return files


def _counts(table: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Rows and facts of one model's table by section, and by section and kind."""
    import pandas as pd

    places = (table["side"], table["side"] + "/" + table["kind"])
    counts = [table.groupby(place)["fact"].agg(rows="size", facts="nunique") for place in places]
    found: dict[str, dict[str, int]] = pd.concat(counts).to_dict()
    return found
