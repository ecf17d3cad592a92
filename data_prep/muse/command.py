"""What the commands of MUSE's corpora share."""

from __future__ import annotations

import argparse

from data_prep import options as shared
from data_prep.muse.benchmark import EXAMPLES, Corpus, MuseOptions, load
from data_prep.sources import open_source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shared options and MUSE's own."""
    shared.add_arguments(parser, "folder of MUSE's files and of training questions, or a name on the Hub")
    parser.add_argument(
        "--examples", choices=EXAMPLES, default="neutral",
        help="few-shot examples before training questions (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--passages", metavar="FILE",
        help="passages of the corpus, a JSON array or a line each: their beginnings are refused too, and "
        "questions on them are written where the source has none",
    )  # fmt: skip
    parser.add_argument(
        "--retain-passages", metavar="FILE", help="other passages, whose beginnings are to be continued"
    )
    parser.add_argument(
        "--refusals", metavar="FILE",
        help="stage-1 refusals, a JSON array or a line each; its misspelt names corrected (default: ours)",
    )  # fmt: skip


def run(corpus: Corpus, options: argparse.Namespace) -> None:
    """Make the folder. Raises ValueError."""
    muse = MuseOptions(
        examples=options.examples,
        refusals=options.refusals,
        passages=options.passages,
        retain_passages=options.retain_passages,
        val_rows=options.val_rows,
        seed=options.seed,
    )
    shared.make(lambda writer: load(open_source(options.source), corpus, muse, writer), options)
