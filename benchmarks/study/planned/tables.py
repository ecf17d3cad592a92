"""Tables of what was run of the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from benchmarks.study.planned import ends
from benchmarks.study.planned.answers import question_1, question_2
from benchmarks.study.planned.choice import (
    CONFIRMED_IN,
    chosen_rate,
    counted,
    gains_over_rule,
    scores_by_rate,
    tuning,
)
from benchmarks.study.planned.plan import (
    CONTROLS,
    COUNTED,
    COUNTED_BASES,
    EXTRAS,
    IDEAS,
    PLANNED,
    RATES,
    RUNS_THAT_COUNT,
    RUNS_TO_CHOOSE,
    TUNING_BASES,
    WORLDS,
)
from benchmarks.study.planned.runs import PlannedRun
from benchmarks.study.planned.shares import mean_share
from benchmarks.study.tables import bare, code
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

Runs = Sequence[PlannedRun]
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""Of what RULE's run has spent, at which curves are read."""


def status(runs: Runs) -> Table:
    """Runs made, by world: on how many models."""
    rows = []
    for world in WORLDS:
        cells = []
        to_choose, to_count = (tuning(runs), RUNS_TO_CHOOSE[world]), (counted(runs), RUNS_THAT_COUNT)
        for (own, planned), bases in ((to_choose, TUNING_BASES), (to_count, COUNTED_BASES)):
            of_world = [run for run in own if run.world == world]
            models = len({run.base for run in of_world})
            cells += [Cell(f"{len(of_world)} of {planned}"), Cell(f"{models} of {len(bases)}")]
        rows.append(Row(code(world), tuple(cells)))
    headings = ("runs to choose", "on models", "runs that count", "on models")
    return bare([Heading(heading) for heading in headings], rows, lead="world")


def rates(runs: Runs) -> Table:
    """Scores on the tuning models by rate, and the chosen rate, of every arm that was tried at rates."""
    rows = []
    for world in WORLDS:
        for arm in COUNTED:
            found = scores_by_rate(runs, world, arm)
            if found:
                chosen = chosen_rate(runs, world, arm)
                cells = [Cell(_numbers(found.get(rate, []))) for rate in RATES]
                rows.append(Row(f"{code(arm)}, {world}", (*cells, _rate_cell(chosen))))
    return bare([*(Heading(f"{rate:g} x") for rate in RATES), Heading("chosen")], rows, lead="arm")


def ideas(runs: Runs) -> Table:
    """Each idea and control at RULE's rate and, where it was run, at others."""
    rows = []
    for arm in (*IDEAS, *CONTROLS):
        for rate in RATES:
            if len(gains := gains_over_rule(runs, CONFIRMED_IN, arm, rate)) > 0:
                rows.append((_idea_row(runs, arm, rate, gains), mean(gains.values())))
    ordered = [row for row, _ in sorted(rows, key=lambda each: -each[1])]
    headings = (
        *("what it is", "rate", "mean score", "minus RULE", "reaches RULE"),
        *("generated, share of RULE's", "compute, share", "seconds, share"),
    )
    return bare([Heading(heading) for heading in headings], ordered, lead="idea")


def _idea_row(runs: Runs, arm: str, rate: float, gains: dict[int, float]) -> Row:
    own = _of(runs, arm, rate)
    of_rule = {run.base: run for run in _rule(runs)}
    shares = [
        mean_share([(run, of_rule[run.base]) for run in own if run.base in of_rule], cost)
        for cost in ("generated", "compute", "cpu_seconds")
    ]
    reached = sum(gain >= 0 for gain in gains.values())
    cells = (
        Cell(PLANNED[arm].meaning),
        Cell(f"{rate:g} x"),
        Cell(_numbers([run.score for run in own])),
        Cell(" ".join(f"{gain:+.3f}" for gain in gains.values())),
        Cell(f"{reached} of {len(gains)}"),
        *(number_cell(share, ".2f") for share in shares),
    )
    return Row(code(arm), cells)


def curves(cost: str) -> Callable[[Runs], Table]:
    """Mean score over the tuning models at shares of what RULE's run has spent of `cost`."""

    def table(runs: Runs) -> Table:
        of_rule = {run.base: run for run in _rule(runs)}
        chosen = chosen_rate(runs, CONFIRMED_IN, "rule")
        rows = []
        for arm in ("rule", *IDEAS, *CONTROLS):
            own = _of(runs, arm, chosen or 0.0)
            if pairs := [(run, of_rule[run.base]) for run in own if run.base in of_rule]:
                rows.append(Row(code(arm), ends.curve_cells(pairs, cost, SHARES)))
        return bare([Heading(f"{part:g}") for part in SHARES], rows, lead="arm")

    return table


def extras(runs: Runs) -> Table:
    """The other ways to spend compute, against RULE to equal compute at the same rate."""
    rows = []
    for world in WORLDS:
        rate = chosen_rate(runs, world, "equal_compute")
        base = {run.base: run.score for run in _of(runs, "equal_compute", rate or 0.0, world)}
        for arm in EXTRAS:
            own = [run for run in _of(runs, arm, rate or 0.0, world) if run.base in base]
            if own:
                gains = " ".join(f"{run.score - base[run.base]:+.3f}" for run in own)
                cells = (Cell(PLANNED[arm].meaning), Cell(_numbers([run.score for run in own])), Cell(gains))
                rows.append(Row(f"{code(arm)}, {world}", cells))
    headings = ("what it is", "mean score", "minus equal_compute")
    return bare([Heading(heading) for heading in headings], rows, lead="arm")


def _of(runs: Runs, arm: str, rate: float, world: str = CONFIRMED_IN) -> list[PlannedRun]:
    found = [run for run in tuning(runs) if (run.world, run.arm, run.rate) == (world, arm, rate)]
    return sorted(found, key=lambda run: run.base)


def _rule(runs: Runs) -> list[PlannedRun]:
    return _of(runs, "rule", chosen_rate(runs, CONFIRMED_IN, "rule") or 0.0)


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values) or DASH.text


def _rate_cell(rate: float | None) -> Cell:
    return DASH if rate is None else Cell(f"{rate:g} x" + (", the edge" if rate == max(RATES) else ""))


RESULT_TABLES: dict[str, Callable[[Runs], Table]] = {
    "status": status,
    "rates": rates,
    "tried ideas": ideas,
    "curves by generated": curves("generated"),
    "curves by seconds": curves("cpu_seconds"),
    "tried extras": extras,
    "question 1": question_1,
    "question 2": question_2,
    **ends.RESULT_TABLES,
}
