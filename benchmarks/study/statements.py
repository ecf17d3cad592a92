"""The sentences with numbers of docs/results.md and of the README's paragraph on the study, from the runs.

Each function gives parts of sentences as they have to stand on the page, line breaks apart. A statement that
the runs do not bear out comes with NOT_SO in front, and so stands nowhere. `claims` looks at both pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean, stdev

from benchmarks.study.arms import ARMS, COMPARED, EXPLAINING, MAIN, OURS
from benchmarks.study.claim_values import WORLDS, Results, listed, mean_of, out_of, text_of, when
from benchmarks.study.comparison import Paired, paired
from benchmarks.study.coverage import SEEDS
from benchmarks.study.differences import (
    Pair,
    by_take_off,
    compare_all,
    compare_arms,
    corrected,
    difference_cell,
    value_pairs,
)
from benchmarks.study.equal_compute import AtEqualCompute, at_equal_compute
from benchmarks.study.head_start import gains_over_steps
from benchmarks.study.measures import (
    ON_THE_WAY,
    OVERALL,
    REFUSED,
    REFUSED_SAMPLED,
    seed_values,
)
from benchmarks.study.pooled import pool
from benchmarks.study.runs import StudyRun
from benchmarks.study.tables import Runs, of_arm, of_world
from benchmarks.study.take_off import share_cell, split_by_take_off, took_off

BASES = ("rule", "rerule", "equal_updates")
FRESHEST = ("informative_newest", "informative_fresh")
NEWEST = (("informative_newest", "informative"), ("recent_signal", "signal"), ("recent", "rerule"))
"""Arms that draw the newest groups, and the same with uniform draws."""
SIGNAL = (("signal", "rerule"), ("recent_signal", "recent"), ("informative", "tau1.0"))
"""Arms that store groups with signal, and the same without this condition."""
LAST_STEPS = slice(50, 60)
PAPER, CURRENT = "rerule", "quantile_current"
FORGET, RETAIN, UNSEEN = "forget/recall", "retain/recall", "retain_unseen/recall"


def summary(r: Results) -> Iterator[str]:
    """The page's first sentences."""
    seeds = [len(of_arm(runs, arm)) for runs in r.worlds.values() for arm in MAIN]
    yield f"{min(seeds)} to {max(seeds)} seeds an arm"
    paper, own = (out_of(r.above(arm, "rule")) for arm in (PAPER, OURS))
    yield f"the paper's replay has a higher mean score than RULE in {paper} worlds"
    yield f"and the recommended replay in {own}, but"
    yield f"RULE gains {rate_gain(r).difference:+.3f} from twice the learning rate"
    yield when(
        not r.above(PAPER, "equal_updates"),
        "in no world is the paper's replay shown to be better at the end than",
    )
    stuck, count = stuck_seeds(r)
    yield when((stuck, count) == (1, 8), "One seed in eight does not take off in `many`")


def rate_gain(r: Results) -> Paired:
    """What RULE gains from the learning rate of "many" over that of "slow", by seed."""
    fast, slow = (seed_values(r.worlds[world], "rule", OVERALL) for world in ("many", "slow"))
    starts = sorted(fast.keys() & slow.keys())
    return paired([fast[start] for start in starts], [slow[start] for start in starts])


def no_advantage(r: Results) -> bool:
    """Whether replay, at the compute of the step's own groups, is above these in no world and way."""
    found = at_equal(r)
    return bool(found) and not any(each.last.low > 0 or each.during.low > 0 for each in found.values())


def at_equal(r: Results) -> dict[str, AtEqualCompute]:
    """The recommended replay against the step's own groups, at the compute of the latter."""
    every = {world: at_equal_compute(runs, OURS, CURRENT) for world, runs in r.worlds.items()}
    return {world: found for world, found in every.items() if found}


def stuck_seeds(r: Results) -> tuple[int, int]:
    """On how many seeds of "many" RULE does not take off, and of how many."""
    own = of_arm(r.worlds["many"], "rule")
    return sum(not took_off(run) for run in own), len(own)


