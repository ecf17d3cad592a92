"""The command `python -m data_prep tofu`."""

from __future__ import annotations

import argparse

from data_prep import options as shared
from data_prep.sources import open_source
from data_prep.tofu.benchmark import RETAIN_SETS, SPLITS, TofuOptions, load
from recipe.rerule.process import positive

SUMMARY = "TOFU: forget fictitious authors, keep the others"
EXAMPLE = """\
example:
  python -m data_prep tofu --source locuslab/TOFU --out data/tofu
      forget01: 40 questions on two authors, 40 on others to be kept, 80 refusals for stage 1, 657 probes
  python -m data_prep tofu --source my_copy_of_tofu --split forget05 --out data/tofu05
      the same from a folder with forget05.json, forget05_perturbed.json, retain95.json,
      retain_perturbed.json, real_authors_perturbed.json and world_facts_perturbed.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shared options and TOFU's own."""
    shared.add_arguments(
        parser, "folder of TOFU's files, or its name on the Hugging Face Hub (locuslab/TOFU)"
    )
    parser.add_argument(
        "--split", choices=SPLITS, default="forget01", help="what to forget (default: %(default)s)"
    )
    parser.add_argument(
        "--boundary",
        choices=("retain", "written"),
        default="retain",
        help="questions on TOFU's other authors, or those to forget, rewritten around real people by the "
        "model behind --base-url (default: %(default)s)",
    )
    parser.add_argument(
        "--boundary-rows", type=positive, metavar="N",
        help="training prompts on authors to be kept (default: as many as there are to forget)",
    )  # fmt: skip
    parser.add_argument(
        "--retain-set", choices=RETAIN_SETS, default="boundary",
        help="rows of retain.parquet: the boundary prompts, all rows of TOFU's retain table that are no "
        "probes, or all of them, as TOFU's published methods train on (default: %(default)s)",
    )  # fmt: skip
    shared.add_stage1_modes(parser)


def run(options: argparse.Namespace) -> None:
    """Make the folder. Raises ValueError."""
    tofu = TofuOptions(
        split=options.split,
        boundary=options.boundary,
        boundary_rows=options.boundary_rows,
        stage1_modes=tuple(options.stage1_modes),
        retain_set=options.retain_set,
        val_rows=options.val_rows,
        seed=options.seed,
    )
    shared.make(lambda writer: load(open_source(options.source), tofu, writer), options)
