"""Tables of the differences between arms, of one world and of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.study.arms import COMPARED, EXPLAINING, OURS
from benchmarks.study.comparison import FEWEST_FOR_INTERVAL, Paired, paired
from benchmarks.study.measures import ON_THE_WAY, OVERALL, PRIMARY, Start, seed_values
from benchmarks.study.runs import StudyRun
from recipe.rerule.evaluation.statistics.comparison import holm
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

TAKE_OFF, TAKE_OFF_BASE = ("rerule", "random", OURS), "equal_updates"
Pair = tuple[str, str]
Found = Mapping[str, Mapping[Pair, Paired]]
"""By primary measure and pair of arms, where both have been run on two seeds at least."""


def compare_all(runs: Sequence[StudyRun]) -> Found:
    """Every pair of COMPARED and EXPLAINING by every primary measure."""
    pairs = (*COMPARED, *EXPLAINING)
    every = {
        measure: {pair: found for pair in pairs if (found := compare_arms(runs, *pair, measure))}
        for measure in PRIMARY
    }
    return {measure: found for measure, found in every.items() if found}


def compare_arms(runs: Sequence[StudyRun], arm: str, base: str, measure: str) -> Paired | None:
    """Over the starts (seed and stage-1 model) that both have; None with fewer than two."""
    pairs = value_pairs(runs, arm, base, measure)
    return paired(*zip(*pairs.values(), strict=True)) if len(pairs) > 1 else None


def value_pairs(
    runs: Sequence[StudyRun], arm: str, base: str, measure: str
) -> dict[Start, tuple[float, float]]:
    """A measure of both arms by the starts that both have, in order."""
    mine, theirs = (seed_values(runs, name, measure) for name in (arm, base))
    return {start: (mine[start], theirs[start]) for start in sorted(mine.keys() & theirs.keys())}


def models_in_words(starts: Sequence[Sequence[Start]]) -> str:
    """How many seeds and stage-1 models these comparisons are over, from the fewest to the most."""
    seeds = [len(each) for each in starts]
    models = [len({model for _, model in each}) for each in starts]
    plural = "" if max(models) == 1 else "s"
    return f"{span(seeds)} seeds, {span(models)} stage-1 model{plural}"


def span(counts: Sequence[int]) -> str:
    """Such as 8, or 7 to 9."""
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def world_tables(found: Mapping[str, Found]) -> Iterator[Table]:
    """A table a primary measure."""
    for measure in PRIMARY:
        by_world = {world: of_world[measure] for world, of_world in found.items() if measure in of_world}
        if by_world:
            yield world_table(measure, by_world)


def world_table(measure: str, by_world: Mapping[str, Mapping[Pair, Paired]]) -> Table:
    """The difference of each pair of arms in each world."""
    cells = {
        pair: tuple(difference_cell(pairs[pair]) if pair in pairs else DASH for pairs in by_world.values())
        for pair in (*COMPARED, *EXPLAINING)
    }
    rows = [Row(name_of(pair), row) for pair, row in cells.items()]
    return Table(
        f"compared_worlds_{measure.replace('/', '_')}",
        f"Differences in {in_words(measure)}, by world",
        "arms",
        tuple(Heading(world) for world in by_world),
        tuple(rows),
        "First arm minus second on the same seeds, with its 95 % interval; the tables of each world have "
        "p-values, effect sizes and the number of seeds.",
    )


def take_off_table(worlds: Sequence[Sequence[StudyRun]]) -> Iterator[Table]:
    """What replay gains over equal updates where RULE comes less far, and where further."""
    rows = []
    for arm in TAKE_OFF:
        lower, upper = zip(*(by_take_off(runs, arm) for runs in worlds), strict=True)
        halves = [[pair for pairs in half for pair in pairs] for half in (lower, upper)]
        if len(halves[0]) > 1:
            found = [paired(*zip(*pairs, strict=True)) for pairs in halves]
            seeds = number_cell(found[0].seeds, "d")
            rows.append(Row(name_of((arm, TAKE_OFF_BASE)), (*map(difference_cell, found), seeds)))
    if rows:
        yield Table(
            "take_off",
            "Gain in mean score, by how far RULE comes",
            "arms",
            (Heading("less far"), Heading("further"), Heading("seeds, each")),
            tuple(rows),
            "Over all worlds. The seeds of each are halved by the mean score of RULE's run on the same "
            "seed; the middle one of an odd number is left out.",
        )


def by_take_off(runs: Sequence[StudyRun], arm: str) -> tuple[list[tuple[float, float]], ...]:
    """Mean score of an arm and of the base where RULE's is in its lower, and in its upper half."""
    rule, mine, base = (seed_values(runs, name, OVERALL) for name in ("rule", arm, TAKE_OFF_BASE))
    starts = sorted(rule.keys() & mine.keys() & base.keys(), key=lambda start: (rule[start], start))
    half = len(starts) // 2
    return tuple([(mine[s], base[s]) for s in part] for part in (starts[:half], starts[len(starts) - half :]))


def comparison_table(world: str, measure: str, pairs: Mapping[Pair, Paired]) -> Table:
    """The pairs of arms by one measure, a row a pair; Holm over those that the questions are about."""
    rows = [comparison_row(pair, pairs[pair], p_value) for pair, p_value in corrected(pairs).items()]
    return Table(
        f"compared_{world}_{measure.replace('/', '_')}",
        f"Differences in {in_words(measure)}",
        "arms",
        (Heading("difference"), Heading("effect, d"), Heading("p"), Heading("p, Holm"), Heading("seeds")),
        tuple(rows),
        "First arm minus second on the same seeds, with its 95 % bootstrap interval over seeds (percentiles "
        "moved out for few seeds; none below five); d: the mean difference in standard deviations of the "
        "differences; p: exact permutation test; Holm: corrected for all pairs of this table.",
    )


def corrected(pairs: Mapping[Pair, Paired]) -> dict[Pair, float]:
    """The p-values of the pairs that the questions are about, by Holm."""
    asked = [pair for pair in pairs if pair in COMPARED]
    return dict(zip(asked, holm([pairs[pair].p_value for pair in asked]), strict=True))


def comparison_row(pair: Pair, found: Paired, p_value: float) -> Row:
    """One pair, with its corrected p-value."""
    effect = DASH if np.isnan(found.effect) else number_cell(found.effect, "+.2f")
    rest = (number_cell(found.p_value, ".4f"), number_cell(p_value, ".4f"), number_cell(found.seeds, "d"))
    return Row(name_of(pair), (difference_cell(found), effect, *rest))


def name_of(pair: Pair) -> str:
    """As the tables name a pair of arms."""
    return f"{pair[0]} − {pair[1]}"


def difference_cell(found: Paired) -> Cell:
    """The mean difference, with its interval where there are seeds enough."""
    if found.seeds < FEWEST_FOR_INTERVAL:
        return number_cell(found.difference, "+.3f")
    interval = f"{found.low:+.3f} to {found.high:+.3f}"
    return Cell(f"{found.difference:+.3f}", found.difference, interval, (found.low, found.high))


def in_words(measure: str) -> str:
    """A measure's name for a title."""
    named = {OVERALL: "mean score", ON_THE_WAY: "mean over training"}
    return named.get(measure, measure.replace("_", " ").replace("/", " "))