def worlds_and_pairs(r: Results) -> Iterator[str]:
    """How the worlds are related, and what p-values can be."""
    first = {
        world: {run.seed: run.curves["reward/retain"][0] for run in of_arm(r.worlds[world], "rule")}
        for world in ("many", "slow")
    }
    same = first["many"] == first["slow"]
    yield when(same, "runs of the same seed get the same rewards at their first step")
    p_values = {
        (world, pair): p
        for world, runs in r.worlds.items()
        for pair, p in corrected(compare_all(runs)[OVERALL]).items()
    }
    low = {key for key, p in p_values.items() if p < 0.05}
    told = {("slow_other", pair) for pair in ((PAPER, "rule"), (OURS, "rule"), (OURS, "equal_compute"))}
    count = f"{len(low)} of the {len(p_values)} p-values of mean score are below 0.05"
    yield when(low == told, f"{count}, all of them in `slow_other`")
    yield f"the smallest corrected p-value is {len(COMPARED) * 2 / 2**8:.3f}"


def papers_replay(r: Results) -> Iterator[str]:
    """The paper's replay against each control."""
    told = r.above(PAPER, "rule")
    yield f"The paper's replay has a higher mean score in {listed(told)}. In `many` the interval includes 0"
    equal = r.above(PAPER, "equal_updates") + r.below(PAPER, "equal_updates")
    yield when(
        not equal, "in no world is the paper's replay shown to differ from `equal_updates` in mean score"
    )
    end, during = r.above(PAPER, "random"), r.above(PAPER, "random", ON_THE_WAY)
    yield f"Hard groups are worth more than random ones at the end in {listed(end)} alone"
    yield f"In the mean over training they are worth more in {listed(during)}"
    yield f"random storage keeps more (retain recall {r.gap(PAPER, 'random', 'tofu', RETAIN)})"
    during = r.above(PAPER, "equal_updates", ON_THE_WAY)
    yield f"**Against equal updates.** The mean over training is higher in {listed(during)}"
    kept, forgot = (r.gap(PAPER, "equal_updates", "slow", name) for name in (RETAIN, FORGET))
    yield (
        "in `slow` the paper's replay keeps more (retain recall "
        f"{kept}) and forgets less (forget recall {forgot})"
    )
    yield f"in `tofu` it keeps less (retain recall {r.gap(PAPER, 'equal_updates', 'tofu', RETAIN)})"
    told = r.above(PAPER, "equal_compute")
    yield (
        "the paper's replay is better than more steps of RULE "
        f"in {listed(told)}. In `many` and `tofu` the interval"
    )


def recommended(r: Results) -> Iterator[str]:
    """The recommended replay: mean scores and recalls."""
    means = {
        world: {arm: mean_of(own, OVERALL) for arm in ARMS if (own := of_arm(runs, arm))}
        for world, runs in r.worlds.items()
    }
    best = all(max(arms, key=lambda arm: arms[arm]) == OURS for arms in means.values())
    yield when(best, "The recommended replay has the highest mean score of all arms in every world")
    every = [r.above(OURS, base) for base in ("rule", "random", "equal_compute")]
    yield when(
        all(names == list(WORLDS) for names in every),
        "RULE, random storage and equal compute in 4 of 4 worlds",
    )
    paper, equal = r.above(OURS, PAPER), r.above(OURS, "equal_updates")
    left = [world for world in WORLDS if world not in paper]
    yield f"against the paper's replay in {out_of(paper)} (not in {listed(left)})"
    yield f"against equal updates in {out_of(equal)} ({listed(equal)})"
    costs = [r.mean("tofu", arm, "compute") for arm in (OURS, "equal_compute")]
    yield f"the recommended replay cost {costs[0]:.2f} M tokens and `equal_compute` {costs[1]:.2f} M"
    during = all(len(r.above(OURS, base, ON_THE_WAY)) == len(WORLDS) for base in MAIN[:-1])
    yield when(during, "The interval excludes 0 against each of the five controls in 4 of 4 worlds")
    kept = all({"slow_other", "tofu"} <= set(r.above(OURS, base, RETAIN)) for base in MAIN[:-1])
    yield when(
        kept,
        "the recommended replay keeps more than each of the five controls, with intervals that exclude 0",
    )
    bases = ("rule", PAPER, "equal_updates")
    gaps = [r.gap(OURS, base, "slow_other", RETAIN) for base in bases]
    yield (
        f"in retain recall is {gaps[0]} against RULE, {gaps[1]} "
        f"against the paper's replay and {gaps[2]} against"
    )
    gaps = [r.gap(OURS, base, "tofu", RETAIN) for base in bases]
    yield f"in `tofu` it is {gaps[0]}, {gaps[1]} and {gaps[2]}"


