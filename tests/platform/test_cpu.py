"""The CPU platform is registered through verl's plugin entry point, and acts only where it was asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from recipe.rerule.platform import PlatformError, select

PROBE = """
import importlib.metadata, json, verl, torch.distributed
from verl.plugin.platform import PlatformRegistry, get_platform
from verl.utils import distributed
try:
    vllm = importlib.metadata.version("vllm")
except importlib.metadata.PackageNotFoundError:
    vllm = None
print(json.dumps({
    "registered": "cpu" in PlatformRegistry.registered_names(),
    "device": get_platform().device_name,
    "vllm": vllm,
    "patched": distributed.initialize_global_process_group.__module__ != "verl.utils.distributed",
}))
"""


def probe(**environment: str) -> dict[str, object]:
    import json

    clean = {key: value for key, value in os.environ.items() if not key.startswith("VERL_")}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=clean | environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_verl_loads_our_plugin_and_changes_nothing() -> None:
    """Without a request verl goes on falling back to nvidia, as on the head node of a GPU cluster."""
    found = probe()
    assert found["registered"]
    assert found["device"] == "cuda"
    assert found["vllm"] is None
    assert not found["patched"]


def test_asked_for_it_takes_over() -> None:
    found = probe(VERL_PLATFORM="cpu")
    assert found["device"] == "cpu"
    assert str(found["vllm"]).endswith("+cpu")
    assert found["patched"]


def test_an_unknown_platform_is_named() -> None:
    with pytest.raises(PlatformError, match=r"'tpu'.*gpu, cpu"):
        select("tpu")


def test_gpu_without_an_accelerator_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(PlatformError, match="platform=cpu"):
        select("gpu")
    select("gpu", require_accelerator=False)


def test_select_sets_what_workers_inherit() -> None:
    script = (
        "from recipe.rerule.platform import select; select('cpu'); import os; "
        "print(os.environ['VERL_PLATFORM'], os.environ['VERL_ENGINE_DEVICE'], os.environ['OMP_NUM_THREADS'])"
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("VERL_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=clean, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["cpu", "cuda", str(os.cpu_count())]


def test_select_leaves_what_the_user_has_set() -> None:
    script = (
        "from recipe.rerule.platform import select; select('cpu'); import os; "
        "print(os.environ['RAY_worker_niceness'], os.environ['OMP_WAIT_POLICY'])"
    )
    clean = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY",)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=clean | {"RAY_worker_niceness": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["7", "passive"]
