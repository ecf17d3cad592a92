"""Builds the world's folder: model/, retain_model/ on request, the rows' parquet files and manifest.json."""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep.classical import ClassicalRows, of_rows
from data_prep.contract import Row, sft_row, write_rows, write_sft_rows
from data_prep.sources.tables import sha256_of_file
from data_prep.world.config import WorldConfig
from data_prep.world.splits import World, make_world
from recipe.rerule.io import DATA, check_writable, new_folder, stamp_folder

_LIBRARIES = ("torch", "transformers", "tokenizers", "pyarrow")


def build(config: WorldConfig, target: Path, overwrite: bool, retain_model: bool = False) -> bool:
    """Builds the world into `target` unless it holds this very world; returns whether it was built.

    With `retain_model`, a second model is trained as the base model is, for as many epochs, on all that the
    base model learns but the questions on people to be forgotten.

    Raises ValueError when `target` holds something else and `overwrite` is false, or when the
    configuration is impossible; nothing is written then.
    """
    if is_up_to_date(config, target, retain_model):
        return False
    check_writable(target, overwrite)
    world = make_world(config)
    with new_folder(target, overwrite) as folder:
        _write_rows(world, config, folder)
        models = _write_models(world, config, folder, retain_model)
        _write_manifest(world, config, models, folder)
    return True


def content_key(config: WorldConfig) -> str:
    """A hash of all that decides the result: configuration, this package's source and library versions."""
    digest = hashlib.sha256(json.dumps([asdict(config), _versions()], sort_keys=True).encode())
    package = Path(__file__).parent
    for source in [
        *sorted(package.glob("*.py")),
        *(package.parent / name for name in ("contract.py", "classical.py")),
    ]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def is_up_to_date(config: WorldConfig, target: Path, retain_model: bool = False) -> bool:
    """Whether `target` was built from the same inputs and its files are as they were written.

    With `retain_model`, whether it holds that model too.
    """
    if not (target / DATA.marker).is_file():
        return False
    try:
        manifest = json.loads((target / DATA.marker).read_text())
        wanted = manifest["files"].items()
        if retain_model and "retain_model" not in manifest:
            return False
        return manifest["key"] == content_key(config) and wanted <= _file_hashes(target).items()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return False


def _write_rows(world: World, config: WorldConfig, folder: Path) -> None:
    write_rows(folder / "train.parquet", world.train)
    write_rows(folder / "val.parquet", world.val)
    write_rows(folder / "probes.parquet", world.probes)
    write_sft_rows(folder / "sft.parquet", world.sft)
    _classical(world, config).write(folder)


def _classical(world: World, config: WorldConfig) -> ClassicalRows:
    """Rows for the methods that train on answers: stage 2's questions, and stage 1's refusals."""
    answered = {
        side: [_answered(row) for row in world.train if row["reward_model"]["ground_truth"]["type"] == side]
        for side in ("forget", "retain")
    }
    return of_rows(
        gold=answered["forget"],
        retain=answered["retain"],
        alternate=world.sft,
        texts={},
        phrases=None,
        seed=config.seed,
    )


def _answered(row: Row) -> Row:
    """The stage-1 row of a question and its right answer."""
    prompt, gold = _prompt_and_gold(row)
    extra_info = {key: row["extra_info"][key] for key in ("index", "mode", "subject")}
    return sft_row(prompt=prompt, answer=gold, extra_info=extra_info)


def _write_models(world: World, config: WorldConfig, folder: Path, retain_model: bool) -> dict[str, Any]:
    """Trains and writes tokenizer and models, a Hugging Face folder each; returns what the manifest says."""
    # torch and transformers take seconds to import: only a real build pays for them.
    from data_prep.world import model as base
    from data_prep.world.tokenizer import train_tokenizer

    tokenizer = train_tokenizer((text for pair in world.base_pairs for text in pair), config.vocab_size)
    model, training = base.trained(config, tokenizer, world.base_pairs, _asked(world))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    said: dict[str, Any] = {
        "base_training_pairs": len(world.base_pairs),
        "base_probes_answered_exactly": training.answered,
    }
    if not retain_model:
        return said
    model, training = base.trained(
        config,
        tokenizer,
        world.retain_pairs,
        _asked(world, "retain", "retain_unseen"),
        training.epochs,
        "retain model",
    )
    model.save_pretrained(folder / "retain_model")
    tokenizer.save_pretrained(folder / "retain_model")
    forget = base.encode_pairs(tokenizer, _asked(world, "forget"))
    return said | {
        "retain_model": {
            "training_pairs": len(world.retain_pairs),
            "epochs": training.epochs,
            "retain_probes_answered_exactly": training.answered,
            "forget_probes_answered_exactly": base.exact_share(model, forget, config.batch_size),
        }
    }


def _asked(world: World, *sections: str) -> list[tuple[str, str]]:
    """Question and answer of the probes of these sections; of all where none is named."""
    return [
        _prompt_and_gold(row)
        for row in world.probes
        if not sections or row["extra_info"]["section"] in sections
    ]


def _prompt_and_gold(row: Row) -> tuple[str, str]:
    return row["prompt"][0]["content"], row["reward_model"]["ground_truth"]["golds"][0]


def _write_manifest(world: World, config: WorldConfig, models: Mapping[str, Any], folder: Path) -> None:
    answered = _classical(world, config)
    manifest = {
        **stamp_folder(DATA, folder),
        "key": content_key(config),
        "config": asdict(config),
        "versions": _versions(),
        "rows": _row_counts(world) | answered.counts(),
        "classical": answered.manifest(),
        **models,
        "files": _file_hashes(folder),
    }
    (folder / DATA.marker).write_text(json.dumps(manifest, indent=2) + "\n")


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
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != DATA.marker)
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}
