"""Data of one's own, declared."""

from __future__ import annotations

from recipe.rerule.evaluation.benchmarks.world.declaration import RECALL, declared

BENCHMARK = declared(name="custom", title="Your data", legend=f"{RECALL}. All are fractions of 1.")
