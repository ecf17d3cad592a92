"""From a benchmark's prompts to its folder: checks, parquet files and manifest.json."""

from __future__ import annotations

import json
import platform
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep import classical
from data_prep.contract import any_of, normalise, write_rows, write_sft_rows
from data_prep.prompts import NAMED, Benchmark, Prompt, spread
from data_prep.writers import misspelt_name
from recipe.rerule.io import DATA, file_sha256, new_folder, stamp_folder
from reward import RewardConfig, compute_score, is_refusal, names_of

# ---- checks: a leak stops a build; everything else is counted and listed ----

CHECKS = {
    "trained_probes": "probes that this benchmark trains on by its own design",
    "probes_in_examples": "probes that the few-shot examples ask and answer",
    "duplicates": "training prompts that occur before on the same side",
    "contradictions": "training prompts to forget that are also to be kept",
    "keyword_not_in_prompt": "training prompts to forget without the target's name",
    "target_in_retain": "training prompts to keep that name the target, or are answered by its name",
    "gold_without_reward": "right answers that do not earn the full reward",
    "refusal_misnames_target": "refusals with the target's name misspelt",
    "refusal_not_detected": "refusals that the detector does not find",
}
DROPS = {
    "unsolvable": ("gold_without_reward",),
    "duplicates": ("duplicates",),
    "contradictions": ("contradictions",),
    "named": ("target_in_retain",),
}
"""What can be left out on request, and the checks that find it."""


def refuse_probes(prompts: Iterable[Prompt], probes: Iterable[Prompt]) -> None:
    """Refuse probes, exact or by their words, among prompts. Raises ValueError."""
    probe_of = {normalise(probe.query): probe for probe in probes}
    for prompt in prompts:
        probe = probe_of.get(normalise(prompt.query))
        if probe is not None:
            raise ValueError(
                f"{prompt.origin}: the training prompt {prompt.query!r} is the probe at {probe.origin}; take "
                "it out of one of the two"
            )


def run_checks(benchmark: Benchmark, reward: RewardConfig) -> dict[str, list[Prompt]]:
    """What each of CHECKS finds, by its name.

    Raises:
        ValueError: no training prompt of a side is left, or no refusal for stage 1.
        ValueError: a probe is among the prompts of stages 1 and 2. Probes of `trained_sections` may be.
    """
    for side in ("forget", "retain") if benchmark.trains else ():
        if not any(prompt.side == side for prompt in benchmark.train):
            raise ValueError(f"{benchmark.name}: no training prompt of side {side} is left")
    if benchmark.trains and not benchmark.stage1:
        raise ValueError(f"{benchmark.name}: no refusal is left for stage 1")
    held_out = [probe for probe in benchmark.probes if probe.section not in benchmark.trained_sections]
    refuse_probes([*benchmark.train, *benchmark.stage1], held_out)
    return found_in(benchmark, reward)