def forgetting(r: Results) -> Iterator[str]:
    """The recommended replay: forget recall, and where it hurts."""
    more = all("slow_other" in r.below(OURS, base, FORGET) for base in ("rule", PAPER, "equal_compute"))
    yield when(more, "forgets more than RULE, the paper's replay and equal compute")
    gaps = [r.gap(OURS, base, "slow_other", FORGET) for base in ("equal_updates", "random")]
    yield f"Against equal updates and random storage the interval includes 0: {gaps[0]} and {gaps[1]}"
    tofu = [r.mean("tofu", arm, FORGET) for arm in MAIN]
    stage1 = r.chosen("tofu", "stage1", FORGET)
    yield (
        f"forget recall is {min(tofu):.3f} to {max(tofu):.3f} in "
        f"every arm at the end, and {stage1:.3f} after stage 1"
    )
    yield f"has less unseen recall than RULE ({r.gap(OURS, 'rule', 'slow_other', UNSEEN)})"
    others = [arm for arm in (*MAIN[1:], CURRENT)]
    more = all(
        r.mean("slow_other", arm, FORGET) < r.mean("slow_other", "rule", FORGET)
        and r.mean("slow_other", arm, "retain_unseen/refused")
        > r.mean("slow_other", "rule", "retain_unseen/refused")
        for arm in others
    )
    yield when(more, "Every arm there forgets more than RULE and refuses more unseen people than RULE")
    least = all(r.mean("slow", arm, FORGET) > r.mean("slow", "rule", FORGET) for arm in others)
    yield when(least, "so has the lowest forget recall of all arms")
    yield f"the recommended replay minus RULE is {r.gap(OURS, 'rule', 'slow', FORGET)}"


def equal_compute(r: Results) -> Iterator[str]:
    """How much of the recommended replay is replay."""
    found = at_equal(r)
    yield when(
        no_advantage(r) and all(each.during.high < 0 for each in found.values()),
        "replay shows no advantage in either world, and in the mean over training it is behind in both",
    )
    slow, other = found["slow"], found["slow_other"]
    yield (
        f"adds {r.gap(OURS, CURRENT, 'slow')} in `slow` and "
        f"{r.gap(OURS, CURRENT, 'slow_other')} in `slow_other` "
        f"to the mean score, for {slow.compute:.2f} M tokens against {slow.cheaper_compute:.2f} M and "
        f"{other.cheaper_compute:.2f} M"
    )
    yield when(f"{slow.compute:.2f}" == f"{other.compute:.2f}", "At an equal number of steps")
    gaps = [r.gap(OURS, CURRENT, world, ON_THE_WAY) for world in ("slow", "slow_other")]
    yield f"It adds {gaps[0]} and {gaps[1]} to the mean over training"
    first, second = (
        [r.gap(*EXPLAINING[1], world, name) for world in found] for name in (OVERALL, ON_THE_WAY)
    )
    yield f"The selection alone gains {first[0]} over equal updates in `slow` and {first[1]} in `slow_other`"
    yield (
        f"in the mean over training it gains {second[0]} and {second[1]}, for fewer tokens than equal updates"
    )
    cheaper = all(
        r.mean(world, CURRENT, "compute") < r.mean(world, "equal_updates", "compute") for world in found
    )
    yield when(cheaper, "for fewer tokens than equal updates")


