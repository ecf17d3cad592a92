"""The tables of docs/results.md: python -m benchmarks.study.document RESULTS DOCUMENT [--check]

Each stands between two comments, the first of which names it (one of TABLES, and the world it is of). The
command writes them anew from a result file; with --check it only says whether they are already so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.study.arms import ARMS, CHOOSING_SEEDS, COMPARED, EXPLAINING, OURS
from benchmarks.study.coverage import coverage_table
from benchmarks.study.differences import (
    Pair,
    compare_all,
    corrected,
    difference_cell,
    models_in_words,
    name_of,
    take_off_table,
    value_pairs,
    world_table,
)
from benchmarks.study.equal_compute import equal_compute_table
from benchmarks.study.evidence import verdict_table
from benchmarks.study.head_start import head_start_table
from benchmarks.study.measures import (
    ON_THE_WAY,
    OVERALL,
    REFUSED,
    REFUSED_SAMPLED,
    Measure,
    Start,
    value_of,
)
from benchmarks.study.pooled import pooled_table
from benchmarks.study.refusal import refusal_table
from benchmarks.study.report import counted, mean_cell
from benchmarks.study.results import read_results
from benchmarks.study.runs import StudyRun
from benchmarks.study.tables import Runs, Worlds, bare, code, of_arm, of_world
from benchmarks.study.take_off import both_table, share_table
from recipe.rerule.reporting import markdown
from recipe.rerule.reporting.document import DASH, Cell, Heading, Row, Table, number_cell

COMPARED_WORLDS = ("many", "slow", "slow_other", "tofu")
"""In the order of the document."""
MEASURES = {
    "mean score": OVERALL,
    "mean over training": ON_THE_WAY,
    "forget": "forget/recall",
    "retain": "retain/recall",
    "unseen": "retain_unseen/recall",
}
"""Columns, by heading."""
EARLY_HARD = "early_hard/retain"
ARM_MEASURES = {
    **MEASURES,
    "early-hard": EARLY_HARD,
    "forget refused, greedy": REFUSED,
    "forget refused, sampled": REFUSED_SAMPLED,
}
"""Of an arm in a world, by heading."""
HEAD_START = ((OURS, "rule"), (OURS, "rerule"), (OURS, "equal_updates"))
POOLED = ((OURS, "rerule"), (OURS, "equal_updates"))
THROUGH_VERL = "many-verl"
LAST_STEPS = slice(50, 60)
"""Of a curve, whose mean is shown where single runs are."""
_SPAN = re.compile(r"(<!-- table: (?P<name>[^\n]+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def main() -> None:
    """Write the tables, or check them."""
    command("python -m benchmarks.study.document", __doc__)


def command(
    program: str,
    description: str | None,
    named: Callable[[str, Runs], str] | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """The command RESULTS DOCUMENT [--check] of a document whose tables `named` makes (`with_tables`)."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path)
    parser.add_argument("document", type=Path)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a table is not as in RESULTS"
    )
    options = parser.parse_args(arguments)
    try:
        text = options.document.read_text(encoding="utf-8")
        written = with_tables(text, read_results(options.results), named)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    if written == text:
        print(f"{options.document}: as in {options.results}")
    elif options.check:
        sys.exit(f"error: {options.document} is not as in {options.results}; run this without --check")
    else:
        options.document.write_text(written, encoding="utf-8")
        print(f"{options.document}: tables written")


def with_tables(text: str, runs: Runs, named: Callable[[str, Runs], str] | None = None) -> str:
    """The document with each table made anew, by `named`; by `table_named` where that is not given.

    Raises:
        ValueError: a comment names no table.
    """
    make = named or table_named
    return _SPAN.sub(lambda span: f"{span[1]}{make(span['name'], runs)}\n{span[3]}", text)


def table_named(name: str, runs: Runs) -> str:
    """One table, in Markdown: one of TABLES, or one of WORLD_TABLES and a world.

    Raises:
        ValueError: there is none of that name.
    """
    kind, _, world = name.rpartition(" ")
    if name in TABLES:
        return markdown.markdown_table(TABLES[name](runs), markdown.plain)
    if kind in WORLD_TABLES:
        table = WORLD_TABLES[kind]([run for run in runs if run.world == world])
        return markdown.markdown_table(table, markdown.plain)
    known = ", ".join([*TABLES, *(f"{kind} WORLD" for kind in WORLD_TABLES)])
    raise ValueError(f"no table is named {name!r}; there are {known}")


