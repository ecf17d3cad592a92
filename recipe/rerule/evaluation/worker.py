"""The vLLM process of `generate`: one engine, the models of one job one after the other.

The job is a JSON file {models: [path], prompts: [{messages, raw}], raw_stop: [string], max_tokens, dtype};
the stop strings are for raw prompts. Events go to standard output, one JSON object a line: for each model in
order {"done": number of further responses} as they come and {"responses": [text]} at the end, or
{"error": reason}. All other output goes to standard error.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from recipe.rerule.prompts import prompt_ids, require_chat_template

Send = Callable[[dict[str, Any]], None]


def main(job_file: str) -> int:
    send = _event_channel()
    try:
        run(json.loads(Path(job_file).read_text()), send)
    except Exception as error:
        traceback.print_exc()
        send({"error": f"{type(error).__name__}: {_first_line(error)}"})
        return 1
    return 0


def run(job: dict[str, Any], send: Send) -> None:
    """Generate for every model of the job; the first starts the engine, the others bring weights."""
    from vllm import LLM, SamplingParams

    loaded = job["models"][0]
    token_ids = tokenize(loaded, job["prompts"])
    llm = LLM(
        loaded,
        dtype=job["dtype"],
        enforce_eager=True,
        # What the probes need and no more: a model's full context may not fit into the cache.
        max_model_len=max(map(len, token_ids)) + job["max_tokens"],
        # Cached prefixes of one model's weights would be wrong for the next model's.
        enable_prefix_caching=False,
        seed=0,
    )
    greedy = functools.partial(SamplingParams, temperature=0.0, max_tokens=job["max_tokens"])
    sampling = [greedy(stop=job["raw_stop"] if prompt["raw"] else []) for prompt in job["prompts"]]
    for path in job["models"]:
        if path != loaded:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
            loaded = path
        prompts: list[Any] = [{"prompt_token_ids": ids} for ids in token_ids]
        outputs = llm.generate(prompts, sampling, use_tqdm=progress_bar(send))
        send({"responses": [output.outputs[0].text for output in outputs]})


def tokenize(path: str, prompts: list[dict[str, Any]]) -> list[list[int]]:
    """Token ids of each prompt {messages, raw} with the tokenizer of the model folder `path`.

    Raises:
        ValueError: a prompt is not raw and the tokenizer has no chat template.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    if not all(prompt["raw"] for prompt in prompts):
        require_chat_template(tokenizer)
    return [prompt_ids(tokenizer, prompt["messages"], prompt["raw"]) for prompt in prompts]


def progress_bar(send: Send) -> Callable[..., tqdm]:
    """A class for vLLM's progress bars, which also sends {"done": number} for each finished response."""

    class EventBar(tqdm):
        def update(self, n: float | None = 1) -> bool | None:
            # The bar of prompts being prepared wraps an iterable; that of responses is moved by hand.
            if self.iterable is None:
                send({"done": n})
            return super().update(n)

    return EventBar


def _event_channel() -> Send:
    """Take standard output for events alone; vLLM, which logs there, is sent to standard error."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(event: dict[str, Any]) -> None:
        channel.write(json.dumps(event) + "\n")
        channel.flush()

    return send


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no message")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
