"""How often a 95 % interval holds the true value: python -m benchmarks.interval_coverage [--trials N].

Draws probes from populations whose metric is known, makes intervals of it, and counts. Ways:
    percentile    what the evaluation does (recipe.rerule.evaluation.summary)
    bca           bias-corrected and accelerated (Efron 1987), with the same resamples
    wilson        Wilson's score interval, where the metric is one share
    probes        where several probes ask for a fact: the percentile interval that takes every probe for one
Prints a table and, on its last line, one JSON object {population: {way: {"coverage", "width"}}}. A coverage
of 0.95 measured over N trials has a standard error of sqrt(0.05 * 0.95 / N), 0.007 for 1,000.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm
from tqdm import tqdm

from recipe.rerule.evaluation.summary import (
    Array,
    Facts,
    Interval,
    Samples,
    Statistic,
    bootstrap,
    mean_of,
    mean_of_means,
    percentile_interval,
)

LEVEL = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Population:
    """Where probes come from.

    Attributes:
        draw: new samples.
        statistic: the metric.
        truth: its value in the population.
        share: whether the metric is the share of one set's probes.
        facts: what the probes ask for; None where each asks for a fact of its own.
    """

    draw: Callable[[np.random.Generator], Samples]
    statistic: Statistic
    truth: float
    share: bool = False
    facts: Facts | None = None


def share(probes: int, truth: float) -> Population:
    """One set with values 0 and 1, such as refusals."""

    def draw(generator: np.random.Generator) -> Samples:
        return {"set": {"value": (generator.random(probes) < truth).astype(float)}}

    return Population(draw, mean_of("value", ["set"]), truth, share=True)


def recall(probes: int, zeros: float, ones: float) -> Population:
    """One set like ROUGE-L recall: nothing or all is right, or a uniform part of it."""
    truth = ones + (1 - zeros - ones) / 2
    return Population(
        lambda generator: {"set": {"value": _recall(generator, probes, zeros, ones)}},
        mean_of("value", ["set"]),
        truth,
    )


def strata(sizes: dict[str, int]) -> Population:
    """Unweighted mean over sets of recall-like values, each set with its own share of zeros."""
    zeros = {name: 0.3 + 0.5 * number / len(sizes) for number, name in enumerate(sizes)}

    def draw(generator: np.random.Generator) -> Samples:
        return {name: {"value": _recall(generator, size, zeros[name], 0.1)} for name, size in sizes.items()}

    truth = float(np.mean([0.1 + (0.9 - part) / 2 for part in zeros.values()]))
    return Population(draw, mean_of_means("value", list(sizes)), truth)


def utility(sizes: dict[str, int]) -> Population:
    """The harmonic mean of three quantities on three sets, as TOFU's model utility is."""
    quantities = {"prob": (5.0, 3.0), "rouge": (4.0, 2.0), "truth": (2.0, 3.0)}  # of beta distributions

    def draw(generator: np.random.Generator) -> Samples:
        return {
            name: {quantity: generator.beta(*shape, size) for quantity, shape in quantities.items()}
            for name, size in sizes.items()
        }

    def harmonic(samples: Samples) -> Array:
        parts = [samples[name][quantity].mean(axis=-1) for name in sizes for quantity in quantities]
        return len(parts) / np.sum([1 / part for part in parts], axis=0)

    means = [first / (first + second) for first, second in quantities.values()]
    return Population(draw, harmonic, len(means) / sum(1 / mean for mean in means))


def clustered(sizes: Mapping[str, Sequence[int]], alike: float, by_set: bool = False) -> Population:
    """Right or wrong answers to several probes of a fact.

    Args:
        sizes: {set: how many probes of it ask for each fact}; the facts are the same ones in all sets.
        alike: correlation of two answers on one fact; half of all answers are right. 0 to below 1.
        by_set: whether the metric is the unweighted mean over the sets, not over all probes.
    """
    spread = (1 / alike - 1) / 2 if alike else math.inf

    def draw(generator: np.random.Generator) -> Samples:
        facts = len(next(iter(sizes.values())))
        known = generator.beta(spread, spread, facts) if alike else np.full(facts, 0.5)
        return {
            name: {"value": (generator.random(sum(counts)) < np.repeat(known, counts)).astype(float)}
            for name, counts in sizes.items()
        }

    mean = (mean_of_means if by_set else mean_of)("value", list(sizes))
    facts = {name: np.repeat(np.arange(len(counts)), counts).tolist() for name, counts in sizes.items()}
    return Population(draw, mean, 0.5, facts=facts)