def head_start(r: Results) -> Iterator[str]:
    """Gains that shrink."""
    rule = {world: gains_over_steps(runs, (OURS, "rule")) for world, runs in r.worlds.items()}
    equal = {world: gains_over_steps(runs, (OURS, "equal_updates")) for world, runs in r.worlds.items()}
    other, many = rule["slow_other"], rule["many"]
    yield (
        f"Over RULE it falls from {other[30]:+.3f} to "
        f"{other[60]:+.3f} in `slow_other` (steps 30 and 60) and from"
    )
    yield f"from {many[30]:+.3f} to {many[60]:+.3f} in `many`"
    other, slow = equal["slow_other"], equal["slow"]
    yield (
        f"it falls from {other[30]:+.3f} to {other[60]:+.3f} "
        f"in `slow_other` and from {slow[40]:+.3f} at step 40"
    )
    yield f"from {slow[40]:+.3f} at step 40 to {slow[60]:+.3f} at step 60 in `slow`"
    rows = [gains_over_steps(runs, (OURS, base)) for base in BASES for runs in r.worlds.values()]
    shrink = sum(list(gains.values())[-1] < max(gains.values()) for gains in rows)
    yield f"and is smaller at the last validation in {shrink} of the {len(rows)} rows"
    rising = list(rule["tofu"].values())
    yield when(rising == sorted(rising), "`tofu` shows no such decline over RULE within its 30 steps")


def learning_rate(r: Results) -> Iterator[str]:
    """RULE at two learning rates."""
    gain = rate_gain(r)
    yield (
        f"RULE has a mean score of {r.mean('slow', 'rule'):.3f} "
        f"in `slow` and {r.mean('many', 'rule'):.3f} in `many`"
    )
    yield f"The difference is {text_of(difference_cell(gain))} over {gain.seeds} seeds of one stage-1 model"
    found = compare_arms(r.worlds["slow"], OURS, "rule", OVERALL)
    assert found is not None
    yield (f"gains {found.difference:+.3f} over RULE in `slow` and ends at {r.mean('slow', OURS):.3f}")


def taking_off(r: Results) -> Iterator[str]:
    """Seeds that do not take off."""
    stuck, count = stuck_seeds(r)
    yield f"RULE does not take off on {'one seed' if stuck == 1 else f'{stuck} seeds'} of {count}"
    off = {arm: [run.seed for run in of_arm(r.worlds["many"], arm) if not took_off(run)] for arm in MAIN}
    same = all(off[arm] == off["rule"] for arm in ("random", "equal_updates", "equal_compute"))
    yield when(
        same and not off[PAPER] and not off[OURS],
        "and `random`, `equal_updates` and `equal_compute` do not on the same seed; both kinds of replay do",
    )
    share = share_cell(of_arm(r.worlds["many"], "rule"))
    yield f"The 95 % interval of this share, {share.text}, is {share.interval}"
    halves = {
        base: split_by_take_off(r.worlds["many"], (OURS, base))[0] for base in ("rule", "equal_updates")
    }
    both = [paired(values, [0.0] * len(values)) for values in halves.values()]
    cells = [text_of(difference_cell(found)) for found in both]
    yield (
        f"Among the {both[0].seeds} pairs in which both runs "
        f"take off, the recommended replay gains {cells[0]} over"
    )
    whole = [compare_arms(r.worlds["many"], OURS, base, OVERALL) for base in halves]
    gains = " and ".join(f"{found.difference:+.3f}" for found in whole if found)
    yield f"over RULE and {cells[1]} over equal updates; over all 8 pairs it gains {gains}"
    yield f"8 seeds contain none of them in {100 * (7 / 8) ** 8:.0f} % of all studies"
    few, most = ([row[SEEDS.index(seeds)] for row in r.coverage()] for seeds in (SEEDS[0], SEEDS[-1]))
    yield (
        f"With 8 seeds the intervals hold in {100 * min(few):.0f} "
        f"to {100 * max(few):.0f} % of the simulated studies"
    )
    yield f"and with 24 seeds in {100 * min(most):.0f} to {100 * max(most):.0f} %"


