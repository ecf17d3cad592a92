"""MUSE-Books, declared."""

from __future__ import annotations

from recipe.rerule.evaluation.benchmarks.muse.declaration import muse_benchmark
from recipe.rerule.evaluation.benchmarks.muse_books.published import PUBLISHED

RETRAINED_AUC = 1 - 0.5393
"""A constant in MUSE's own code, which counts it the other way round (see `roc.privleak`)."""

BENCHMARK = muse_benchmark(
    "muse_books",
    "MUSE-Books",
    ("muse-books",),
    RETRAINED_AUC,
    PUBLISHED,
    score_example="""\
  python -m recipe.rerule.evaluate score --benchmark muse-books --log MUSE_EVAL.json --json
      the last line of the output is one JSON object, for a program
""",
)