def world_sizes(facts: int) -> dict[str, list[int]]:
    """Probes of the world's facts to forget: the attacks on a fact depend on its kind."""
    return {"qa": [2] * facts, "fb": [2] * facts, "aa": [4, 5] * (facts // 2)}


RWKU_SIZES = {
    "fb": [1] * 12 + [1] * 5 + [1, 2, 2, 2, 3, 3],
    "qa": [0] * 12 + [1] * 5 + [1, 1, 1, 2, 2, 3],
    "aa": [0] * 17 + [1, 1, 2, 4, 5, 9],
}
"""23 facts, as a target of RWKU has: most are asked for once, one fifteen times."""
POPULATIONS = {
    "share .5, 40 probes": share(40, 0.5),
    "share .9, 40 probes": share(40, 0.9),
    "share .03, 40 probes": share(40, 0.03),
    "share .03, 400 probes": share(400, 0.03),
    "recall, 12 probes": recall(12, 0.6, 0.2),
    "recall, 40 probes": recall(40, 0.6, 0.2),
    "rare recall, 40 probes": recall(40, 0.95, 0.01),
    "recall, 300 probes": recall(300, 0.6, 0.2),
    "mean of 3 sets of 300": strata({"fb": 300, "qa": 300, "aa": 300}),
    "mean of 10 sets of 8": strata({f"target {number}": 8 for number in range(10)}),
    "mean of sets of 1 and 40": strata({"single": 1, "more": 40}),
    "model utility (400, 100, 117)": utility({"retain": 400, "authors": 100, "world": 117}),
    "model utility (12, 12, 12)": utility({"retain": 12, "authors": 12, "world": 12}),
    "14 facts, 8.5 probes each": clustered(world_sizes(14), 0.5),
    "42 facts, 8.5 probes each": clustered(world_sizes(42), 0.5),
    "42 facts, .2 alike": clustered(world_sizes(42), 0.2),
    "42 facts, not alike": clustered(world_sizes(42), 0),
    "128 facts, 1 to 3 probes each": clustered({"retain": [1, 1, 2, 2] * 30 + [3] * 8}, 0.5),
    "RWKU's target, mean of 3 sets": clustered(RWKU_SIZES, 0.5, by_set=True),
    "RWKU's target, all probes": clustered(RWKU_SIZES, 0.5),
}


def measure(population: Population, trials: int, seed: int) -> dict[str, dict[str, float]]:
    """Share of intervals that hold the truth, and their mean width, by way."""
    generator = np.random.default_rng(seed)
    found: dict[str, list[Interval]] = {}
    for trial in range(trials):
        samples = population.draw(generator)
        for way, interval in made(population, samples, trial).items():
            found.setdefault(way, []).append(interval)
    return {way: _summary(np.array(ends), population.truth) for way, ends in found.items()}


def made(population: Population, samples: Samples, seed: int) -> dict[str, Interval]:
    """The interval of each way."""
    point = float(population.statistic(samples))
    draws = _draws(population, samples, seed, population.facts)
    if population.facts is not None:
        probes = _draws(population, samples, seed, None)
        return {
            "percentile": percentile_interval(draws, point, LEVEL),
            "probes": percentile_interval(probes, point, LEVEL),
        }
    ways = {
        "percentile": percentile_interval(draws, point, LEVEL),
        "bca": bca_interval(draws, point, _influences(population.statistic, samples)),
    }
    return ways | ({"wilson": wilson_interval(samples["set"]["value"])} if population.share else {})


def _draws(population: Population, samples: Samples, seed: int, facts: Facts | None) -> Array:
    return bootstrap(samples, {"metric": population.statistic}, RESAMPLES, seed, facts)["metric"]


def bca_interval(draws: Array, point: float, influences: Array) -> Interval:
    """Efron's interval; draws that equal the point count half as below it. (point, point) if constant."""
    if np.ptp(draws) < 1e-12:
        return point, point
    below = np.mean(draws < point - 1e-12) + np.mean(np.abs(draws - point) <= 1e-12) / 2
    bias = norm.ppf(np.clip(below, 1 / len(draws), 1 - 1 / len(draws)))
    acceleration = np.sum(influences**3) / (6 * np.sum(influences**2) ** 1.5)
    shifted = bias + norm.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = np.quantile(draws, norm.cdf(bias + shifted / (1 - acceleration * shifted)))
    return float(low), float(high)


def wilson_interval(values: Array) -> Interval:
    """Wilson's score interval of a share."""
    count, mean, z = len(values), float(values.mean()), norm.ppf((1 + LEVEL) / 2)
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return centre - half, centre + half


def _influences(statistic: Statistic, samples: Samples) -> Array:
    """How far each probe moves the metric, by leaving it out; 0 for the only probe of a set."""
    found = []
    for name, quantities in samples.items():
        probes = len(next(iter(quantities.values())))
        rest = ~np.eye(probes, dtype=bool)
        left_out = {q: np.array([values[row] for row in rest]) for q, values in quantities.items()}
        if probes == 1:
            found.append(np.zeros(1))
            continue
        others = {
            other: {q: np.broadcast_to(values, (probes, len(values))) for q, values in rows.items()}
            for other, rows in samples.items()
        }
        jackknife = statistic({**others, name: left_out})
        found.append((probes - 1) / probes * (jackknife.mean() - jackknife))
    return np.concatenate(found)


def _recall(generator: np.random.Generator, probes: int, zeros: float, ones: float) -> Array:
    kind = generator.random(probes)
    return np.where(kind < zeros, 0.0, np.where(kind < zeros + ones, 1.0, generator.random(probes)))


def _summary(ends: Array, truth: float) -> dict[str, float]:
    holds = (ends[:, 0] - 1e-9 <= truth) & (truth <= ends[:, 1] + 1e-9)
    return {"coverage": float(holds.mean()), "width": float((ends[:, 1] - ends[:, 0]).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000, help="a population (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first (default: %(default)s)")
    options = parser.parse_args()
    figures = {}
    for number, (name, population) in enumerate(tqdm(POPULATIONS.items(), unit="population")):
        figures[name] = measure(population, options.trials, options.seed + number)
    for name, ways in figures.items():
        cells = [f"{way} {found['coverage']:.3f} ({found['width']:.3f})" for way, found in ways.items()]
        print(f"{name:32}{'  '.join(cells)}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