def refusing(r: Results) -> Iterator[str]:
    """Refusals on the forget side."""
    stage1 = r.chosen("tofu", "stage1", REFUSED)
    greedy, sampled = (
        [r.mean("tofu", arm, name) for arm in ("rule", PAPER, OURS)] for name in (REFUSED, REFUSED_SAMPLED)
    )
    yield f"stage-1 models refuses {stage1:.3f} of the forget probes"
    yield f"RULE lowers this to {greedy[0]:.3f} and the paper's replay to {greedy[1]:.3f} (greedy)"
    yield f"in sampled answers RULE has {sampled[0]:.3f} and the paper's replay {sampled[1]:.3f}"
    yield f"The recommended replay has {greedy[2]:.3f} and {sampled[2]:.3f} there"
    below = [r.below(PAPER, "equal_updates", name) for name in (REFUSED, REFUSED_SAMPLED)]
    yield when(all(len(names) == len(WORLDS) for names in below), "each of these 8 intervals excludes 0")
    yield f"RULE still refuses {r.mean('slow', 'rule', 'retain/refused'):.3f} of the retain probes at the end"
    yield f"refuses less than RULE in sampled answers ({r.gap(OURS, 'rule', 'slow', REFUSED_SAMPLED)})"


def together(r: Results) -> Iterator[str]:
    """Two worlds together."""
    found = [pool(r.worlds, (OURS, base)) for base in ("equal_updates", PAPER)]
    texts = [
        f"{each.over_seeds.difference:+.4f} ({each.student[0]:+.4f} to {each.student[1]:+.4f})"
        for each in found
    ]
    counts = " and ".join(str(each.over_seeds.seeds) for each in found)
    yield (
        f"Over the seeds of both worlds ({counts}) the recommended replay has {texts[0]} over equal updates "
        f"and {texts[1]} over the paper's replay"
    )
    yield when(all(len(each.over_models) == 4 for each in found), "of which there are four")


def late_learning(r: Results) -> Iterator[str]:
    """Halves by how far RULE comes."""
    halves = [by_take_off(runs, OURS) for runs in r.worlds.values()]
    pairs = [[pair for of_it in half for pair in of_it] for half in zip(*halves, strict=True)]
    cells = [text_of(difference_cell(paired(*zip(*half, strict=True)))) for half in pairs]
    yield f"recommended replay gains {cells[0]} over equal updates, and where RULE comes further {cells[1]}"
    yield f"a post-hoc analysis over {len(pairs[0])} seeds in each half"


def loop_and_recipe(r: Results) -> Iterator[str]:
    """Single runs of the loop, and through verl."""
    yield f"After stage 1 the greedy retain recall in `many` is {r.chosen('many', 'stage1', RETAIN):.3f}"
    first = [
        run.curves["reward/retain"][0] for run in of_world(r.every, "many") if run.curves.get("reward/retain")
    ]
    yield f"the sampled retain reward of the first step is {mean(first):.3f} on average"
    ends = {arm: sorted(map(end_of, of_arm(r.worlds["many"], arm))) for arm in ("rule", PAPER, OURS)}
    yield f"end between {ends['rule'][0]:.2f} and {ends['rule'][-1]:.2f}"
    recipe = {arm: [end_of(run) for run in of_arm(of_world(r.every, "many-verl"), arm)] for arm in ends}
    within = all(ends[arm][0] <= value <= ends[arm][-1] for arm, values in recipe.items() for value in values)
    yield when(within, "So do the recipe's runs of the other arms")


def end_of(run: StudyRun) -> float:
    """The sampled retain reward of a run's steps 51 to 60."""
    return mean(run.curves["reward/retain"][LAST_STEPS])


