"""Tests use no network: a model that is not on disk is not looked for on the hub. SIGINT interrupts them."""

import gc
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, settings

os.environ["HF_HUB_OFFLINE"] = "1"
# A script's background job ignores SIGINT, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Lines = list[dict[str, Any]]
WriteRun = Callable[..., Path]

# For `make mutants`, which runs the tests thousands of times: few examples, always the same, no shrinking.
settings.register_profile(
    "mutants",
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what is imported by now: it would look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """write_run(name, metrics lines, prompts lines or None, replay settings or None) -> the run folder."""

    def write(
        name: str, metrics: Lines, prompts: Lines | None = None, replay: dict[str, Any] | None = None
    ) -> Path:
        records = tmp_path / name / "records"
        records.mkdir(parents=True)
        (records / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
        if prompts is not None:
            (records / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in prompts))
        if replay is not None:
            (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({"replay": replay}))
        return tmp_path / name

    return write
