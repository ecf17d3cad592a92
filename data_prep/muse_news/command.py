"""The command `python -m data_prep muse-news`."""

from __future__ import annotations

import argparse

from data_prep.muse import command as muse
from data_prep.muse.benchmark import Corpus

SUMMARY = "MUSE-News: make a base model forget news articles"
EXAMPLE = """\
example:
  python -m data_prep muse-news --source data/muse_news_raw --out data/muse_news
      from knowmem/{forget_qa,forget_qa_icl,retain_qa,retain_qa_icl}.json (MUSE's), forget_train_qa.json
      (question, answer) and boundary_neighbor_qa.json (prompt, gold): prompts for a base model, sent raw
  python -m data_prep muse-news --source muse-bench/MUSE-News --passages articles.json --base-url URL \\
      --model NAME --out data/muse_news
      the probes from the Hub; an endpoint writes the training questions after articles
"""
NEWS = Corpus("muse_news", "this news story")
"""The articles have no name in common: a refusal says what a question is about."""

add_arguments = muse.add_arguments


def run(options: argparse.Namespace) -> None:
    """Make the folder. Raises ValueError."""
    muse.run(NEWS, options)