def worlds_side_by_side(arm: str) -> Callable[[Runs], Table]:
    """Makes the table of what an arm gains over each control in mean score, a column a world."""
    pairs = [pair for pair in (*COMPARED, *EXPLAINING) if pair[0] == arm]

    def table(runs: Runs) -> Table:
        worlds = counted_worlds(runs)
        found = {world: compare_all(of_it)[OVERALL] for world, of_it in worlds.items()}
        names = [name_of(pair) for pair in pairs]
        rows = [row for row in world_table(OVERALL, found).rows if row.name in names]
        headings = (Heading(f"{world} ({unit_of(of_it, pairs)})") for world, of_it in worlds.items())
        return bare(tuple(headings), rows)

    return table


def counted_worlds(runs: Runs) -> Worlds:
    """The runs that count, of each world of the document."""
    return {world: counted(of_world(runs, world)) for world in COMPARED_WORLDS}


def unit_of(runs: Runs, pairs: Sequence[Pair]) -> str:
    """Over how many seeds and stage-1 models these pairs are compared."""
    return models_in_words([starts for pair in pairs if (starts := shared_starts(runs, pair))])


def shared_starts(runs: Runs, pair: Pair) -> list[Start]:
    """Seeds and stage-1 models that both arms of a pair were run on."""
    return list(value_pairs(runs, *pair, OVERALL))


def take_off(runs: Runs) -> Table:
    """Gains over equal updates by how far RULE comes."""
    (table,) = take_off_table(list(counted_worlds(runs).values()))
    headings = (
        Heading("where RULE comes less far"),
        Heading("where it comes further"),
        Heading("seeds in each half"),
    )
    return bare(headings, table.rows)


def by_model(runs: Runs) -> Table:
    """Mean score of RULE and what arms gain, for each stage-1 model of the worlds that have several."""
    blocks = dict[str, list[StudyRun]]()
    for world, fresh in counted_worlds(runs).items():
        models = sorted({run.model for run in fresh})
        for model in models if len(models) > 1 else ():
            block = [run for run in fresh if run.model == model]
            seeds = [run.seed for run in block]
            blocks[f"{world}, seeds {min(seeds)} to {max(seeds)}"] = block
    gains = world_table(OVERALL, {name: compare_all(block)[OVERALL] for name, block in blocks.items()})
    asked = [name_of(pair) for pair in COMPARED]
    rule = Row("rule", tuple(mean_cell_named(of_arm(block, "rule"), OVERALL) for block in blocks.values()))
    return bare(gains.headings, [rule, *(row for row in gains.rows if row.name in asked)])


def loop_and_recipe(runs: Runs) -> Table:
    """Sampled retain reward near the end of each run, of the loop and of the recipe, by seed."""
    arms = [arm for arm in ARMS if of_arm(of_world(runs, THROUGH_VERL), arm)]
    worlds = (THROUGH_VERL.removesuffix("-verl"), THROUGH_VERL)
    rows = [
        Row(code(arm), tuple(Cell(ends_of(counted(of_arm(of_world(runs, world), arm)))) for world in worlds))
        for arm in arms
    ]
    return bare((Heading("loop"), Heading("recipe")), rows, lead="arm")


def ends_of(runs: Runs) -> str:
    """The last steps' mean sampled retain reward of each run, in the order of their seeds."""
    ordered = sorted(runs, key=lambda run: run.seed)
    return " ".join(f"{mean(run.curves['reward/retain'][LAST_STEPS]):.2f}" for run in ordered)


def arms(runs: Runs) -> Table:
    """Means of each arm over the seeds that count, in the order of ARMS."""
    fresh = counted(runs)
    headings = (*map(Heading, ("seeds", "stage-1 models", "M tokens")), *map(Heading, ARM_MEASURES))
    found = [(arm, own) for arm in ARMS if (own := of_arm(fresh, arm))]
    rows = [
        Row(code(arm), (*origin_cells(own), *mean_cells(own, ARM_MEASURES.values()))) for arm, own in found
    ]
    return bare(headings, rows, lead="arm")