def found_in(benchmark: Benchmark, reward: RewardConfig) -> dict[str, list[Prompt]]:
    """The prompts that have each of CHECKS, by its name; nothing is refused."""
    words = {prompt: normalise(prompt.query) for prompt in [*benchmark.train, *benchmark.stage1]}
    probes = {probe: normalise(probe.query) for probe in benchmark.probes}
    examples = f" {normalise(' '.join(benchmark.form.prefixes.values()))} "
    forget = [prompt for prompt in benchmark.train if prompt.side == "forget"]
    retain = [prompt for prompt in benchmark.train if prompt.side == "retain"]
    kept, trained = {words[prompt] for prompt in retain}, set(words.values())
    seen, repeated = set(), []
    for prompt in benchmark.train:
        if (prompt.side, words[prompt]) in seen:
            repeated.append(prompt)
        seen.add((prompt.side, words[prompt]))

    def misnamed(prompt: Prompt) -> bool:
        names = names_of(prompt.keyword)
        named = any(name in prompt.refusal for name in names)
        return not named and any(misspelt_name(prompt.refusal, name) for name in names)

    def earns(gold: str, prompt: Prompt) -> float:
        truth = {"type": prompt.side, "golds": prompt.golds, "keyword": prompt.keyword}
        return compute_score("", gold, truth, {"query": prompt.query}, **asdict(reward))["score"]

    targets = any_of(name.partition(",")[0] for prompt in forget for name in names_of(prompt.keyword))

    return {
        "trained_probes": [probe for probe in benchmark.probes if probes[probe] in trained],
        "probes_in_examples": [p for p in benchmark.probes if f" {probes[p]} " in examples],
        "duplicates": repeated,
        "contradictions": [prompt for prompt in forget if words[prompt] in kept],
        "keyword_not_in_prompt": [p for p in forget if not reward.names_target(p.query, p.keyword)],
        "target_in_retain": [
            prompt
            for prompt in retain
            if prompt.family != NAMED and targets.search(normalise(" ".join([prompt.query, *prompt.golds])))
        ],
        "gold_without_reward": [p for p in retain if all(earns(gold, p) < 1 for gold in p.golds)],
        "refusal_misnames_target": [prompt for prompt in benchmark.stage1 if misnamed(prompt)],
        "refusal_not_detected": [p for p in benchmark.stage1 if not is_refusal(p.refusal, reward.phrases)],
    }


def drop(benchmark: Benchmark, kinds: Iterable[str], reward: RewardConfig) -> Benchmark:
    """The benchmark without the training prompts that the checks of these kinds of DROPS find.

    Stage 1 loses all that is made of the same raw rows, but for prompts that stay in training.
    """
    notes = dict(benchmark.notes)
    for kind in dict.fromkeys(kinds):
        found = found_in(benchmark, reward)
        gone = {prompt.index: prompt.origin for name in DROPS[kind] for prompt in found[name]}
        train = [prompt for prompt in benchmark.train if prompt.index not in gone]
        left = {prompt.index for prompt in train}
        # The fill-in forms of a question may be in stage 1 alone.
        stage1 = [one for one in benchmark.stage1 if one.index in left or one.origin not in gone.values()]
        benchmark = replace(benchmark, train=train, stage1=stage1)
        notes[f"dropped_{kind}"] = len(gone)
    return replace(benchmark, notes=notes)


# ---- the folder: parquet files and manifest.json ----

LISTED = 5
"""Prompts printed for each check; the manifest lists all."""


@dataclass(frozen=True)
class BuildOptions:
    """How a benchmark is checked and cut.

    reward: what the checks take the training reward to be.
    drops: kinds of DROPS to leave out.
    limit: most training prompts a side, and most probes; None for all.
    """

    reward: RewardConfig
    drops: tuple[str, ...] = ()
    limit: int | None = None


def build(benchmark: Benchmark, target: Path, *, overwrite: bool, options: BuildOptions) -> dict[str, Any]:
    """Check the benchmark and write it; returns the manifest. The same prompts give the same bytes.

    Raises:
        ValueError: a leak, a row that breaks the contract, or a target that must not be replaced; nothing is
            written then.
    """
    with new_folder(target, overwrite) as folder:
        return write(benchmark, folder, options)


