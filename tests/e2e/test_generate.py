"""The generator against a real vLLM server with a tiny model that knows nothing.

The model's weights are random, so that what it writes follows from the enforced schema and the seed alone.
"""

import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from data_prep.generate import Endpoint, generate
from data_prep.world.config import WorldConfig
from data_prep.world.model import make_model, train_tokenizer
from tests.data_prep.generate.server import notes
from tests.e2e.stack import Command, free_address

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(600)]

COUNT = 24
MODEL = "random"


@pytest.fixture
def vllm_url(command: Callable[..., Command], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The base URL of a vLLM server, ready to answer."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    make_random_model(tmp_path / "model")
    address = free_address()
    serve = command(
        # what `vllm serve` starts; that command itself fails in vLLM's CPU build (docs/data.md)
        *("-m", "vllm.entrypoints.openai.api_server", "--model", tmp_path / "model"),
        *("--served-model-name", MODEL),
        *(
            "--host",
            "127.0.0.1",
            "--port",
            address.partition(":")[2],
            "--dtype",
            "float32",
            "--enforce-eager",
        ),
        # No prompt in parts: on the CPU, vLLM fails on those of seeded requests (docs/data.md).
        *("--max-num-batched-tokens", 16384),
        *("--structured-outputs-config", '{"disable_any_whitespace": true, "backend": "xgrammar"}'),
    )
    serve.wait_until(lambda: is_ready(f"http://{address}/health"))
    return f"http://{address}/v1"


def make_random_model(folder: Path) -> None:
    """Weights so large that what it writes depends on the prompt."""
    tokenizer = train_tokenizer([request.messages()[0]["content"] for request in notes(COUNT)], 300)
    model = make_model(WorldConfig(hidden_size=64, layers=2, heads=2, intermediate_size=128), tokenizer)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(20 if weight.ndim == 2 else 1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def test_texts_have_the_schema_and_are_repeated(vllm_url: str, tmp_path: Path) -> None:
    """Two runs with caches of their own give the same texts; with the cache of one, no call is made."""
    endpoint = Endpoint(vllm_url, MODEL, concurrency=4, timeout=60, max_tokens=300)  # its context has 512
    first = generate(notes(COUNT), endpoint, tmp_path / "first")
    assert first.failures == []
    texts = [result["note"] for result in first.results if result is not None and set(result) == {"note"}]
    assert len(texts) == COUNT
    assert max(map(len, texts)) <= 40
    assert len(set(texts)) > COUNT / 2
    assert generate(notes(COUNT), endpoint, tmp_path / "second").results == first.results
    assert generate(notes(COUNT), endpoint, tmp_path / "first").calls == 0
