"""How often arms refuse on the forget side, greedy and sampled."""

from __future__ import annotations

from benchmarks.study.arms import MAIN, OURS
from benchmarks.study.differences import Pair, compare_arms, difference_cell, name_of
from benchmarks.study.measures import REFUSED, REFUSED_SAMPLED
from benchmarks.study.tables import Worlds, bare
from recipe.rerule.reporting.document import DASH, Heading, Row, Table

WAYS = {"greedy": REFUSED, "sampled": REFUSED_SAMPLED}
PAIRS: tuple[Pair, ...] = tuple(
    (arm, base) for arm in ("rerule", OURS) for base in MAIN[:-1] if arm != base and base != "random"
)


def refusal_table(worlds: Worlds) -> Table:
    """Differences in the share of refusals on the forget side, two columns a world."""
    rows = []
    for pair in PAIRS:
        found = [compare_arms(runs, *pair, name) for runs in worlds.values() for name in WAYS.values()]
        rows.append(Row(name_of(pair), tuple(difference_cell(each) if each else DASH for each in found)))
    return bare([Heading(way, world) for world in worlds for way in WAYS], rows)
