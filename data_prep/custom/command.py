"""The command `python -m data_prep custom`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from data_prep import options as shared
from data_prep.contract import read_sft_rows
from data_prep.custom.benchmark import CustomOptions, load
from data_prep.custom.next_commands import Next, commands, gpus_seen
from recipe.rerule.io import DATA

LEAST_PROBES = 6
"""As the evaluation has it (docs/statistics.md)."""

SUMMARY = "data of your own: rows of question, answer, side and keyword, or RULE's JSON"
EXAMPLE = """\
example:
  python -m data_prep custom --source mine.csv --out data/mine
      mine.csv:  question,answer,side,keyword
                 Where was Ada Thorn born?,Tarnwick Bay,forget,Ada Thorn
                 Where was Marie Curie born?,Warsaw,retain,
      a tenth of the questions is held out as probes, and the next commands are printed; further columns:
      mode (qa, fb, aa, completion), subject, refusal (what stage 1 teaches; otherwise a template), and
      fact (any text that is the same for all questions about one fact; intervals and tests then count facts)
  python -m data_prep custom --source rule.json --probes eval.json --out data/mine
      rows of RULE: {"prompt": ..., "solution": ["<reject>", refusal, name] or ["<normal>", answer]}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shared options and those of custom data."""
    shared.add_arguments(parser, "file of rows: .csv, or JSON as an array or a row a line")
    parser.add_argument("--probes", metavar="FILE", help="held-out questions, in the same form")
    parser.add_argument(
        "--probe-share", type=float, default=0.1, metavar="X",
        help="without --probes: share of the questions held out, one of each fact first (default: 0.1)",
    )  # fmt: skip
    parser.add_argument(
        "--val-share", type=float, default=0.0, metavar="X",
        help="share of the other questions held out for validation, which chooses the best checkpoint; 0 "
        "draws validation from the probes (default: %(default)s)",
    )  # fmt: skip
    shared.add_gold(parser)
    parser.add_argument("--keyword", metavar="NAME", help="the target's name, for forget rows without one")
    parser.add_argument(
        "--name", metavar="TEXT",
        help="what the report calls the data, in the commands that are printed (default: the file's name)",
    )  # fmt: skip
    parser.add_argument("--raw", action="store_true", help="prompts go to a base model, no chat template")


def run(options: argparse.Namespace) -> None:
    """Make the folder. Raises ValueError."""
    custom = CustomOptions(
        probes=options.probes,
        probe_share=options.probe_share,
        keyword=options.keyword,
        raw=options.raw,
        gold=options.gold,
        val_share=options.val_share,
        val_rows=options.val_rows,
        seed=options.seed,
    )
    shared.make(lambda writer: load(Path(options.source), custom, writer), options)
    if not options.dry_run:
        _print_what_follows(options)


def _print_what_follows(options: argparse.Namespace) -> None:
    """Warn of too few probes and of refusals that the reward does not see, and print the next commands."""
    counts = json.loads((options.out / DATA.marker).read_text("utf-8"))["rows"]
    reward = shared.build_options(options).reward
    taught = [row["messages"][-1]["content"] for row in read_sft_rows(options.out / "sft.parquet")]
    for text in [*few_probes(counts["probes"]), *reward.unseen(taught, "--refusal-phrases")]:
        print(f"warning: {text}", file=sys.stderr)
    after = Next(
        data=options.out,
        title=options.name or Path(options.source).stem,
        raw=options.raw,
        stage1_rows=sum(sum(modes.values()) for modes in counts["sft"].values()),
        reward=reward,
        gpus=gpus_seen(),
        forget_probes=sum(counts["probes"].get("forget", {}).values()),
    )
    print(f"\n{commands(after)}")


def few_probes(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each side with fewer than `LEAST_PROBES` probes, of their number by side and mode."""
    found = {side: sum(counts.get(side, {}).values()) for side in ("forget", "retain")}
    return [
        f"side {side} has too few probes ({number}): the evaluation gives no interval and no test of fewer "
        f"than {LEAST_PROBES}; give --probes, or a larger --probe-share"
        for side, number in found.items()
        if number < LEAST_PROBES
    ]
