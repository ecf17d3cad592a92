"""What the corpora of MUSE have in common, declared."""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe.rerule.evaluation.benchmarks.muse.conventions import CONVENTIONS
from recipe.rerule.evaluation.columns import PERCENT, Column
from recipe.rerule.evaluation.options import Option
from recipe.rerule.evaluation.published import PublishedFigures
from recipe.rerule.evaluation.recovery import Recovery, on_the_forget_side
from recipe.rerule.evaluation.registry import Benchmark
from recipe.rerule.evaluation.scoring import LogScorer

if TYPE_CHECKING:
    from recipe.rerule.evaluation.evaluator import Evaluator
    from recipe.rerule.evaluation.logs.metrics import Scored
    from recipe.rerule.evaluation.logs.open_unlearning import Log

COLUMNS = (
    Column("verbmem_f", "forget", "VerbMem", "low", *PERCENT),
    Column("knowmem_f", "forget", "KnowMem", "low", *PERCENT),
    Column("knowmem_r", "retain", "KnowMem", "high", *PERCENT),
    # In per cent by definition.
    Column("privleak", "privacy", "PrivLeak", "zero", 1.0, ".1f"),
)
LEGEND = (
    "In per cent. VerbMem: ROUGE-L F1 of continued passages; KnowMem: of answers to questions, "
    "on retained text the utility; PrivLeak: how far membership inference tells forgotten text apart, "
    "against a retrained model."
)
OPTIONS = (
    Option("prompts", f"{', '.join(CONVENTIONS)} (default: the first)", metavar="NAME"),
    Option(
        "retain_log",
        "MUSE_EVAL.json of a retained model, which becomes a row of the table; with --texts for PrivLeak "
        "(default: MUSE's own constant)",
        Path,
        "FILE",
    ),
    Option("texts", "MUSE's folder privleak (forget.json, holdout.json)", Path, "DIR"),
)
_ENDINGS = ("knowmem_ROUGE", "verbmem_ROUGE")
"""How names of metrics end that only MUSE's logs hold."""


def muse_benchmark(
    name: str,
    title: str,
    alias: tuple[str, ...],
    retrained_auc: float,
    published: PublishedFigures,
    score_example: str = "",
) -> Benchmark:
    """A corpus of MUSE; `retrained_auc` is the Min-40 % AUC of its retrained model, as `roc.auc` counts."""
    return Benchmark(
        name=name,
        title=title,
        columns=COLUMNS,
        legend=LEGEND,
        evaluator=partial(_evaluator, name=name, retrained_auc=retrained_auc),
        options=OPTIONS,
        scorer=SCORER,
        aliases=alias,
        fact=fact,
        recovery=Recovery(counts=_counts),
        pair=("knowmem_f", "knowmem_r"),
        published=published,
        fractions=r"(knowmem|verbmem)_[fr]|.*_ROUGE|.*_refusal_rate|.*extraction_strength.*|.*exact_memorization",
        units={"privleak": "PrivLeak: per cent."},
        score_example=score_example,
    )


def _evaluator(options: argparse.Namespace, name: str, retrained_auc: float) -> Evaluator:
    from recipe.rerule.evaluation.benchmarks.muse.evaluator import muse_evaluator

    return muse_evaluator(options, name, retrained_auc)


def _score(
    log: Log, retain_log: Log | None, wanted: Sequence[str] | None, options: argparse.Namespace
) -> Scored:
    from recipe.rerule.evaluation.benchmarks.muse.log import score

    return score(log, retain_log, wanted=wanted, variants=options.variants)


def _holds(content: Mapping[str, Any]) -> bool:
    return any(str(name).endswith(_ENDINGS) for name in content)


def fact(record: Mapping[str, Any]) -> Hashable:
    """MUSE repeats some questions; a passage is asked once."""
    return record["section"], record["mode"], record["prompt"]


def _counts(record: Mapping[str, Any]) -> bool:
    """Questions alone: what follows a passage is long, and partly guessed from the passage."""
    return on_the_forget_side(record) and record["mode"] == "qa"


SCORER = LogScorer("muse-books", "MUSE", _holds, _score)
"""Logs do not say of which corpus they are."""
