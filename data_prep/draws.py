"""Draws of prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence

from data_prep.prompts import Prompt


def spread(prompts: Sequence[Prompt], count: int, rng: random.Random) -> list[Prompt]:
    """At most `count` of the prompts in their own order, as evenly over side and mode as can be."""
    groups: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in rng.sample(list(prompts), len(prompts)):
        groups.setdefault((prompt.side, prompt.mode), []).append(prompt)
    turns = [(turn, prompt) for group in groups.values() for turn, prompt in enumerate(group)]
    turns.sort(key=lambda drawn: drawn[0])  # stable: each group has its turn before any has another
    chosen = {prompt.index for _, prompt in turns[:count]}
    return [prompt for prompt in prompts if prompt.index in chosen]
