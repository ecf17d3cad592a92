"""Tables of the plan, and of what was run of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.study.differences import name_of
from benchmarks.study.larger.answers import (
    Contrast,
    Runs,
    chosen_rate,
    contrast,
    counted,
    tuning_scores,
)
from benchmarks.study.larger.plan import (
    ARMS,
    COUNTED_BASES,
    PRIMARY,
    RATES,
    SECONDARY,
    SEED,
    SIZES,
    SPLIT,
    TUNED,
    TUNING_BASE,
)
from benchmarks.study.planned.choice import one_model
from benchmarks.study.planned.runs import PlannedRun
from benchmarks.study.tables import bare, code, in_markdown, made_of
from benchmarks.study.tofu import FORGET, KEPT
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

MEASURES = ("forget/recall", "retain/recall", "retain_unseen/recall", "forget/refused")
NOT_YET = "None of these runs is done yet."


def authors() -> Table:
    """Which authors are where."""
    places = (
        ("to forget", 2, FORGET, "yes", "all 20 of each", "all 20 of each"),
        ("to forget", SPLIT.forget_more, f"{KEPT}, the last", "yes", "all 20 of each", "all 20 of each"),
        ("to keep", SPLIT.retain, f"{KEPT}, the first", "no", "all 20 of each", "all 20 of each"),
        ("to keep", SPLIT.unseen, f"{KEPT}, those after them", "no", "none", "all 20 of each"),
        (
            "to keep",
            SPLIT.others,
            "retain99_train600.json",
            "no",
            f"{SPLIT.prompts_of_others} of each",
            "none",
        ),
    )
    rows = [Row(name, tuple(map(Cell, map(str, cells)))) for name, *cells in places]
    heads = ("authors", "file", "in stage 1", "prompts of stage 2", "paraphrases that are probes")
    return bare([Heading(head) for head in heads], rows, lead="place")


def sizes() -> Table:
    """The models."""
    rows = []
    for name, world in SIZES.items():
        of = world.config
        shape = f"{of.layers} x {of.hidden_size}, {of.heads} heads, {of.intermediate_size} inside"
        rates = f"{of.matrix_learning_rate:g} for matrices, {of.learning_rate:g} for all else"
        training = f"{of.epochs} epochs, batches of {of.batch_size}, peak learning rates {rates}"
        rows.append(Row(code(name), (Cell(shape), Cell(str(of.vocab_size)), Cell(training))))
    return bare(
        [Heading(head) for head in ("layers", "entries of the tokenizer", "base training")], rows, lead="size"
    )


def models() -> Table:
    """Bases and runs."""
    rows = [
        Row("to choose the rate", tuple(map(Cell, (str(TUNING_BASE), str(SEED), code(TUNED), _list(RATES))))),
        Row(
            "that count",
            (
                Cell(_list(COUNTED_BASES)),
                Cell(str(SEED)),
                Cell(_list(map(code, ARMS))),
                Cell("the chosen one"),
            ),
        ),
    ]
    heads = ("bases", "run seed", "arms", "rates, times 1e-4")
    return bare([Heading(head) for head in heads], rows, lead="models")


def arms() -> Table:
    """What each arm is."""
    return bare(
        [Heading("what it is")], [Row(code(name), (Cell(arm.meaning),)) for name, arm in ARMS.items()], "arm"
    )


def contrasts() -> Table:
    """The pairs."""
    rows = [Row(name_of(PRIMARY), (Cell("primary"),))]
    rows += [Row(name_of(pair), (Cell("secondary"),)) for pair in SECONDARY]
    return bare([Heading("which")], rows, lead="pair")


def _list(values: Iterable[object]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def status(runs: Runs) -> Table:
    """Runs that are made, by size."""
    rows = []
    for size in SIZES:
        done = [run for run in one_model(runs) if run.world == size]
        to_choose = [run for run in done if run.base == TUNING_BASE]
        whole = {run.base for run in counted(runs, size)}
        all_counted = len(COUNTED_BASES) * len(ARMS)
        cells = (
            Cell(f"{len(to_choose)} of {len(RATES)}"),
            Cell(f"{len(counted(runs, size))} of {all_counted}"),
            Cell(f"{len(whole)} of {len(COUNTED_BASES)}"),
        )
        rows.append(Row(code(size), cells))
    heads = ("runs to choose the rate", "runs that count", "on models")
    return bare([Heading(head) for head in heads], rows, lead="size")


def rates(runs: Runs) -> Table:
    """The scores that choose the rate."""
    rows = []
    for size in SIZES:
        scores, chosen = tuning_scores(runs, size), chosen_rate(runs, size)
        if scores:
            cells = [number_cell(scores[rate], ".3f") if rate in scores else DASH for rate in RATES]
            steering = next(run.settings["steering"] for run in runs if run.world == size)
            cells.append(DASH if chosen is None else Cell(f"{chosen:g} x"))
            rows.append(Row(code(size), (*cells, Cell(f"{steering['learning_rate']:g}"))))
    heads = [*(f"{rate:g} x" for rate in RATES), "chosen", "rate of stage 1"]
    return bare([Heading(head) for head in heads], rows, lead="size")


def starts(runs: Runs) -> Table:
    """What base and stage 1 of each model score, before any arm."""
    rows, seen = [], set()
    for run in one_model(runs):
        if (run.world, run.base) in seen:
            continue
        seen.add((run.world, run.base))
        base = run.settings["base_model"]
        cells = [Cell(f"`{base['fingerprint']}`"), Cell(f"`{run.model}`")]
        cells += [
            number_cell(of[f"{start}{name}"], ".3f")
            for name in MEASURES
            for of, start in ((base, ""), (run.final, "start/"))
        ]
        rows.append(Row(f"{code(run.world)}, {run.base}", tuple(cells)))
    heads = [Heading("base model"), Heading("stage-1 model")]
    heads += [Heading(f"{_short(name)}, {of}") for name in MEASURES for of in ("base", "stage 1")]
    return bare(heads, rows, lead="model")


def scores(runs: Runs) -> Table:
    """Each run: mean score, its parts and costs."""
    rows = []
    for run in one_model(runs):
        cells = [number_cell(run.score, ".3f"), *(number_cell(run.final[name], ".3f") for name in MEASURES)]
        cells += [
            number_cell(run.final["compute"] / 1e6, ".2f"),
            number_cell(run.final["cpu_seconds"] / 60, ".0f"),
        ]
        rows.append(Row(f"{code(run.world)}, {run.base}, {code(run.arm)} at {run.rate:g} x", tuple(cells)))
    heads = ("mean score", *map(_short, MEASURES), "compute, M tokens", "minutes of the processor")
    return bare([Heading(head) for head in heads], rows, lead="run")


def hours(runs: Runs) -> Table:
    """What base models and runs took, by what they are for."""
    rows = []
    for size in SIZES:
        done = [run for run in one_model(runs) if run.world == size]
        for name, bases in (("to choose the rate", (TUNING_BASE,)), ("that count", COUNTED_BASES)):
            if own := [run for run in done if run.base in bases]:
                rows.append(Row(f"{code(size)}, {name}", _hours_cells(own)))
    heads = ("base models", "hours", "runs", "hours in training steps")
    return bare([Heading(head) for head in heads], rows, lead="models")


def _hours_cells(runs: Runs) -> tuple[Cell, ...]:
    """Base models are counted once each, however many runs start from one."""
    trained = {run.base: run.settings["base_model"]["seconds"] for run in runs}
    steps = sum(run.final["cpu_seconds"] for run in runs)
    return (
        number_cell(len(trained), "d"),
        number_cell(sum(trained.values()) / 3600, ".1f"),
        number_cell(len(runs), "d"),
        number_cell(steps / 3600, ".1f"),
    )


def _short(name: str) -> str:
    return name.replace("retain_unseen", "unseen").replace("/", " ")


def answers(size: str) -> Callable[[Runs], Table]:
    """The contrasts of a size."""

    def table(runs: Runs) -> Table:
        rows = [_answer_row(contrast(runs, size, pair), name_of(pair)) for pair in (PRIMARY, *SECONDARY)]
        heads = ("models", *(f"base {base}" for base in COUNTED_BASES), "mean, 95 % interval", "answer")
        return bare([Heading(head) for head in heads], rows, lead="pair")

    return table


def _answer_row(found: Contrast, name: str) -> Row:
    """The mean stays unsaid until all models are done."""
    by_base = [number_cell(found.by_base[base], "+.3f") if found.is_whole else DASH for base in COUNTED_BASES]
    whole = Cell(found.text) if found.is_whole else DASH
    count = Cell(f"{len(found.by_base)} of {len(COUNTED_BASES)}")
    return Row(name, (count, *by_base, whole, Cell(found.answer)))


PLAN_TABLES: dict[str, Callable[[], Table]] = {
    "authors": authors,
    "sizes": sizes,
    "models": models,
    "arms": arms,
    "contrasts": contrasts,
}
RESULT_TABLES: dict[str, Callable[[Runs], Table]] = {
    "status": status,
    "rates": rates,
    "starts": starts,
    "scores": scores,
    "hours": hours,
    **{f"answers {size}": answers(size) for size in SIZES},
}


def table_named(name: str, runs: Sequence[PlannedRun]) -> str:
    """One table, in Markdown. Raises ValueError where there is none of that name."""
    return in_markdown(name, PLAN_TABLES | made_of(RESULT_TABLES, runs), NOT_YET)
