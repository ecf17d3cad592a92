"""Golden files are computed on one thread."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
import yaml


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """The order of a sum, and so its last digits, depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    patch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)  # which Hydra reads its files with
    gc.disable()  # a search through all that the commands import takes longer than many of them
    yield
    gc.enable()
    patch.undo()
    torch.set_num_threads(before)
