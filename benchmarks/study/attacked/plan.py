"""What was fixed before the first attack; plan.md says it in sentences."""

from __future__ import annotations

from pathlib import Path

from benchmarks.study.arms import OURS
from benchmarks.study.planned.plan import COUNTED_BASES

PLAN = Path(__file__).with_name("plan.md")
WORLD = "many"
BASES = COUNTED_BASES
SEED = 1
ARMS = ("rule", "equal_updates", "rerule", OURS)
ATTACKS = ("default",)
"""Of `evaluate attack`, under its quick budget."""
MEASURES = {
    "relearn_forget_half/8": "recall after 8 steps of training on answers to the other half of the facts",
    "samples/max_16": "expected highest recall of 16 samples",
    "memorisation/extraction_strength": "extraction strength",
}
"""Attacks that answer the question."""
PRIMARY = (OURS, "equal_updates")
PRIMARY_MEASURE = "relearn_forget_half/8"
PAIRS = (PRIMARY, (OURS, "rule"), ("rerule", "rule"), ("rerule", "equal_updates"))
MARGIN = 0.1
"""Within which two scores count as alike."""
