"""Data of one's own, asked and scored as the embedded world; a fact is what `extra_info.fact` of a row
says."""

from __future__ import annotations

from recipe.rerule.evaluation.tasks.world import RECALL, Recall


class Custom(Recall):
    """Without `extra_info.fact` every probe asks for a fact of its own."""

    name = "custom"
    title = "Your data"
    legend = f"{RECALL}. All are fractions of 1."


BENCHMARKS = (Custom(),)
