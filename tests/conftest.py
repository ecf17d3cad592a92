"""Tests use no network: a model that is not on disk is not looked for on the hub. SIGINT interrupts them.

Tests in several processes have one thread each: tensors this small gain nothing from a second one, and every
operation waits where another program holds its core.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, settings

os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[misc]  # which Hydra reads its files with
# A script's background job ignores SIGINT, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For `make mutants`, which runs the tests thousands of times: few examples, always the same, no shrinking.
settings.register_profile(
    "mutants", max_examples=20, derandomize=True, database=None, deadline=None,
    phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
)  # fmt: skip


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what is imported by now: it would look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    from torch import distributed

    store = distributed.FileStore(f"{tmp_path / 'store'}", 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server that answers well until it is given another script; the key is in the environment."""
    from tests.data_prep.generate.server import KEY, ChatServer

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    with ChatServer() as server:
        yield server
