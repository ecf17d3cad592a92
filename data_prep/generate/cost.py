"""What a run will cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.generate.cache import Cache
from data_prep.generate.endpoint import Endpoint
from data_prep.generate.plan import make_plan
from data_prep.generate.task import Request

BYTES_A_TOKEN = 4
"""UTF-8 bytes of a token, roughly: of English text and of most others."""


@dataclass(frozen=True)
class Estimate:
    """Calls, tokens and cost of a run in which every first answer can be used; `str` explains them.

    Attributes:
        requests: how many are asked for.
        calls: how many of them are neither repetitions nor known from the cache.
        prompt_tokens: of these calls, from the length of prompt and schema.
        completion_tokens: of these calls, from the usual length of each task's answers.
        cost: in the currency of the prices; None where they are unknown.
    """

    requests: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    def __str__(self) -> str:
        cost = "price unknown" if self.cost is None else f"{self.cost:.4f} in the currency of the prices"
        return (
            f"{self.requests} requests, {self.calls} calls to make (the others repeat one or are known)\n"
            f"prompt tokens: about {self.prompt_tokens} "
            f"({BYTES_A_TOKEN} bytes of prompt and schema counted as one)\n"
            f"completion tokens: about {self.completion_tokens} (the usual length of each task's answers)\n"
            f"cost: {cost}; calls that have to be repeated come on top"
        )


def estimate(requests: Sequence[Request], endpoint: Endpoint, cache_folder: Path | None = None) -> Estimate:
    """What `generate` with the same arguments will take. Makes no call and writes nothing."""
    recall = Cache(cache_folder).answer if cache_folder is not None else lambda key: None
    pending = make_plan(requests, endpoint, recall).pending.values()
    prompt_tokens = sum(map(_prompt_tokens, pending))
    completion_tokens = sum(request.task.answer_tokens(request.inputs) for request in pending)
    return Estimate(
        requests=len(requests),
        calls=len(pending),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost=endpoint.cost(prompt_tokens, completion_tokens),
    )


def _prompt_tokens(request: Request) -> int:
    text = request.messages()[0]["content"] + json.dumps(request.schema())
    return -(-len(text.encode()) // BYTES_A_TOKEN)
