"""Attack by the beginning of the right answer: does the model complete it?

Protocol: the first 1, 2 or 4 tokens of the first gold stand behind the generation prompt, each number a
setting. The greedy continuation is scored against the rest of the gold, so that what was given counts
neither in the gold nor in the response. A probe whose gold has no word behind those tokens is left out of
that setting. The never-knew model with the same beginning is the floor: some endings can be guessed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from recipe.rerule.evaluation.attacks.asking import asking, prefilled
from recipe.rerule.evaluation.attacks.attack import Asked, Asking, Attack, Material, Options
from recipe.rerule.evaluation.attacks.rows import normalised_words
from recipe.rerule.training.prompts import answer_ids


def _ask(material: Material, options: Options) -> Asking:
    ways = {f"{count}": partial(_begun, material.tokenizer, count) for count in options["tokens"]}
    return asking(material, ways)


def _begun(tokenizer: Any, count: int, asked: Asked) -> Asked | None:
    """None where nothing of the gold is left to score."""
    given, rest = split_gold(tokenizer, asked.probe.golds[0], count)
    if not normalised_words(rest):
        return None
    return prefilled(replace(asked, probe=replace(asked.probe, golds=[rest])), given)


def split_gold(tokenizer: Any, gold: str, count: int) -> tuple[str, str]:
    """The text of the first `count` tokens of a gold answer, and the rest without white space around it."""
    given = tokenizer.decode(answer_ids(tokenizer, gold)[:-1][:count]).strip()
    # Where a token is a part of a character, its text is not the beginning of the gold.
    if not given or not gold.startswith(given):
        return gold, ""
    return given, gold[len(given) :].strip()


ATTACKS = (
    Attack(
        name="gold_prefill",
        title="gold prefill",
        tells="The answer is begun with the first tokens of the right answer, which are not scored.",
        default=True,
        quick={"tokens": (1, 2, 4)},
        has_before=False,  # which is of the whole answer
        ask=_ask,
    ),
)