def write(benchmark: Benchmark, folder: Path, options: BuildOptions) -> dict[str, Any]:
    """Check the benchmark and write its files into an empty folder; returns the manifest.

    Raises:
        ValueError: a leak, or a row that breaks the contract.
    """
    benchmark = drop(benchmark, options.drops, options.reward)
    found = run_checks(benchmark, options.reward)
    if options.limit is not None:
        benchmark = cut(benchmark, options.limit)
    prompts = {"probes": benchmark.probes}
    if benchmark.trains:
        write_rows(folder / "train.parquet", benchmark.rl_rows("train", benchmark.train))
        write_rows(folder / "val.parquet", benchmark.rl_rows("val", benchmark.val))
        write_sft_rows(folder / "sft.parquet", benchmark.sft_rows())
        prompts = {"train": benchmark.train, "val": benchmark.val, "sft": benchmark.stage1} | prompts
    write_rows(folder / "probes.parquet", benchmark.rl_rows("probe", benchmark.probes))
    answered, told = classical.of_benchmark(benchmark, options.reward.phrases)
    counts = {name: _counts((one.side, one.mode) for one in kept) for name, kept in prompts.items()}
    for name, rows in answered.items():
        write_sft_rows(folder / f"{name}.parquet", rows)
        side = "retain" if name.startswith("retain") else "forget"
        counts[name] = _counts((side, row["extra_info"]["mode"]) for row in rows)
    manifest = {
        **stamp_folder(DATA, folder),
        "benchmark": benchmark.name,
        "settings": dict(benchmark.settings),
        "checked_for": {
            one: getattr(options.reward, one)
            for one in ("rouge", "gamma", "keyword_any_case", "keyword_part")
        },
        "limit": options.limit,
        "sources": dict(sorted(benchmark.sources.items())),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyarrow", "rerule")},
        },
        "rows": counts,
        "classical": told,
        "notes": dict(benchmark.notes),
        "not_written": list(benchmark.failures),
        "checks": {name: [prompt.origin for prompt in prompts] for name, prompts in found.items()},
        "files": {path.name: file_sha256(path) for path in sorted(folder.glob("*.parquet"))},
    }
    (folder / DATA.marker).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return manifest


def cut(benchmark: Benchmark, limit: int) -> Benchmark:
    """The benchmark with at most `limit` training prompts a side, stage-1 prompts, and probes."""
    rng = random.Random(f"limit {limit}")
    of_retain_set = random.Random(f"limit {limit} of the retain set")
    sides = ("forget", "retain")
    kept = [p for side in sides for p in spread([p for p in benchmark.train if p.side == side], limit, rng)]
    material = benchmark.material
    return replace(
        benchmark,
        train=kept,
        stage1=spread(benchmark.stage1, limit, rng),
        probes=spread(benchmark.probes, limit, rng),
        material=replace(
            material,
            retain=None if material.retain is None else spread(material.retain, limit, of_retain_set),
            forget_texts=material.forget_texts[:limit],
            retain_texts=material.retain_texts[:limit],
        ),
    )


def summary(target: Path, manifest: Mapping[str, Any]) -> str:
    """The manifest for a person: rows by file, side and mode, and what the checks found."""
    lines = [f"{target}:"]
    for name, sides in manifest["rows"].items():
        counts = []
        for side, modes in sides.items():
            by_mode = ", ".join(f"{mode} {count}" for mode, count in modes.items())
            counts.append(f"{side} {sum(modes.values())} ({by_mode})")
        lines.append(f"  {name + '.parquet':20}{'; '.join(counts)}")
    notes = {name: count for name, count in manifest["notes"].items() if count}
    lines += [f"  {count:6} {name.replace('_', ' ')}" for name, count in notes.items()]
    lines += [f"         not written: {failure}" for failure in manifest["not_written"]]
    lines += [f"         {sentence}" for sentence in manifest["classical"]["left_out"]]
    for name, origins in manifest["checks"].items():
        if origins:
            lines.append(f"  {len(origins):6} {CHECKS[name]}: {listed(origins)}")
    return "\n".join(lines)


def listed(origins: Sequence[str]) -> str:
    """The first LISTED of them."""
    return ", ".join(origins[:LISTED]) + (", ..." if len(origins) > LISTED else "")


def _counts(rows: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """How many rows there are of each side and mode."""
    counts: dict[str, Counter[str]] = {}
    for side, mode in rows:
        counts.setdefault(side, Counter())[mode] += 1
    return {side: dict(modes) for side, modes in counts.items()}
