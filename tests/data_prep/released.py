"""Folders as release 0.1.0 wrote them: files and keys of the marker, listed from what its commands wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.folders import DATA
from data_prep.ownership import Kind
from recipe.rerule.evaluation.naturalness.folder import NATURALNESS
from recipe.rerule.evaluation.output import EVALUATION, UTILITY

ROWS = ("train.parquet", "val.parquet", "sft.parquet", "probes.parquet")
BENCHMARK = {
    "benchmark": "custom", "settings": {}, "checked_for": {}, "limit": None, "sources": {}, "versions": {},
    "rows": {}, "notes": {}, "not_written": [], "checks": {}, "files": dict.fromkeys(ROWS, "sha256"),
}  # fmt: skip
WORLD = {
    "key": "sha256", "config": {}, "versions": {}, "rows": {}, "base_training_pairs": 1,
    "base_probes_answered_exactly": 1.0, "files": {},
}  # fmt: skip
MODEL = (
    "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    "tokenizer_config.json",
)  # fmt: skip
TARGETS = ["10_Prince_Harry,_Duke_of_Sussex", "1_Stephen_King"]
META = {
    "benchmark": "tofu", "command": "", "models": {}, "probes": {}, "rouge_l_convention": "recall",
    "benchmark_settings": {}, "decoding": {}, "anchors": {}, "versions": {},
}  # fmt: skip
UTILITY_META = {
    "benchmark": "rwku utility sets", "command": "", "model": "", "target": "", "questions": {},
    "limit": None, "backend": "lm-eval hf", "dtype": "auto", "chat": True, "versions": {},
}  # fmt: skip
SCORES = {
    "results": {}, "anchors": {}, "intervals": {}, "comparisons": [], "counts": {}, "missing": [], "note": "",
    "rubric": {}, "judge": {}, "responses_sha256": "", "sections": [], "limit": None, "command": "",
}  # fmt: skip
EVALUATED = ("results.json", "anchors.json", "intervals.json", "comparisons.json", "responses.jsonl")


@dataclass(frozen=True)
class Released:
    """A folder of 0.1.0: its marker, and its files with the marker's own."""

    name: str
    kind: Kind
    marker: dict[str, Any]
    files: tuple[str, ...]


def _of_targets() -> tuple[str, ...]:
    return tuple(f"{target}/{name}" for target in TARGETS for name in (*ROWS, "manifest.json"))


RELEASED = [
    Released("benchmark", DATA, BENCHMARK, (*ROWS, "manifest.json")),
    Released("world", DATA, WORLD, (*ROWS, *(f"model/{name}" for name in MODEL), "manifest.json")),
    Released("targets", DATA, {"benchmark": "rwku", "targets": TARGETS}, (*_of_targets(), "manifest.json")),
    Released("evaluation", EVALUATION, META, (*EVALUATED, "logs/a b@3/TOFU_EVAL.json", "meta.json")),
    Released("evaluation with texts", EVALUATION, META, (*EVALUATED, "texts.jsonl", "meta.json")),
    Released("utility", UTILITY, UTILITY_META, ("results.json", "samples.jsonl", "meta.json")),
    Released("naturalness", NATURALNESS, SCORES, ("naturalness.json", "naturalness.jsonl")),
]


def put_released(one: Released, folder: Path) -> Path:
    """Write such a folder; its files hold their names."""
    for name in one.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / one.kind.marker).write_text(json.dumps(one.marker))
    return folder
