"""The report's sections, put together from evaluations and runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from recipe.rerule.evaluation.table import unchanged
from recipe.rerule.reporting.attacks.results import AttackResults
from recipe.rerule.reporting.attacks.section import attack_sections
from recipe.rerule.reporting.document import Part, Section, Table
from recipe.rerule.reporting.evaluations import Benchmark, Evaluation
from recipe.rerule.reporting.figures.benchmark import progress_figure, scatter_figure
from recipe.rerule.reporting.figures.training import training_figures
from recipe.rerule.reporting.figures.validation import validation_figure
from recipe.rerule.reporting.means import mean_over_targets
from recipe.rerule.reporting.naturalness import Judged, judged_table
from recipe.rerule.reporting.probes import browser_of
from recipe.rerule.reporting.result_tables import (
    all_metrics_table,
    comparisons_table,
    few_facts_note,
    results_table,
    targets_table,
)
from recipe.rerule.reporting.rollouts import answers_tables
from recipe.rerule.reporting.run_tables import (
    cost_table,
    hard_share_table,
    storage_table,
    tau_table,
    tokens_table,
)
from recipe.rerule.reporting.tokens import token_use
from recipe.rerule.runs.history import Run


def build_sections(
    benchmarks: Sequence[Benchmark],
    naturalness: Sequence[Judged],
    attacked: Sequence[AttackResults],
    runs: Sequence[Run],
    base: str | None,
    data: Path | None,
) -> list[Section]:
    """In order: each benchmark's results, naturalness, attacks, training, replay's tables, answers, probes.

    Args:
        benchmarks: evaluations.
        naturalness: scores of a judge on their responses.
        attacked: attack evaluations.
        runs: training runs; without one the sections on training are left out.
        base: model that paired tests are shown against; the first one by default.
        data: folder of the training parquet, for the tokens used; None leaves that table out.

    Raises:
        ValueError: no model `base`, or records that do not fit together.
    """
    sections = [_results_section(benchmark, runs, base) for benchmark in benchmarks]
    sections += [_naturalness_section(judged, base) for judged in naturalness]
    sections += attack_sections(attacked)
    if runs:
        # Tables first: what is wrong with the input shows before anything is drawn.
        tables = tuple(_run_tables(benchmarks, runs, data))
        figures = (*training_figures(runs), validation_figure(runs))
        sections.append(Section("Training", tuple(figure for figure in figures if figure is not None)))
        sections.append(Section("Replay, by setting and by cost", tables))
    answers = answers_tables(runs)
    if answers:
        sections.append(Section("Different answers of one step to one prompt", (_ANSWERS_NOTE, *answers)))
    return [*sections, *_browser_sections(benchmarks)]


_ANSWERS_NOTE = (
    "Answers that the policy sampled at one step to one prompt, with their rewards: what a rollout group is "
    "made of. Of each run and side the two groups with the widest spread of rewards, at the first replay "
    "update, or halfway through a run without one."
)


def _results_section(benchmark: Benchmark, runs: Sequence[Run], base: str | None) -> Section:
    mean = mean_over_targets(benchmark.targets)
    base_model = _base_of(mean, base)
    parts: list[Part | None] = [results_table(mean, base_model)]
    if len(benchmark.targets) > 1:
        parts.append(_mean_note(benchmark))
        parts.append(targets_table(benchmark.targets, base_model))
    if mean.comparisons:
        parts.append(comparisons_table(mean))
    parts.append(all_metrics_table(mean))
    parts += [scatter_figure(mean), progress_figure(mean, runs)]
    return Section(benchmark.title, tuple(part for part in parts if part is not None))


def warnings_of(benchmarks: Sequence[Benchmark], base: str | None) -> list[str]:
    """A line for each model that is as `base` in every number, and for sections of too few facts."""
    found = []
    for benchmark in benchmarks:
        mean = mean_over_targets(benchmark.targets)
        lines = [few_facts_note(mean), *unchanged(mean.results, _base_of(mean, base))]
        found += [f"{benchmark.title}: {line}" for line in lines if line]
    return found


def _naturalness_section(judged: Judged, base: str | None) -> Section:
    """The judge's scores with its own note, and how many responses have none."""
    mean = mean_over_targets(judged.targets)
    parts: list[Part] = [judged.note, results_table(mean, _base_of(mean, base))]
    if mean.comparisons:
        parts.append(comparisons_table(mean))
    parts.append(judged_table(judged))
    return Section(f"Naturalness on {judged.title}", tuple(parts))


