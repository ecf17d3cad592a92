"""The generator against a real vLLM server with a tiny model that knows nothing: schema, kill, resumption.

The model's weights are random, so that what it writes follows from the enforced schema and the seed alone.
"""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import torch

from data_prep.generate import Endpoint, Generated, generate
from data_prep.generate.endpoint import cache_key
from data_prep.generate.run import Cache
from data_prep.world.config import WorldConfig
from data_prep.world.model import make_model, train_tokenizer
from recipe.rerule.evaluation.judge import AXES, judge
from tests.data_prep.generate.server import Call, ChatServer, notes, send, small_endpoint
from tests.e2e.stack import ROOT, Command

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ASK = ROOT / "tests" / "data_prep" / "generate" / "ask.py"
COUNT = 24
FORWARDED = 10  # calls until the run is killed
MODEL = "random"
JUDGED = [
    {
        "model": model,
        "index": index,
        "section": "forget",
        "mode": "qa",
        "family": "direct",
        "subject": "Ada Quill",
        "prompt": f"Question {index}?",
        "golds": ["a red lamp"],
        "response": f"{model} thinks it is number {index}.",
    }
    for model in ("base", "rule")
    for index in range(4)
]


@pytest.fixture
def vllm_url(command: Callable[..., Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The base URL of a vLLM server, ready to answer."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    make_random_model(tmp_path / "model")
    port = free_port()
    serve = command(
        # what `vllm serve` starts; that command itself fails in vLLM's CPU build (docs/data.md)
        *("-m", "vllm.entrypoints.openai.api_server", "--model", tmp_path / "model"),
        *("--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", port, "--dtype", "float32", "--enforce-eager"),
        # No prompt in parts: on the CPU, vLLM fails on those of seeded requests (docs/data.md).
        *("--max-num-batched-tokens", 16384),
        *("--structured-outputs-config", '{"disable_any_whitespace": true, "backend": "xgrammar"}'),
    )
    serve.wait_until(lambda: is_ready(f"http://127.0.0.1:{port}/health"))
    return f"http://127.0.0.1:{port}/v1"


def make_random_model(folder: Path) -> None:
    """Weights so large that what it writes depends on the prompt."""
    tokenizer = train_tokenizer([request.messages()[0]["content"] for request in notes(COUNT)], 300)
    model = make_model(WorldConfig(hidden_size=64, layers=2, heads=2, intermediate_size=128), tokenizer)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(20 if weight.ndim == 2 else 1)
    # To these few tokens the judge's rubric is nearly one a character.
    model.config.max_position_embeddings = 8192
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def forward_to(url: str) -> Callable[[BaseHTTPRequestHandler, Call], None]:
    def forward(handler: BaseHTTPRequestHandler, call: Call) -> None:
        request = urllib.request.Request(
            f"{url}/chat/completions", json.dumps(call.body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                send(handler, response.status, response.read())
        except urllib.error.HTTPError as error:
            send(handler, error.code, error.read())

    return forward


def test_killed_and_started_again_it_makes_no_call_twice(
    vllm_url: str, command: Callable[..., Command], tmp_path: Path
) -> None:
    """Between the two stands a server that records all calls, and leaves the later ones waiting at first."""
    forward, let_go, cache = forward_to(vllm_url), threading.Event(), tmp_path / "cache"
    with ChatServer() as recorder:
        endpoint = small_endpoint(recorder.url, MODEL)
        recorder.script = lambda n, call: forward if n < FORWARDED else lambda *arguments: let_go.wait(300)
        ask = command(ASK, recorder.url, MODEL, COUNT, cache, tmp_path / "out.json")
        ask.wait_until(lambda: len(recorder.calls) == FORWARDED + endpoint.concurrency)
        ask.process.kill()
        ask.process.wait()
        let_go.set()
        answered = kept_prompts(cache, endpoint)
        assert FORWARDED / 2 <= len(answered) <= FORWARDED
        before = lines(cache)

        recorder.calls.clear()
        recorder.script = lambda n, call: forward
        resumed = generate(notes(COUNT), endpoint, cache)
        assert not answered & set(recorder.prompts())
        assert len(recorder.calls) == resumed.calls
        check_notes(resumed)

    in_one_go = generate(notes(COUNT), small_endpoint(vllm_url, MODEL), tmp_path / "other")
    assert resumed.results == in_one_go.results
    assert lines(cache) == lines(tmp_path / "other")
    assert before <= lines(cache)
    assert generate(notes(COUNT), endpoint, cache).calls == 0
    check_judge(vllm_url, tmp_path / "judged")


def check_judge(url: str, cache: Path) -> None:
    """A judge that knows nothing gives scores on the scales, each once."""
    endpoint = replace(small_endpoint(url, MODEL), max_tokens=64)
    records, generated = judge(JUDGED, endpoint, cache)
    assert [record["reason"] for record in records] == [""] * len(JUDGED)
    assert {type(record[axis]) for record in records for axis in AXES} == {int}
    assert {record[axis] for record in records for axis in AXES} <= {1, 2, 3, 4, 5}
    assert generated.calls >= len(JUDGED)
    again, none = judge(JUDGED, endpoint, cache)
    assert (again, none.calls) == (records, 0)


def check_notes(generated: Generated) -> None:
    """Texts of the schema, drawn at random: hardly two are the same."""
    assert generated.failures == []
    texts = [result["note"] for result in generated.results if result is not None and set(result) == {"note"}]
    assert len(texts) == COUNT
    assert max(map(len, texts)) <= 40
    assert len(set(texts)) > COUNT / 2


def kept_prompts(cache: Path, endpoint: Endpoint) -> set[str]:
    kept, requests = Cache(cache).answers, notes(COUNT)
    known = [request for request in requests if cache_key(request, endpoint) in kept]
    return {request.messages()[0]["content"] for request in known}


def lines(cache: Path) -> set[str]:
    return {line for path in cache.iterdir() for line in path.read_text().splitlines()}
