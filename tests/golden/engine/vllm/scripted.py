"""A model that answers from a file, and whose log-probs are numbers drawn from the tokens alone.

answers.json: {"salt": text, "scale": number, "answers": [[part of a prompt, [answer, ...]], ...]}. Of the
parts that a prompt holds, the one that ends last counts, the longer of two; sample i is the i-th answer after
the seed, and a greedy response the first one. A prompt without any of them gets an empty answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from vllm.sampling_params import SamplingParams
from vllm.tokens import Tokens, cut

CONTEXT = 3
"""Tokens before a token that its log-prob depends on."""


class Scripted:
    """A folder with answers.json and a tokenizer."""

    def __init__(self, folder: Path) -> None:
        said = json.loads((folder / "answers.json").read_text())
        self._salt, self._scale, self._answers = said["salt"], said["scale"], said["answers"]
        self._tokens = Tokens(folder)

    def texts(self, ids: Sequence[int], parameters: SamplingParams) -> list[str]:
        answers = self._answers_to(self._tokens.text(ids, special=True))
        first = parameters.seed if parameters.temperature else 0
        chosen = [answers[(first + place) % len(answers)] for place in range(parameters.n)]
        return [cut(self._shortened(text, parameters.max_tokens), parameters.stop) for text in chosen]

    def measured(self, ids: Sequence[int]) -> list[tuple[float, int] | None]:
        """Log-prob and rank of each token behind those before it."""
        return [
            None,
            *(self._measured(ids[max(0, place - CONTEXT) : place + 1]) for place in range(1, len(ids))),
        ]

    def _answers_to(self, prompt: str) -> list[str]:
        found = [
            (prompt.rfind(part) + len(part), len(part), answers)
            for part, answers in self._answers
            if part in prompt
        ]
        return max(found, key=lambda one: one[:2])[2] if found else [""]

    def _shortened(self, text: str, most: int) -> str:
        ids = self._tokens.ids(text)
        return text if len(ids) <= most else self._tokens.text(ids[:most])

    def _measured(self, ids: Sequence[int]) -> tuple[float, int]:
        digest = hashlib.sha256(json.dumps([self._salt, list(ids)]).encode()).digest()
        share = int.from_bytes(digest[:6], "big") / 2**48
        return -self._scale * share, 1 + int(3 * share)