def _base_of(evaluation: Evaluation, base: str | None) -> str:
    if base is None:
        return next(iter(evaluation.results))
    if base not in evaluation.results:
        raise ValueError(f"--base {base} is none of the models {', '.join(evaluation.results)}")
    return base


def _mean_note(benchmark: Benchmark) -> str:
    return (
        f"Numbers are means over {len(benchmark.targets)} targets, each weighing the same: "
        + ", ".join(target.target for target in benchmark.targets)
        + ". Intervals and tests take the targets as fixed and their facts as independent."
    )


def _run_tables(benchmarks: Sequence[Benchmark], runs: Sequence[Run], data: Path | None) -> Iterator[Table]:
    for benchmark in benchmarks:
        mean = mean_over_targets(benchmark.targets)
        yield from filter(None, (storage_table(runs, mean), tau_table(runs, mean)))
    yield hard_share_table(runs)
    yield cost_table(runs)
    if data is not None:
        yield tokens_table({run.name: token_use(run, data) for run in runs}, runs)


def _browser_sections(benchmarks: Sequence[Benchmark]) -> Iterator[Section]:
    for benchmark in benchmarks:
        browser = browser_of(benchmark.targets, f"probes-{benchmark.name}")
        if browser is not None:
            yield Section(f"Single probes of {benchmark.title}", (browser,))


def sources_of(
    benchmarks: Sequence[Benchmark],
    naturalness: Sequence[Judged],
    attacked: Sequence[AttackResults],
    runs: Sequence[Run],
    data: Path | None,
) -> dict[str, str]:
    """{what: where it lies} of everything the report is made from."""
    sources: dict[str, str] = {}
    for benchmark in benchmarks:
        for target in benchmark.targets:
            what = benchmark.title + (f", {target.target}" if len(benchmark.targets) > 1 else "")
            sources[f"results of {what}"] = ", ".join(map(str, target.folders))
            sources |= _evaluation_sources(what, target)
    for judged in naturalness:
        folders = ", ".join(str(target.folders[0]) for target in judged.targets)
        sources[f"naturalness of {judged.title}"] = folders
    for results in attacked:
        sources[f"attacks on {results.title}, {results.folder.name}"] = str(results.folder)
    for run in runs:
        sources[f"training records of {run.name}"] = str(run.folder)
    return sources | ({"training rows": str(data)} if data else {})


def _evaluation_sources(what: str, target: Evaluation) -> dict[str, str]:
    probes = target.meta.get("probes", {})
    found = {f"probes of {what}": str(probes["file"])} if "file" in probes else {}
    for name, model in target.models.items():
        if "path" in model:
            found[f"model {name} of {what}"] = str(model["path"])
    return found


def commands_of(
    benchmarks: Sequence[Benchmark],
    naturalness: Sequence[Judged],
    attacked: Sequence[AttackResults],
    arguments: Sequence[str],
) -> list[str]:
    """The evaluation commands as their folders say them, then the report's own."""
    evaluations = [target for benchmark in benchmarks for target in benchmark.targets]
    evaluations += [target for judged in naturalness for target in judged.targets]
    made = [target.meta.get("command") for target in evaluations]
    made += [results.meta.get("command") for results in attacked]
    own = shlex.join(["python", "-m", "recipe.rerule.report", *arguments])
    return [*dict.fromkeys(str(command) for command in made if command), own]
