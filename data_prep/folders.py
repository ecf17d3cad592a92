"""The folders that data_prep writes, as a kind of folder that a later command may replace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from data_prep.ownership import Kind, Patterns

_ROWS = r"(train|val|sft|probes)\.parquet"
_MODEL = (
    r"model/(chat_template\.jinja|config\.json|generation_config\.json|model\.safetensors|tokenizer\.json|"
    r"tokenizer_config\.json|special_tokens_map\.json)"
)
_BENCHMARK_KEYS = {
    "benchmark", "settings", "checked_for", "limit", "sources", "versions", "rows", "notes", "not_written",
    "checks", "files",
}  # fmt: skip
_WORLD_KEYS = {
    "key", "config", "versions", "rows", "base_training_pairs", "base_probes_answered_exactly", "files",
}  # fmt: skip


def _released(manifest: Mapping[str, Any]) -> Patterns | None:
    """What 0.1.0 wrote with such a manifest: of a benchmark, of the world, or of all targets of RWKU."""
    keys = set(manifest)
    if keys == _BENCHMARK_KEYS:
        return [_ROWS]
    if keys == _WORLD_KEYS:
        return [_ROWS, _MODEL]
    targets = manifest.get("targets")
    if keys == {"benchmark", "targets"} and manifest["benchmark"] == "rwku" and isinstance(targets, list):
        return [
            f"{re.escape(str(name))}/({_ROWS}|manifest\\.json)" for name in targets if "/" not in str(name)
        ]
    return None


DATA = Kind("rerule/data", "manifest.json", _released)
