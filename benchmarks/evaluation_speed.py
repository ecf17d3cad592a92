"""What keeping answers as they come costs: python -m benchmarks.evaluation_speed [--requests N].

One vLLM engine on the CPU answers the probes of the embedded world in two ways, in turn, several times: as
the evaluation's worker does, with each answer written to the store when it is there; and with vLLM's own
`LLM.generate`, which returns once all are there and keeps none. Questions are answered with at most 32 new
tokens, and the likelihoods of the gold answers are measured. Prints one JSON object on its last line:
    requests                         of each kind, in one pass
    generation, likelihood           each {per_second, plain_per_second, ratio}: requests a second with the
                                     worker and with LLM.generate, medians; ratio is the first over the second
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.world import world
from recipe.rerule.evaluation.engine import worker
from recipe.rerule.evaluation.engine.answers import KeptAnswers, answer_of
from recipe.rerule.evaluation.engine.encoding import Encoded, encode
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Generation, Likelihood, PromptText, Request
from recipe.rerule.evaluation.engine.run import Decoding
from recipe.rerule.evaluation.probes import Probe, read_probes
from recipe.rerule.platform import select

REPEATS = 5
MAX_TOKENS = 32


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evaluation_speed", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--requests", type=int, default=1000, help="of each kind (default: %(default)s)")
    count = parser.parse_args().requests
    select("cpu")
    os.environ.update(Decoding("cpu").environment | dict(os.environ))
    model = Model("base", world() / "model")
    probes = read_probes(model.path.parent / "probes.parquet")
    kinds = {
        kind: encode([model], [request(kind, number, probes) for number in range(count)])["base"]
        for kind in ("generation", "likelihood")
    }
    length = max(one.length for encoded in kinds.values() for one in encoded)
    llm = worker.start_engine(
        {
            "models": [{"path": str(model.path)}],
            "requests": [],
            "max_model_len": length,
            "engine": Decoding("cpu").engine_arguments,
        }
    )
    figures = {kind: compare(llm, encoded) for kind, encoded in kinds.items()}
    print(json.dumps({"requests": count, **figures}))


def request(kind: str, number: int, probes: list[Probe]) -> Request:
    """Of the probes in turn."""
    probe = probes[number % len(probes)]
    prompt = PromptText(tuple(probe.messages), probe.raw)
    if kind == "generation":
        return Generation(f"{number}", prompt, MAX_TOKENS)
    return Likelihood(f"{number}", prompt, probe.golds[0])


def compare(llm: Any, encoded: list[Encoded]) -> dict[str, float]:
    """Requests a second in both ways, and their ratio."""
    asked = [
        {
            "ids": one.ids,
            "answer_start": one.answer_start,
            "max_tokens": one.max_tokens,
            "stop": list(one.stop),
            "sampling": None,
        }
        for one in encoded
    ]
    ours, plain = [], []
    for _ in range(REPEATS):
        ours.append(seconds(lambda: kept(llm, encoded, asked)))
        plain.append(seconds(lambda: unkept(llm, asked)))
    rates = [len(asked) / statistics.median(times) for times in (ours, plain)]
    return {
        "per_second": round(rates[0], 1),
        "plain_per_second": round(rates[1], 1),
        "ratio": round(rates[0] / rates[1], 3),
    }


def seconds(work: Callable[[], None]) -> float:
    """How long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def kept(llm: Any, encoded: list[Encoded], asked: list[dict[str, Any]]) -> None:
    """As the worker answers, and `generate` keeps."""
    with tempfile.TemporaryDirectory() as folder:
        store = KeptAnswers(Path(folder) / "base.jsonl", {"format_version": 1})

        def keep(event: dict[str, Any]) -> None:
            answers = json.loads(json.dumps(event))["answers"]
            store.add({encoded[one["request"]].key: ("", answer_of(one)) for one in answers})

        worker.answer(llm.llm_engine, dict(enumerate(asked)), keep)


def unkept(llm: Any, asked: list[dict[str, Any]]) -> None:
    """With vLLM's own call, reading the same from its outputs."""
    prompts = [{"prompt_token_ids": one["ids"]} for one in asked]
    outputs = llm.generate(prompts, [worker.sampling(one) for one in asked], use_tqdm=False)
    for one, output in zip(asked, outputs, strict=True):
        if one["answer_start"] is not None:
            worker.read(output, one)


if __name__ == "__main__":
    main()
