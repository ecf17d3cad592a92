"""The embedded world, declared; and all that data of one's own have in common with it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from recipe.rerule.evaluation.columns import Column
from recipe.rerule.evaluation.options import Option
from recipe.rerule.evaluation.recovery import Recovery, without_families
from recipe.rerule.evaluation.registry import Benchmark
from recipe.rerule.evaluation.scoring import RecordMetrics, RecordScorer

if TYPE_CHECKING:
    from recipe.rerule.evaluation.evaluator import Evaluator

MAX_TOKENS = 32
PHRASINGS = 100
"""Numbers that the world keeps for the phrasings of a fact; `data_prep.world.splits` counts so."""
CONVENTIONS = ("unicode", "recall", "tofu", "rwku")
"""Those of reward.rouge that are a recall, as the metrics' names say; the first is the default."""
COLUMNS = (
    Column("forget/recall", "forget", "recall", "low"),
    Column("forget/qa/recall", "forget", "QA", "low"),
    Column("forget/fb/recall", "forget", "FB", "low"),
    Column("forget/aa/recall", "forget", "AA", "low"),
    Column("forget/refusal_rate", "forget", "refuse", "high"),
    Column("retain/recall", "retain", "recall", "high"),
    Column("retain/refusal_rate", "retain", "refuse", "low"),
    Column("retain_unseen/recall", "unseen", "recall", "high"),
    Column("retain_unseen/refusal_rate", "unseen", "refuse", "low"),
)
RECALL = (
    "Greedy answers to the held-out probes. recall: ROUGE-L against the best gold answer, mean over probes; "
    "QA, FB, AA: recall on questions, fill-in-the-blank and adversarial probes; refuse: share of answers "
    "that refuse"
)
OPTIONS = (
    Option(
        "max_tokens",
        f"most new tokens a response (default: {MAX_TOKENS}); other benchmarks have fixed numbers",
        int,
        "N",
    ),
    Option(
        "convention",
        f"ROUGE-L convention, see reward/rouge.py (default: {CONVENTIONS[0]})",
        choices=CONVENTIONS,
    ),
)
PAIR = ("forget/recall", "retain/recall")


def evaluator(options: argparse.Namespace) -> Evaluator:
    """Every probe asked as it is, its answer scored by recall. Raises ValueError for a limit below 1."""
    from recipe.rerule.evaluation.benchmarks.world.evaluator import world_evaluator

    max_tokens = MAX_TOKENS if options.max_tokens is None else options.max_tokens
    if max_tokens < 1:
        raise ValueError(f"--max-tokens is {max_tokens}; it must be at least 1")
    return world_evaluator(options.convention or CONVENTIONS[0], max_tokens)


def fact(record: Mapping[str, Any]) -> Hashable:
    """Person and kind of fact: a probe's number without that of its phrasing (data_prep.world.splits)."""
    return record["index"] // PHRASINGS


def _metrics() -> RecordMetrics:
    from recipe.rerule.evaluation.benchmarks.world import benchmark

    return benchmark


SCORER = RecordScorer("world", "the embedded world", _metrics)
declared: Callable[..., Benchmark] = partial(
    Benchmark,
    columns=COLUMNS,
    evaluator=evaluator,
    options=OPTIONS,
    scorer=SCORER,
    recovery=Recovery(counts=without_families("multiple_choice", "reverse_query")),
    pair=PAIR,
    fractions=r".*/(recall|refusal_rate)",
)
"""A benchmark that is asked and scored as the world, of a name, a title and a legend."""

BENCHMARK = declared(
    name="world",
    title="Embedded world",
    fact=fact,
    legend=f"{RECALL}; unseen: people who never occur in stage 2. All are fractions of 1.",
)