def worlds_tried(r: Results) -> Iterator[str]:
    """What the runs that count say of the worlds."""
    first, last = (r.mean("many", "rule", f"hard_share/{part}") for part in ("first", "last"))
    yield (
        f"Over its 8 seeds of RULE, {first:.2f} of all groups are "
        f"hard in the first quarter of the steps and {last:.2f}"
    )


def first_look(r: Results) -> Iterator[str]:
    """The seeds for choosing."""
    many = {
        arm: r.chosen("many", arm) for arm in ("equal_updates", "rule", *FRESHEST, PAPER, "tau1.0", "tau0.4")
    }
    yield (
        "RULE's own update made twice comes first "
        f"({many['equal_updates']:.3f}, where RULE has {many['rule']:.3f})"
    )
    arms = {run.arm for run in of_world(r.choosing, "many")}
    best = max(arms, key=lambda arm: r.chosen("many", arm))
    yield when(best == "equal_updates", "RULE's own update made twice comes first")
    spread = stdev(seed_values(of_world(r.choosing, "many"), "rule", OVERALL).values())
    yield f"the standard deviation of RULE between them is {spread:.3f}"
    fresh = [many[arm] for arm in FRESHEST]
    yield (
        f"the newest groups with signal ({fresh[0]:.3f}) and "
        f"those of the last 8 steps ({fresh[1]:.3f}) come close"
    )
    yield f"the paper's replay does not reach RULE here ({many[PAPER]:.3f})"
    yield f"({many['tau1.0']:.3f}, {many[PAPER]:.3f} and {many['tau0.4']:.3f} at tau 1.0, 0.6 and 0.4)"
    paper, rule = (
        [r.chosen("many", arm, name) for name in (FORGET, RETAIN, UNSEEN)] for arm in (PAPER, "rule")
    )
    yield (
        f"forgets more than RULE ({paper[0]:.3f} against "
        f"{rule[0]:.3f}) and keeps as much ({paper[1]:.3f} against"
    )
    yield f"{rule[1]:.3f}), but has less unseen recall ({paper[2]:.3f} against {rule[2]:.3f})"
    sizes = r.chosen("many", "unclipped", "replay/effective_sample_size")
    yield f"unclipped ratios (arm `unclipped`) is {sizes:.2f} of their number"
    yield f"the effective sample size of unclipped ratios is {sizes:.2f}"
    yield from storing_rules(r)
    scores = {arm: mean([r.chosen(world, arm) for world in ("many", "slow")]) for arm in arms & in_slow(r)}
    first, second = sorted(scores, key=lambda arm: -scores[arm])[:2]
    yield when(
        (first, second) == (OURS, "recent_0.8"),
        f"{scores[first]:.3f}, then `{second}` with {scores[second]:.3f}",
    )


def in_slow(r: Results) -> set[str]:
    """The arms tried in "slow" on the seeds for choosing."""
    return {run.arm for run in of_world(r.choosing, "slow")}


def storing_rules(r: Results) -> Iterator[str]:
    """Newest against uniform, and signal against none, in the mean over training."""
    during = {
        (world, arm): r.chosen(world, arm, ON_THE_WAY)
        for world in ("many", "slow")
        for arm in {arm for pair in (*NEWEST, *SIGNAL) for arm in pair}
    }
    newest = all(during[w, new] > during[w, old] for w in ("many", "slow") for new, old in NEWEST)
    yield when(
        newest,
        "the newest groups come before uniform draws under each of three rules of storing, in both worlds",
    )
    wrong = [
        (w, pair) for w in ("many", "slow") for pair in SIGNAL if during[w, pair[0]] <= during[w, pair[1]]
    ]
    only = wrong == [("many", ("informative", "tau1.0"))]
    values = [during["many", arm] for arm in ("informative", "tau1.0")]
    yield when(only, f"(tau 1.0 in `many`: {values[0]:.3f} with signal and {values[1]:.3f}")


