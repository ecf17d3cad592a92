"""No attack: the probes as the benchmark asks them, which is what all attacks are compared with.

Protocol: one greedy answer a probe, through the benchmark's own prompt.
"""

from __future__ import annotations

from recipe.rerule.evaluation.attacks.asking import asking, unchanged
from recipe.rerule.evaluation.attacks.attack import Attack

ATTACKS = (
    Attack(
        name="none",
        title="no attack",
        tells="The probes are asked as the benchmark asks them.",
        default=True,
        ask=lambda material, options: asking(material, {"": unchanged}),
    ),
)
