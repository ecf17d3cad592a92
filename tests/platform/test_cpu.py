"""The CPU platform is registered through verl's plugin entry point, and acts only where it was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROBE = """
import importlib.metadata, json, verl, torch.distributed
from verl.plugin.platform import PlatformRegistry, get_platform
from verl.utils import distributed
try:
    vllm = importlib.metadata.version("vllm")
except importlib.metadata.PackageNotFoundError:
    vllm = None
patched = distributed.initialize_global_process_group.__module__ != "verl.utils.distributed"
registered = "cpu" in PlatformRegistry.registered_names()
print(json.dumps([registered, get_platform().device_name, vllm and vllm.split("+")[1], patched]))
"""
SELECT = """
import json, os
from recipe.rerule.platform import select
select("cpu")
print(json.dumps(dict(os.environ)))
"""


def printed(code: str, **environment: str) -> object:
    """What a new process prints last; nothing of this one's platform is in its environment."""
    own = ("VERL_", "OMP_", "RAY_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(own)} | environment
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        # Without a request verl goes on falling back to nvidia, as on the head node of a GPU cluster.
        ({}, [True, "cuda", None, False]),
        ({"VERL_PLATFORM": "cpu"}, [True, "cpu", "cpu", True]),
    ],
)
def test_importing_verl_loads_our_plugin_which_acts_where_it_was_asked_for(
    asked: dict[str, str], found: list[object]
) -> None:
    assert printed(PROBE, **asked) == found


def test_select_sets_what_workers_inherit_and_leaves_what_the_user_has_set() -> None:
    expected = {
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "OMP_NUM_THREADS": str(os.cpu_count()),
        "OMP_WAIT_POLICY": "passive",
        "RAY_worker_niceness": "7",
    }
    found = printed(SELECT, RAY_worker_niceness="7")
    assert isinstance(found, dict)
    assert {name: found[name] for name in expected} == expected
