"""The vLLM process of `generate`: one engine, the models of one job one after the other.

The job is a JSON file {models: [{path, ask}], requests: [{ids, answer_start, max_tokens, stop, samples,
temperature, seed}], max_model_len, engine: further arguments of vLLM's LLM}, where `ask` are numbers of
requests. A request with an answer_start is measured from that token on, any other is continued: greedily, or
with `samples` above 0 that many times, drawn at `temperature`. Events go to standard output, one JSON object
a line: {"model": place in `models`, "answers": [...]} as they come, all of a model before the next model's;
or {"error": reason}. An answer is {request, text}, {request, samples} or {request, log_probs, ranks}. All
other output goes to standard error. The process ends with its standard input, hence with the process that
asked.

Samples can be repeated: each sequence has a generator of random numbers of its own, whatever runs beside it.
What runs beside it can change the last digits of the logits, above all on GPUs, so that a sample may differ
between two runs from a token on whose draw was that close.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Send = Callable[[dict[str, Any]], None]

TOKENS_A_STEP = 4096
"""Of prompts and answers together, where prompts are read whole: vLLM's order of size on a processor."""
LONGEST_PREFILL = 512
"""Most tokens of one prompt that a step takes. Of a request to measure, vLLM computes a row over the
vocabulary for each, which its memory plan leaves out: 512 rows of 128 Ki entries and 10 bytes are 0.7 GB."""


def main(job_file: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the asker too, whose end is this process's
    send = _event_channel()
    threading.Thread(target=_end_with_asker, daemon=True).start()
    try:
        run(json.loads(Path(job_file).read_text()), send)
    except Exception as error:
        traceback.print_exc()
        first = next(iter(str(error).splitlines()), "no message")
        send({"error": f"{type(error).__name__}: {first}"})
        return 1
    return 0


def run(job: dict[str, Any], send: Send) -> None:
    """Answer for every model of the job; the first starts the engine, the others bring weights."""
    llm = start_engine(job)
    loaded = job["models"][0]["path"]
    for place, model in enumerate(job["models"]):
        if model["path"] != loaded:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": model["path"]})
            loaded = model["path"]
        requests = {number: job["requests"][number] for number in model["ask"]}
        for answers in answer(llm.llm_engine, requests):
            send({"model": place, "answers": answers})


def start_engine(job: dict[str, Any]) -> Any:
    """A vLLM `LLM` with the first model's weights.

    It reads long prompts in parts, but on a processor whole in a job that samples: where a prompt is read in
    parts vLLM draws a token after each part and takes back all but the last, which it cannot do there of a
    seeded request ("CPU Generator does not use offset").
    """
    from vllm import LLM
    from vllm.platforms import current_platform

    longest = job["max_model_len"]
    if current_platform.is_cpu() and any(request["samples"] for request in job["requests"]):
        prefill = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(longest, TOKENS_A_STEP)}
    else:
        prefill = {"long_prefill_token_threshold": min(LONGEST_PREFILL, longest)}
    return LLM(
        job["models"][0]["path"],
        **job["engine"],
        **prefill,
        # What the requests need and no more: a model's full context may not fit into the cache.
        max_model_len=longest,
        # Of the model itself, before temperature or penalties.
        logprobs_mode="raw_logprobs",
        seed=0,
    )


def answer(engine: Any, requests: dict[int, dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The answers to {number: request}, as the engine finishes them.

    All are handed over at once, those whose sequences may get longest first, so that batches stay full to the
    end; all samples of a request go together.
    """
    for number in sorted(requests, key=lambda number: -requests[number]["max_tokens"]):
        request = requests[number]
        # What vLLM's own front end makes of token ids.
        prompt = {"type": "token", "prompt_token_ids": request["ids"]}
        engine.add_request(str(number), prompt, sampling(request))
    while engine.has_unfinished_requests():
        finished = [output for output in engine.step() if output.finished]
        if finished:
            yield [read(output, requests[int(output.request_id)]) for output in finished]


def sampling(request: dict[str, Any]) -> Any:
    """vLLM's parameters; of a request to measure, the log-probs of its own tokens and no text.

    vLLM gives sample i the seed plus i.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    measures = request["answer_start"] is not None
    drawn = {"n": request["samples"], "temperature": request["temperature"], "seed": request["seed"]}
    return SamplingParams(
        **(drawn if request["samples"] else {"temperature": 0.0}),
        max_tokens=request["max_tokens"],
        stop=request["stop"],
        prompt_logprobs=0 if measures else None,
        detokenize=not measures,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def read(output: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of one of vLLM's outputs.

    vLLM's row of a token maps ids to log-probs and ranks, this token's among them.
    """
    number, start = {"request": int(output.request_id)}, request["answer_start"]
    if start is not None:
        own = [output.prompt_logprobs[n][request["ids"][n]] for n in range(start, len(request["ids"]))]
        return number | {"log_probs": [one.logprob for one in own], "ranks": [one.rank for one in own]}
    texts = [one.text for one in output.outputs]
    return number | ({"samples": texts} if request["samples"] else {"text": texts[0]})


def _end_with_asker() -> None:
    """End this process at the end of standard input."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def _event_channel() -> Send:
    """Take standard output for events alone; vLLM, which logs there, is sent to standard error."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(event: dict[str, Any]) -> None:
        channel.write(json.dumps(event) + "\n")
        channel.flush()

    return send


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
