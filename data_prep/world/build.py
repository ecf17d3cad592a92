"""The world's folder: model/, retain_model/ on request, the rows' parquet files and manifest.json."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep import options as shared
from data_prep.build import BuildOptions, write
from data_prep.world.config import WorldConfig
from data_prep.world.splits import World, make_world
from recipe.rerule.io import DATA, check_writable, file_sha256, new_folder
from reward import RewardConfig

_LIBRARIES = ("rerule", "torch", "transformers", "tokenizers", "pyarrow")


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
        models = _write_models(world, config, folder, retain_model)
        manifest = write(world.benchmark, folder, BuildOptions(RewardConfig()))
        manifest |= {"versions": _versions(), **models}
        manifest["files"] = _file_hashes(folder)
        (folder / DATA.marker).write_text(json.dumps(manifest, indent=2) + "\n")
    return True


def is_up_to_date(config: WorldConfig, target: Path, retain_model: bool = False) -> bool:
    """Whether `target` has these settings, is of these versions, and has its files as they were written.

    With `retain_model`, whether it holds that model too.
    """
    try:
        manifest = json.loads((target / DATA.marker).read_text())
        same = (manifest["settings"], manifest["versions"]) == (asdict(config), _versions())
        whole = manifest["files"].items() <= _file_hashes(target).items()
        return same and whole and (not retain_model or "retain_model" in manifest)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return False


def _write_models(world: World, config: WorldConfig, folder: Path, retain_model: bool) -> dict[str, Any]:
    """Trains and writes tokenizer and models, a Hugging Face folder each; returns what the manifest says."""
    # torch and transformers take seconds to import: only a real build pays for them.
    from data_prep.world import model as base

    tokenizer = base.train_tokenizer((text for pair in world.base_pairs for text in pair), config.vocab_size)
    model, training = base.trained(config, tokenizer, world.base_pairs, _asked(world))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    said: dict[str, Any] = {
        "base_training_pairs": len(world.base_pairs),
        "base_probes_answered_exactly": training.answered,
    }
    if retain_model:
        asked, epochs = _asked(world, "retain", "retain_unseen"), training.epochs
        model, training = base.trained(config, tokenizer, world.retain_pairs, asked, epochs, "retain model")
        model.save_pretrained(folder / "retain_model")
        tokenizer.save_pretrained(folder / "retain_model")
        forget = base.encode_pairs(tokenizer, _asked(world, "forget"))
        said["retain_model"] = {
            "training_pairs": len(world.retain_pairs),
            "epochs": training.epochs,
            "retain_probes_answered_exactly": training.answered,
            "forget_probes_answered_exactly": base.exact_share(model, forget, config.batch_size),
        }
    return said


def _asked(world: World, *sections: str) -> list[tuple[str, str]]:
    """Question and answer of the probes of these sections; of all where none is named."""
    return [
        (probe.query, probe.golds[0])
        for probe in world.benchmark.probes
        if not sections or probe.section in sections
    ]


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}}


def _file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file but the manifest, by path inside the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != DATA.marker)
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}


# ---- the command ----


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares --out, --overwrite, --retain-model and an option for each setting of WorldConfig."""
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    add("--overwrite", action="store_true", help="replace a different world in DIR")
    text = "also train retain_model/, which never saw the people to be forgotten: the base model's recipe, "
    add("--retain-model", action="store_true", help=f"{text}seed and epochs (twice the time)")
    shared.add_settings(parser, WorldConfig)


def run(options: argparse.Namespace) -> None:
    """Builds the world that the options describe. Raises ValueError as `build` does."""
    config = shared.settings_of(WorldConfig, options)
    built = build(config, options.out, options.overwrite, options.retain_model)
    print(f"{options.out}: {'built' if built else 'up to date'}")


COMMAND = shared.Command(
    "make the embedded world: rows, tokenizer and a small model that knows the answers",
    """\
example:
  python -m data_prep world --out outputs/world
      makes outputs/world/{model/, train.parquet, val.parquet, sft.parquet, probes.parquet, manifest.json}
  python -m data_prep world --out outputs/world
      says that it is up to date, at once
  python -m data_prep world --out outputs/world_with_retain --retain-model
      the same with retain_model/, a model that never knew the people to be forgotten
  python -m data_prep world --out outputs/world --retain-people 24 --overwrite
      makes a larger one in its place
""",
    add_arguments,
    run,
)
