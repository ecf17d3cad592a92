"""What every build is checked for. A leak stops it; everything else is counted and listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from data_prep.prompts import Benchmark, Prompt
from data_prep.refusals import misspelt_name
from data_prep.text import normalise
from reward import RewardConfig, contains_keyword, is_refusal, rouge_l


class LeakError(ValueError):
    """A held-out probe is among the training prompts; the message is one line naming both places."""


@dataclass(frozen=True)
class Check:
    """One thing to look for: what it is, and the prompts of a benchmark that have it under a reward."""

    description: str
    find: Callable[[Benchmark, RewardConfig], list[Prompt]]


def check_leaks(benchmark: Benchmark) -> None:
    """Refuse held-out probes, exact or by their words, among the prompts of stages 1 and 2.

    Probes of `trained_sections` are not held out.

    Raises:
        LeakError: naming the training prompt and the probe.
    """
    held_out = [probe for probe in benchmark.probes if probe.section not in benchmark.trained_sections]
    refuse_probes([*benchmark.train, *benchmark.stage1], held_out)


def refuse_probes(prompts: Iterable[Prompt], probes: Iterable[Prompt]) -> None:
    """Refuse probes, exact or by their words, among prompts. Raises LeakError."""
    probe_of = {normalise(probe.query): probe for probe in probes}
    for prompt in prompts:
        probe = probe_of.get(normalise(prompt.query))
        if probe is not None:
            raise LeakError(
                f"{prompt.origin}: the training prompt {prompt.query!r} is the probe at {probe.origin}; take "
                "it out of one of the two"
            )


def check_sides(benchmark: Benchmark) -> None:
    """Refuse a benchmark without training prompts of both sides, or without refusals for stage 1.

    Raises:
        ValueError: naming what is missing.
    """
    for side in ("forget", "retain"):
        if not any(prompt.side == side for prompt in benchmark.train):
            raise ValueError(f"{benchmark.name}: no training prompt of side {side} is left")
    if not benchmark.stage1:
        raise ValueError(f"{benchmark.name}: no refusal is left for stage 1")


def run_checks(benchmark: Benchmark, reward: RewardConfig) -> dict[str, list[Prompt]]:
    """What each of CHECKS finds, by its name. Raises ValueError where a side is empty, and LeakError."""
    check_sides(benchmark)
    check_leaks(benchmark)
    return {name: check.find(benchmark, reward) for name, check in CHECKS.items()}


def drop(benchmark: Benchmark, kinds: Iterable[str], reward: RewardConfig) -> Benchmark:
    """The benchmark without the training prompts that the checks of these kinds of DROPS find."""
    notes = dict(benchmark.notes)
    for kind in dict.fromkeys(kinds):
        found = {prompt.index for name in DROPS[kind] for prompt in CHECKS[name].find(benchmark, reward)}
        benchmark = replace(
            benchmark,
            train=[prompt for prompt in benchmark.train if prompt.index not in found],
            stage1=[prompt for prompt in benchmark.stage1 if prompt.index not in found],
        )
        notes[f"dropped_{kind}"] = len(found)
    return replace(benchmark, notes=notes)


def _trained_probes(benchmark: Benchmark, _: RewardConfig) -> list[Prompt]:
    trained = {normalise(prompt.query) for prompt in [*benchmark.train, *benchmark.stage1]}
    return [probe for probe in benchmark.probes if normalise(probe.query) in trained]


def _probes_in_examples(benchmark: Benchmark, _: RewardConfig) -> list[Prompt]:
    examples = normalise(" ".join(benchmark.form.prefixes.values()))
    return [probe for probe in benchmark.probes if f" {normalise(probe.query)} " in f" {examples} "]


def _duplicates(benchmark: Benchmark, _: RewardConfig) -> list[Prompt]:
    seen: set[tuple[str, str]] = set()
    repeated = []
    for prompt in benchmark.train:
        key = (prompt.side, normalise(prompt.query))
        if key in seen:
            repeated.append(prompt)
        seen.add(key)
    return repeated


def _contradictions(benchmark: Benchmark, _: RewardConfig) -> list[Prompt]:
    kept = {normalise(prompt.query) for prompt in benchmark.train if prompt.side == "retain"}
    return [p for p in benchmark.train if p.side == "forget" and normalise(p.query) in kept]


def _keyword_not_in_prompt(benchmark: Benchmark, _: RewardConfig) -> list[Prompt]:
    return [p for p in benchmark.train if p.side == "forget" and not contains_keyword(p.query, p.keyword)]


def _gold_is_refusal(benchmark: Benchmark, reward: RewardConfig) -> list[Prompt]:
    retain = [p for p in benchmark.train if p.side == "retain"]
    return [p for p in retain if all(is_refusal(gold, reward.phrases) for gold in p.golds)]


def _gold_below_threshold(benchmark: Benchmark, reward: RewardConfig) -> list[Prompt]:
    def best(golds: Sequence[str]) -> float:
        return max(rouge_l(gold, gold, reward.rouge) for gold in golds)

    return [p for p in benchmark.train if p.side == "retain" and best(p.golds) <= reward.gamma]


def _refusal_misnames_target(benchmark: Benchmark, _: RewardConfig) -> list[Prompt]:
    return [p for p in benchmark.stage1 if misspelt_name(p.refusal, p.keyword)]


def _refusal_not_detected(benchmark: Benchmark, reward: RewardConfig) -> list[Prompt]:
    return [p for p in benchmark.stage1 if not is_refusal(p.refusal, reward.phrases)]


CHECKS = {
    "trained_probes": Check("probes that this benchmark trains on by its own design", _trained_probes),
    "probes_in_examples": Check("probes that the few-shot examples ask and answer", _probes_in_examples),
    "duplicates": Check("training prompts that occur before on the same side", _duplicates),
    "contradictions": Check("training prompts to forget that are also to be kept", _contradictions),
    "keyword_not_in_prompt": Check(
        "training prompts to forget without the target's name", _keyword_not_in_prompt
    ),
    "gold_is_refusal": Check("right answers that count as refusals: no full reward", _gold_is_refusal),
    "gold_below_threshold": Check("right answers not above gamma: no full reward", _gold_below_threshold),
    "refusal_misnames_target": Check("refusals with the target's name misspelt", _refusal_misnames_target),
    "refusal_not_detected": Check("refusals that the detector does not find", _refusal_not_detected),
}
DROPS = {
    "unsolvable": ("gold_is_refusal", "gold_below_threshold"),
    "duplicates": ("duplicates",),
    "contradictions": ("contradictions",),
}
"""What can be left out on request, and the checks that find it."""
