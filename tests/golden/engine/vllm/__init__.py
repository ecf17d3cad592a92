"""A stand-in for vLLM that needs numpy alone: first on PYTHONPATH, it answers in the place of the real one.

A model folder with `answers.json` answers from that file. Any other folder must hold a Llama, whose forward
pass is computed in `models`. Both give the same answers on every machine.
"""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.models import Llama, Scripted
from vllm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]


@dataclass
class Logprob:
    """What vLLM says of one token."""

    logprob: float
    rank: int


@dataclass
class Engine:
    """vLLM's engine: requests are added, and `step` answers all of them."""

    model: Any
    waiting: list[tuple[str, list[int], SamplingParams]] = field(default_factory=list)

    def add_request(self, name: str, prompt: dict[str, Any], parameters: SamplingParams) -> None:
        self.waiting.append((name, prompt["prompt_token_ids"], parameters))

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        done, self.waiting = self.waiting, []
        return [self._answer(*one) for one in done]

    def _answer(self, name: str, ids: list[int], parameters: SamplingParams) -> Any:
        measured = None
        if parameters.prompt_logprobs is not None:
            rows = zip(ids, self.model.measured(ids), strict=True)
            measured = [row and {token: Logprob(*row)} for token, row in rows]
        said = [SimpleNamespace(text=text) for text in self.model.texts(ids, parameters)]
        return SimpleNamespace(request_id=name, finished=True, outputs=said, prompt_logprobs=measured)


class LLM:
    """vLLM's front end, as far as an evaluation uses it."""

    def __init__(self, model: str, **settings: Any) -> None:
        self.llm_engine = Engine(_model(model))

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights"
        self.llm_engine.model = _model(kwargs["weights_path"])


def _model(folder: str) -> Any:
    return (Scripted if (Path(folder) / "answers.json").is_file() else Llama)(Path(folder))
