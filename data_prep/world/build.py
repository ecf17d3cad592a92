"""Builds the world's folder: model/, {train,val,sft,probes}.parquet and manifest.json."""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep.atomic import MARKER, check_writable, new_folder
from data_prep.contract import Row, write_rows, write_sft_rows
from data_prep.folders import DATA
from data_prep.ownership import stamp_folder
from data_prep.sources.tables import sha256_of_file
from data_prep.world.config import WorldConfig
from data_prep.world.splits import World, make_world

_LIBRARIES = ("torch", "transformers", "tokenizers", "pyarrow")


def build(config: WorldConfig, target: Path, overwrite: bool) -> bool:
    """Builds the world into `target` unless it holds this very world; returns whether it was built.

    Raises ValueError when `target` holds something else and `overwrite` is false, or when the
    configuration is impossible; nothing is written then.
    """
    if is_up_to_date(config, target):
        return False
    check_writable(target, overwrite)
    world = make_world(config)
    with new_folder(target, overwrite) as folder:
        _write_rows(world, folder)
        accuracy = _write_model(world, config, folder / "model")
        _write_manifest(world, config, accuracy, folder)
    return True


def content_key(config: WorldConfig) -> str:
    """A hash of all that decides the result: configuration, this package's source and library versions."""
    digest = hashlib.sha256(json.dumps([asdict(config), _versions()], sort_keys=True).encode())
    package = Path(__file__).parent
    for source in [*sorted(package.glob("*.py")), package.parent / "contract.py"]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def is_up_to_date(config: WorldConfig, target: Path) -> bool:
    """Whether `target` was built from the same inputs and its files are as they were written."""
    if not (target / MARKER).is_file():
        return False
    try:
        manifest = json.loads((target / MARKER).read_text())
        wanted = manifest["files"].items()
        return manifest["key"] == content_key(config) and wanted <= _file_hashes(target).items()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return False


def _write_rows(world: World, folder: Path) -> None:
    write_rows(folder / "train.parquet", world.train)
    write_rows(folder / "val.parquet", world.val)
    write_rows(folder / "probes.parquet", world.probes)
    write_sft_rows(folder / "sft.parquet", world.sft)


def _write_model(world: World, config: WorldConfig, folder: Path) -> float:
    """Trains and writes tokenizer and model, one Hugging Face folder; returns the exact-answer share."""
    # torch and transformers take seconds to import: only a real build pays for them.
    from data_prep.world import model as base
    from data_prep.world.tokenizer import train_tokenizer

    tokenizer = train_tokenizer((text for pair in world.base_pairs for text in pair), config.vocab_size)
    model = base.make_model(config, tokenizer)
    examples = base.encode_pairs(tokenizer, world.base_pairs)
    probes = base.encode_pairs(tokenizer, [_prompt_and_gold(row) for row in world.probes])
    with base.one_thread():
        accuracy = base.train(model, examples, probes, config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return accuracy


def _prompt_and_gold(row: Row) -> tuple[str, str]:
    return row["prompt"][0]["content"], row["reward_model"]["ground_truth"]["golds"][0]


def _write_manifest(world: World, config: WorldConfig, accuracy: float, folder: Path) -> None:
    manifest = {
        **stamp_folder(DATA, folder),
        "key": content_key(config),
        "config": asdict(config),
        "versions": _versions(),
        "rows": _row_counts(world),
        "base_training_pairs": len(world.base_pairs),
        "base_probes_answered_exactly": accuracy,
        "files": _file_hashes(folder),
    }
    (folder / MARKER).write_text(json.dumps(manifest, indent=2) + "\n")


def _row_counts(world: World) -> dict[str, Any]:
    """Rows by file, section and mode."""
    counts: dict[str, Any] = {
        name: _by_section_and_mode(rows)
        for name, rows in (("train", world.train), ("val", world.val), ("probes", world.probes))
    }
    counts["sft"] = dict(Counter(row["extra_info"]["mode"] for row in world.sft))
    return counts


def _by_section_and_mode(rows: list[Row]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["extra_info"]["section"], Counter())[row["extra_info"]["mode"]] += 1
    return {section: dict(modes) for section, modes in counts.items()}


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}}


def _file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file but the manifest, by path inside the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MARKER)
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}
