"""The check for a GPU, on a processor: that it passes, that it can fail, and what it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import data_prep.world.model
from benchmarks.gpu_check import numerics, updates
from benchmarks.gpu_check.lines import Line, as_json, table

ROOT = Path(__file__).resolve().parents[2]
NOT_NEEDED = (
    "pyarrow rouge_score verl ray vllm hydra omegaconf tensordict datasets openai jsonschema matplotlib"
)


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_the_command_on_a_processor(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--small"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["passed"]
    assert (found["device"], found["torch"].split("+")[0]) == ("cpu", torch.__version__.split("+")[0])
    limited = [line for line in found["lines"] if line["limit"] is not None]
    # 2 dtypes x 2 numbers of micro-batches x 4 errors; the worker's 2 x 2.
    assert len(limited) == 16 + 4
    assert {line["part"] for line in found["lines"]} >= {
        "replay update",
        "2 layers of small",
        "verl's worker",
    }
    assert "| FAILED |" not in ended.stdout


def test_without_a_cuda_device_it_says_so() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line == "error: torch sees no CUDA device here; --device cpu --small tries the check itself"


def test_the_first_parts_import_nothing_else() -> None:
    code = (
        "import sys; import benchmarks.gpu_check.__main__; "
        f"print([name for name in '{NOT_NEEDED}'.split() if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from a second thread, and lose much where the machine is busy."""
    with data_prep.world.model.one_thread():
        yield


def failures() -> set[str]:
    """What fails in float32, without the number of micro-batches."""
    lines = [line for line in numerics.check("cpu", small=True) if "float32" in line.what]
    return {line.what.rsplit(" ", 1)[-1] for line in lines if not line.passed}


@pytest.mark.usefixtures("one_thread")
def test_weights_a_little_off_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = updates.weigh

    def wrong(*args: Any) -> Any:
        weights, metrics = right(*args)
        return weights * 1.001, metrics

    assert failures() == set()
    monkeypatch.setattr(updates, "weigh", wrong)
    assert {"weights", "gradient"} <= failures()


@pytest.mark.usefixtures("one_thread")
def test_rows_that_see_each_other_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed rows that are told apart no more: every later row has another row as its context."""
    right = updates.packed_log_probs

    def mixed(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return right(
            model,
            batch | {"position_ids": torch.arange(batch["input_ids"].numel()).view_as(batch["input_ids"])},
        )

    monkeypatch.setattr(updates, "packed_log_probs", mixed)
    assert "log-probs" in failures()


def test_lines_by_hand() -> None:
    lines = [
        Line("a", "b", 0.5, "s"),
        Line("a", "c", 2.0, limit=1.0),
        Line("a", "d", float("nan"), limit=1.0),
    ]
    assert [line.passed for line in lines] == [True, False, False]
    assert table(lines).splitlines()[2:] == [
        "| a | b | 0.5 s |  |  |",
        "| a | c | 2 | 1 | FAILED |",
        "| a | d | nan | 1 | FAILED |",
    ]
    assert as_json(lines)[1]["passed"] is False
