"""Holds a run in the middle of a phase; a library for `external_lib`, which every process of a run imports.

The folder $RERULE_PAUSES has one file while a phase is wanted: its name is the phase. The process that comes
to it writes PHASE.there and waits until the file PHASE is gone.
"""

import asyncio
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GENERATION, UPDATE, WEIGHTS = ("generation", "update", "weights")
_FOLDER = Path(os.environ["RERULE_PAUSES"])


def _until_released(phase: str) -> Iterator[None]:
    if (_FOLDER / phase).exists():
        (_FOLDER / f"{phase}.there").touch()
        while (_FOLDER / phase).exists():
            yield


def _paused(phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wait(*args: Any, **options: Any) -> Any:
        for _ in _until_released(phase):
            time.sleep(0.05)
        return call(*args, **options)

    @functools.wraps(call)
    async def wait_async(*args: Any, **options: Any) -> Any:
        for _ in _until_released(phase):
            await asyncio.sleep(0.05)
        return await call(*args, **options)

    return wait_async if asyncio.iscoroutinefunction(call) else wait


def _install(module: str, owner: str, method: str, phase: str) -> None:
    """In the processes that have the module already, which are those that call it."""
    if module in sys.modules:
        found = getattr(sys.modules[module], owner)
        setattr(found, method, _paused(phase, getattr(found, method)))


_install("vllm.v1.engine.async_llm", "AsyncLLM", "add_request", GENERATION)
_install("verl.workers.engine_workers", "TrainingWorker", "train_mini_batch", UPDATE)
_install("verl.checkpoint_engine.base", "CheckpointEngineManager", "update_weights", WEIGHTS)
