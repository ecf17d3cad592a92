"""How much of an arm's gain is there during training, and how much of it is left at the end."""

from __future__ import annotations

from statistics import mean

from benchmarks.study.differences import Pair, name_of, value_pairs
from benchmarks.study.measures import OVERALL, validated_scores
from benchmarks.study.tables import Runs, Worlds, bare, of_arm
from recipe.rerule.reporting.document import DASH, Heading, Row, Table, number_cell


def gains_over_steps(runs: Runs, pair: Pair) -> dict[int, float]:
    """By validated step, the mean score of the first arm minus that of the second, mean over shared starts.

    As far as all these runs go; the validations ask a quarter of the probes.
    """
    mine, theirs = ({(run.seed, run.model): run for run in of_arm(runs, arm)} for arm in pair)
    both = [(mine[start], theirs[start]) for start in mine.keys() & theirs.keys()]
    if not both:
        return {}
    scores = [(validated_scores(run), validated_scores(base)) for run, base in both]
    steps = min((run.curves.get("validated_at", []) for pair_ in both for run in pair_), key=len)
    return {
        int(step): mean(of_run[place] - of_base[place] for of_run, of_base in scores)
        for place, step in enumerate(steps)
    }


def gain_at_end(runs: Runs, pair: Pair) -> float:
    """The same at the end of the runs, on all probes."""
    return mean(one - other for one, other in value_pairs(runs, *pair, OVERALL).values())


def head_start_table(worlds: Worlds, pairs: tuple[Pair, ...]) -> Table:
    """A row a pair and world, a column a validated step."""
    found = {(pair, world): gains_over_steps(runs, pair) for pair in pairs for world, runs in worlds.items()}
    steps = sorted({step for gains in found.values() for step in gains})
    rows = []
    for (pair, world), gains in found.items():
        if gains:
            cells = [number_cell(gains[step], "+.3f") if step in gains else DASH for step in steps]
            cells.append(number_cell(gain_at_end(worlds[world], pair), "+.3f"))
            rows.append(Row(f"{name_of(pair)}, {world}", tuple(cells)))
    return bare([*(Heading(f"step {step}") for step in steps), Heading("end, all probes")], rows)
