"""From a benchmark's prompts to its folder: parquet files and manifest.json."""

from __future__ import annotations

import json
import platform
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep import classical
from data_prep.checks import CHECKS, drop, run_checks
from data_prep.contract import write_rows, write_sft_rows
from data_prep.draws import spread
from data_prep.prompts import Benchmark, Material, Prompt
from data_prep.sources.tables import sha256_of_file
from recipe.rerule.io import DATA, new_folder, stamp_folder
from reward import RewardConfig

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
    write_rows(folder / "train.parquet", benchmark.rl_rows("train", benchmark.train))
    write_rows(folder / "val.parquet", benchmark.rl_rows("val", benchmark.val))
    write_rows(folder / "probes.parquet", benchmark.rl_rows("probe", benchmark.probes))
    write_sft_rows(folder / "sft.parquet", benchmark.sft_rows())
    answered = classical.of_benchmark(benchmark, options.reward.phrases)
    answered.write(folder)
    manifest = _manifest(benchmark, found, options, folder, answered)
    (folder / DATA.marker).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return manifest


def cut(benchmark: Benchmark, limit: int) -> Benchmark:
    """The benchmark with at most `limit` training prompts a side, stage-1 prompts, and probes."""
    rng = random.Random(f"limit {limit}")
    sides = ("forget", "retain")
    kept = [p for side in sides for p in spread([p for p in benchmark.train if p.side == side], limit, rng)]
    return replace(
        benchmark,
        train=kept,
        stage1=spread(benchmark.stage1, limit, rng),
        probes=spread(benchmark.probes, limit, rng),
        material=_cut_material(benchmark.material, limit),
    )


def _cut_material(material: Material, limit: int) -> Material:
    rng = random.Random(f"limit {limit} of the retain set")
    return replace(
        material,
        retain=None if material.retain is None else spread(material.retain, limit, rng),
        forget_texts=material.forget_texts[:limit],
        retain_texts=material.retain_texts[:limit],
    )


def summary(target: Path, manifest: Mapping[str, Any]) -> str:
    """The manifest for a person: rows by file, side and mode, and what the checks found."""
    lines = [f"{target}:"]
    for name, sides in manifest["rows"].items():
        counts = [
            f"{side} {count} ({', '.join(f'{mode} {n}' for mode, n in modes.items())})"
            for side, modes in sides.items()
            for count in [sum(modes.values())]
        ]
        lines.append(f"  {name + '.parquet':20}{'; '.join(counts)}")
    notes = {name: count for name, count in manifest["notes"].items() if count}
    lines += [f"  {count:6} {name.replace('_', ' ')}" for name, count in notes.items()]
    lines += [f"         not written: {failure}" for failure in manifest["not_written"]]
    lines += [f"         {sentence}" for sentence in manifest["classical"]["left_out"]]
    for name, origins in manifest["checks"].items():
        if origins:
            listed = ", ".join(origins[:LISTED]) + (", ..." if len(origins) > LISTED else "")
            lines.append(f"  {len(origins):6} {CHECKS[name].description}: {listed}")
    return "\n".join(lines)


def _manifest(
    benchmark: Benchmark,
    found: Mapping[str, list[Prompt]],
    options: BuildOptions,
    folder: Path,
    answered: classical.ClassicalRows,
) -> dict[str, Any]:
    return {
        **stamp_folder(DATA, folder),
        "benchmark": benchmark.name,
        "settings": dict(benchmark.settings),
        "checked_for": {"rouge": options.reward.rouge, "gamma": options.reward.gamma},
        "limit": options.limit,
        "sources": dict(sorted(benchmark.sources.items())),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyarrow", "rerule")},
        },
        "rows": {
            "train": _counts(benchmark.train),
            "val": _counts(benchmark.val),
            "sft": _counts(benchmark.stage1),
            "probes": _counts(benchmark.probes),
            **answered.counts(),
        },
        "classical": answered.manifest(),
        "notes": dict(benchmark.notes),
        "not_written": list(benchmark.failures),
        "checks": {name: [prompt.origin for prompt in prompts] for name, prompts in found.items()},
        "files": {path.name: sha256_of_file(path) for path in sorted(folder.glob("*.parquet"))},
    }


def _counts(prompts: Iterable[Prompt]) -> dict[str, dict[str, int]]:
    """Prompts by side and mode."""
    counts: dict[str, Counter[str]] = {}
    for prompt in prompts:
        counts.setdefault(prompt.side, Counter())[prompt.mode] += 1
    return {side: dict(modes) for side, modes in counts.items()}
