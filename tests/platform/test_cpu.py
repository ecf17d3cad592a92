"""The CPU platform is registered through verl's plugin entry point, and acts only where it was asked for.

And which of the trainer's weights its engine loads.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from recipe.rerule.platform import select
from recipe.rerule.platform.sent_weights import without_missing_head

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


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        # Without a request verl goes on falling back to nvidia, as on the head node of a GPU cluster.
        pytest.param({}, [True, "cuda", None, False], marks=pytest.mark.full),  # importing verl takes long
        ({"VERL_PLATFORM": "cpu"}, [True, "cpu", "cpu", True]),
    ],
)
def test_importing_verl_loads_our_plugin_which_acts_where_it_was_asked_for(
    asked: dict[str, str], found: list[object]
) -> None:
    own = ("VERL_", "OMP_", "RAY_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(own)} | asked
    told = subprocess.check_output([sys.executable, "-c", PROBE], env=clean, text=True)
    assert json.loads(told.splitlines()[-1]) == found


def test_select_sets_what_workers_inherit_and_leaves_what_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inherited = {"RAY_worker_niceness": "7", "VERL_PLATFORM": "other", "VERL_LOGGING_LEVEL": "INFO"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", inherited)
        patch.setattr(os, "sched_getaffinity", lambda pid: {3, 4, 9})
        patch.delitem(sys.modules, "verl", raising=False)  # which is not to be patched here
        select("cpu")
    expected = {
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "OMP_NUM_THREADS": "3",
        "OMP_WAIT_POLICY": "passive",
        "RAY_worker_niceness": "7",
        "VERL_LOGGING_LEVEL": "INFO",
    }
    assert expected.items() <= inherited.items()


WEIGHTS = {"model.embed_tokens.weight": torch.zeros(2), "lm_head.weight": torch.zeros(2)}


def test_a_head_is_left_out_only_where_the_engines_model_has_none() -> None:
    without = nn.ModuleDict({"model": nn.ModuleDict({"embed_tokens": nn.Embedding(2, 1)})})
    head = nn.ModuleDict({**without, "lm_head": nn.Linear(1, 2)})
    assert list(without_missing_head(WEIGHTS, without)) == ["model.embed_tokens.weight"]
    assert without_missing_head(WEIGHTS, head) == WEIGHTS
    assert without_missing_head(WEIGHTS, nn.ModuleDict({"language_model": head})) == WEIGHTS
