"""The command `python -m data_prep muse-books`."""

from __future__ import annotations

import argparse

from data_prep.muse import command as muse
from data_prep.muse.benchmark import Corpus

SUMMARY = "MUSE-Books: make a base model forget a series of books"
EXAMPLE = """\
example:
  python -m data_prep muse-books --source data/muse_raw --out data/muse_books
      from knowmem/{forget_qa,forget_qa_icl,retain_qa,retain_qa_icl}.json (MUSE's), forget_train_qa.json
      (question, answer) and boundary_neighbor_qa.json (prompt, gold): prompts for a base model, sent raw
  python -m data_prep muse-books --source data/muse_raw --examples label_dependent --out data/muse_rule
      with RULE's few-shot examples, which differ by side
"""


BOOKS = Corpus("muse_books", "Harry Potter")

add_arguments = muse.add_arguments


def run(options: argparse.Namespace) -> None:
    """Make the folder. Raises ValueError."""
    muse.run(BOOKS, options)
