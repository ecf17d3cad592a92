"""The command `python -m data_prep rwku`."""

from __future__ import annotations

import argparse
import json
from functools import partial

from tqdm import tqdm

from data_prep import options as shared
from data_prep.build import summary, write
from data_prep.prompts import Benchmark
from data_prep.rwku.benchmark import RwkuOptions, load
from data_prep.rwku.targets import choose, target_folders
from data_prep.writers import explained
from recipe.rerule.io import DATA, new_folder, stamp_folder

SUMMARY = "RWKU: forget a real and famous person, keep their neighbours; a folder per person"
EXAMPLE = """\
example:
  python -m data_prep rwku --source RULE/data/RWKU --out data/rwku
      data/rwku/1_Stephen_King and so on: of each target 600 prompts to forget, 600 on others in its place,
      600 refusals for stage 1, and RWKU's probes
  python -m data_prep rwku --source RULE/data/RWKU --target "Stephen King" --out data/king
      one of them; a folder holds the targets of one command
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shared options and RWKU's own."""
    shared.add_arguments(parser, "folder of RWKU's target folders, or its name on the Hub (jinzhuoran/RWKU)")
    parser.add_argument(
        "--target", action="append", default=[], metavar="NAME",
        help="a target by name; may be given several times (default: all)",
    )  # fmt: skip
    shared.add_gold(
        parser, "; or a folder with such a file for each target, named as its folder (1_Stephen_King.json)"
    )
    shared.add_stage1_modes(parser)


def run(options: argparse.Namespace) -> None:
    """Make a folder per target, all of them or none. Raises ValueError."""
    rwku = RwkuOptions(tuple(options.stage1_modes), options.val_rows, options.gold, options.seed)
    if not options.dry_run:
        shared.check_out(options)
    chosen = choose(target_folders(options.source), options.target)
    loads = [partial(load, folder, rwku) for folder in chosen]
    if options.dry_run:
        shared.print_estimate(loads, options)
    else:
        _build([shared.loaded(load_target, options) for load_target in loads], options)


def _build(benchmarks: list[Benchmark], options: argparse.Namespace) -> None:
    cuts = shared.build_options(options)
    names = [str(benchmark.settings["source"]) for benchmark in benchmarks]
    with new_folder(options.out, options.overwrite) as draft:
        for name, benchmark in zip(names, tqdm(benchmarks, unit="target", disable=None), strict=True):
            (draft / name).mkdir()
            with explained(benchmark.failures):
                manifest = write(benchmark, draft / name, cuts)
            tqdm.write(summary(options.out / name, manifest))
        manifest = {**stamp_folder(DATA, draft), "benchmark": "rwku", "targets": names}
        (draft / DATA.marker).write_text(json.dumps(manifest, indent=1) + "\n")
