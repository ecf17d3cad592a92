"""vLLM's parameters of a request, as far as an evaluation uses them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class RequestOutputKind(Enum):
    """When vLLM reports."""

    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    """Greedy where the temperature is 0."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 16
    stop: Sequence[str] = ()
    prompt_logprobs: int | None = None
    detokenize: bool = True
    output_kind: Any = None