def origin_cells(runs: Runs) -> tuple[Cell, ...]:
    """How many seeds and stage-1 models the runs are of, and what they cost, mean over the seeds."""
    compute = plain(mean_cell(runs, Measure("compute", Heading("")))).value
    counts = (len(runs), len({run.model for run in runs}))
    return (*(number_cell(count, "d") for count in counts), number_cell(compute, ".2f"))


def ideas(runs: Runs) -> Table:
    """Means of each arm over the seeds for choosing, the best first."""
    tried = [run for run in runs if run.seed >= CHOOSING_SEEDS]
    found = [(arm, of_arm(tried, arm)) for arm in ARMS if of_arm(tried, arm)]
    found.sort(key=lambda each: -mean(value_of(run, OVERALL) or 0.0 for run in each[1]))
    headings = (Heading(""), Heading("seeds"), *map(Heading, MEASURES), Heading("early-hard"))
    measured = (*MEASURES.values(), EARLY_HARD)
    rows = [
        Row(code(arm), (Cell(ARMS[arm].meaning), number_cell(len(own), "d"), *mean_cells(own, measured)))
        for arm, own in found
    ]
    return bare(headings, rows, lead="arm")


def differences(runs: Runs) -> Table:
    """Each pair that a question is about, by every measure; p-values of mean score, over all the pairs."""
    fresh = counted(runs)
    found = compare_all(fresh)
    headings = list(map(Heading, ("seeds", "stage-1 models", *MEASURES)))
    headings.insert(3, Heading("p, Holm"))
    rows = []
    for pair, p_value in corrected(found[OVERALL]).items():
        starts = shared_starts(fresh, pair)
        counts = (len(starts), len({model for _, model in starts}))
        cells = [number_cell(count, "d") for count in counts]
        cells += [difference_cell(found[measure][pair]) for measure in MEASURES.values()]
        cells.insert(3, number_cell(p_value, ".3f"))
        rows.append(Row(name_of(pair), tuple(cells)))
    return bare(tuple(headings), rows)


def of_worlds(table: Callable[[Worlds], Table]) -> Callable[[Runs], Table]:
    """A table that takes the runs that count by world, made from all runs."""
    return lambda runs: table(counted_worlds(runs))


TABLES: dict[str, Callable[[Runs], Table]] = {
    "gains of rerule": worlds_side_by_side("rerule"),
    f"gains of {OURS}": worlds_side_by_side(OURS),
    "take-off": take_off,
    "models": by_model,
    "loop and recipe": loop_and_recipe,
    "verdicts": of_worlds(verdict_table),
    "equal compute": of_worlds(lambda worlds: equal_compute_table(worlds, *EXPLAINING[0])),
    "head start": of_worlds(lambda worlds: head_start_table(worlds, HEAD_START)),
    "pooled": of_worlds(lambda worlds: pooled_table(worlds, POOLED)),
    "runs that take off": of_worlds(share_table),
    "coverage": lambda runs: coverage_table(counted(runs)),
    "refusals": of_worlds(refusal_table),
}
WORLD_TABLES: dict[str, Callable[[Runs], Table]] = {
    "arms": arms,
    "ideas": ideas,
    "differences": differences,
    "both take off": lambda runs: both_table(counted(runs)),
}


def mean_cells(runs: Runs, measures: Iterable[str]) -> tuple[Cell, ...]:
    """Means of measures; the first with its standard deviation."""
    first, *others = (mean_cell_named(runs, name) for name in measures)
    return (first, *map(plain, others))


def mean_cell_named(runs: Runs, name: str) -> Cell:
    """Mean and standard deviation of a measure, three decimals."""
    return mean_cell(runs, Measure(name, Heading(name)))


def plain(cell: Cell) -> Cell:
    """The mean without its standard deviation."""
    return DASH if cell.value is None else number_cell(cell.value, ".3f")


if __name__ == "__main__":
    main()
