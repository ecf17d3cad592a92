"""Time and page size of a report on as many probes as RWKU has: python -m benchmarks.report_cost [--probes N]

Ten targets, four models, random words: answers of this kind compress worse than real ones, which repeat.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation import tidy

PROBES, TARGETS = 13_131, 10
MODELS = {
    "original": (0.75, 0.9),
    "rejection steering": (0.55, 0.8),
    "RULE": (0.28, 0.74),
    "ReRULE": (0.24, 0.75),
}
"""Shares of right answers on the forget and the retain side."""
_KINDS = (
    ("forget", "fb"),
    ("forget", "qa"),
    ("forget", "aa"),
    ("forget", "aa"),
    ("retain", "fb"),
    ("retain", "qa"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report_cost", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--probes", type=int, default=PROBES, help="in all targets together (default: %(default)s)"
    )
    probes = parser.parse_args().probes
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "recipe.rerule.report", "--out", f"{scratch}/out"]
        for target in range(TARGETS):
            share = range(target, probes, TARGETS)
            command += ["--results", str(write_target(Path(scratch, f"target_{target}"), target, share))]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        size = Path(scratch, "out", "report.html").stat().st_size
    print(f"{probes} probes, {len(MODELS)} models: {seconds:.1f} s, page of {size / 1e6:.2f} MB")


def write_target(folder: Path, target: int, indices: range) -> Path:
    """An evaluation folder of one target with a record a model and probe."""
    draw = random.Random(target)
    vocabulary = [
        "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(8000)
    ]
    probes = [_probe(draw, vocabulary, target, index) for index in indices]
    records = [_record(draw, vocabulary, model, probe) for model in MODELS for probe in probes]
    folder.mkdir()
    files: dict[str, Any] = {
        "results.json": {model: _metrics([r for r in records if r["model"] == model]) for model in MODELS},
        "meta.json": {
            "benchmark": "rwku",
            "rouge_l_convention": "rwku",
            "probes": {"file": f"target_{target}.parquet", "sha256": str(target)},
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    tidy.write(folder, tidy.from_rows(records))
    return folder


def _words(draw: random.Random, vocabulary: list[str], least: int, most: int) -> str:
    return " ".join(draw.choices(vocabulary, k=draw.randint(least, most))).capitalize()


def _probe(draw: random.Random, vocabulary: list[str], target: int, index: int) -> dict[str, Any]:
    section, mode = draw.choice(_KINDS)
    return {
        "probe": index,
        "side": section,
        "kind": mode,
        "fact": f"probe {index}",
        "sample": 0,
        "family": f"attack {draw.randint(1, 9)}" if mode == "aa" else "direct",
        "subject": f"Target {target}" if section == "forget" else f"Neighbour {draw.randint(1, 40)}",
        "target": f"Target {target}",
        "prompt": _words(draw, vocabulary, 8, 22) + "?",
        "golds": [_words(draw, vocabulary, 1, 4)],
    }


def _record(draw: random.Random, vocabulary: list[str], model: str, probe: dict[str, Any]) -> dict[str, Any]:
    right = draw.random() < MODELS[model][probe["side"] == "retain"]
    refused = not right and draw.random() < 0.5
    wrong = f"I'm not certain about {probe['target']}." if refused else _words(draw, vocabulary, 2, 12)
    response = probe["golds"][0] if right else wrong
    return {"model": model, **probe, "response": response, "rouge_l": float(right), "refused": refused}


def _metrics(records: list[dict[str, Any]]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for record in records:
        for mode in (record["kind"], "all"):
            groups.setdefault(f"{record['side']}/{mode}", []).append(record["rouge_l"])
    return {name: sum(values) / len(values) for name, values in groups.items()}


if __name__ == "__main__":
    main()