def fresh_seeds(r: Results) -> Iterator[str]:
    """The section of each world."""
    kept, forgot = (r.gap(OURS, PAPER, "slow", name) for name in (RETAIN, FORGET))
    yield (
        f"(difference in retain recall {kept}) and forgets much "
        f"less (forget recall {forgot}, recommended minus paper's)"
    )
    ends = [r.mean("slow_other", arm) for arm in (*MAIN, CURRENT)]
    yield f"so all arms end within {max(ends) - min(ends):.3f} of each other"
    yield when(max(ends) == r.mean("slow_other", OURS), "the recommended replay first")
    four = {run.arm for run in r.worlds["tofu"] if run.seed == 4}
    yield when(len(four) == 2, "seed 4 in `tofu` there are two arms alone")


def two_models(r: Results) -> Iterator[str]:
    """Each stage-1 model for itself."""
    old, new = (
        [
            value
            for (_, model), value in seed_values(r.worlds["tofu"], "rule", OVERALL).items()
            if bool(model) is later
        ]
        for later in (False, True)
    )
    yield f"The mean score of RULE in `tofu` differs by {mean(new) - mean(old):.3f} between the two models"
    yield f"({stdev(old):.3f} over three seeds and {stdev(new):.3f} over five)"
    gains = {base: by_model(r, "slow_other", (OURS, base)) for base in (PAPER, "equal_updates")}
    (one, two), (three, four) = (each.values() for each in gains.values())
    yield f"({mean(two):+.3f} after {mean(one):+.3f}, and {mean(four):+.3f} after {mean(three):+.3f})"
    include = all(
        found.low <= 0 <= found.high for found in (paired(each, [0.0] * len(each)) for each in (two, four))
    )
    yield when(include, "On the seeds of the second model alone, both intervals include 0")
    every = [by_model(r, world, (OURS, base)) for world in ("slow_other", "tofu") for base in MAIN[:-1]]
    same = all(len({mean(values) > 0 for values in each.values()}) == 1 for each in every)
    yield when(same, "What the recommended replay gains over each control has the same sign with both models")


def by_model(r: Results, world: str, pair: Pair) -> dict[str, list[float]]:
    """A pair's differences in mean score, by stage-1 model, the earlier first."""
    found = dict[str, list[float]]()
    for (_, model), (one, other) in value_pairs(r.worlds[world], *pair, OVERALL).items():
        found.setdefault(model, []).append(one - other)
    return dict(sorted(found.items()))


def in_readme(r: Results) -> Iterator[str]:
    """The README."""
    seeds = [len(of_arm(runs, arm)) for runs in r.worlds.values() for arm in MAIN]
    yield f"with {min(seeds)} to {max(seeds)} seeds an arm"
    yield f"The paper's replay has a higher mean score than RULE in {out_of(r.above(PAPER, 'rule'))} worlds"
    yield when(
        not r.above(PAPER, "equal_updates") and not r.below(PAPER, "equal_updates"),
        "in none is it told apart from making RULE's own update twice",
    )
    paper, equal = (out_of(r.above(OURS, base)) for base in BASES[1:])
    yield f"exclude 0 against the paper's replay in {paper} worlds and against equal updates in {equal}"
    yield when(no_advantage(r), "at equal compute, replay of older groups shows no advantage over")
    yield f"RULE gains {rate_gain(r).difference:+.3f} from twice the learning rate"


PAGE: tuple[Callable[[Results], Iterator[str]], ...] = (
    summary,
    worlds_and_pairs,
    papers_replay,
    recommended,
    forgetting,
    equal_compute,
    head_start,
    learning_rate,
    taking_off,
    refusing,
    together,
    late_learning,
    loop_and_recipe,
    worlds_tried,
    first_look,
    fresh_seeds,
    two_models,
)


def page_claims(runs: Runs) -> list[str]:
    """All of docs/results.md.

    Raises:
        ValueError: the file lacks arms or worlds that the page speaks of.
    """
    results = Results(runs)
    return [text for part in PAGE for text in part(results)]


def readme_claims(runs: Runs) -> list[str]:
    """All of the README's paragraph on the study."""
    return list(in_readme(Results(runs)))
