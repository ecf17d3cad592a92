"""The command `python -m data_prep world`."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from data_prep.world.build import build
from data_prep.world.config import WorldConfig, knob_help

SUMMARY = "make the embedded world: rows, tokenizer and a small model that knows the answers"
EXAMPLE = """\
example:
  python -m data_prep world --out outputs/world
      makes outputs/world/{model/, train.parquet, val.parquet, sft.parquet, probes.parquet, manifest.json}
  python -m data_prep world --out outputs/world
      says that it is up to date, at once
  python -m data_prep world --out outputs/world_with_retain --retain-model
      the same with retain_model/, a model that never knew the people to be forgotten
  python -m data_prep world --out outputs/world --retain-people 24 --overwrite
      makes a larger one in its place
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares --out, --overwrite and one option for every knob of WorldConfig."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument("--overwrite", action="store_true", help="replace a different world in DIR")
    parser.add_argument(
        "--retain-model", action="store_true",
        help="also train retain_model/, which never saw the people to be forgotten: the base model's recipe, "
        "seed and epochs (twice the time)",
    )  # fmt: skip
    helps = knob_help()
    for knob in fields(WorldConfig):
        parser.add_argument(
            "--" + knob.name.replace("_", "-"),
            type=type(knob.default),
            default=knob.default,
            metavar="N" if isinstance(knob.default, int) else "X",
            help=f"{helps[knob.name]} (default: %(default)s)",
        )


def run(options: argparse.Namespace) -> None:
    """Builds the world that the options describe. Raises ValueError as `build` does."""
    config = WorldConfig(**{knob.name: getattr(options, knob.name) for knob in fields(WorldConfig)})
    built = build(config, options.out, options.overwrite, options.retain_model)
    print(f"{options.out}: {'built' if built else 'up to date'}")
