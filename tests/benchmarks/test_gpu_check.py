"""The check for a GPU, on a processor: that it passes, that it can fail, and what it needs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_check import numerics, updates
from benchmarks.gpu_check.lines import Line, table

ROOT = Path(__file__).resolve().parents[2]
NOT_NEEDED = (
    "pyarrow rouge_score verl ray vllm hydra omegaconf tensordict datasets openai jsonschema matplotlib"
)


@pytest.mark.e2e
@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_command_on_a_processor() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--small"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (found["passed"], found["device"]) == (True, "cpu")
    limited = [line for line in found["lines"] if line["limit"] is not None]
    # 2 dtypes x 2 numbers of micro-batches x 4 errors; the worker's 2 x 2.
    assert len(limited) == 16 + 4
    parts = {line["part"] for line in found["lines"]}
    assert parts >= {"replay update", "2 layers of small", "verl's worker"}


def test_without_a_cuda_device_it_says_so_and_the_first_parts_import_nothing_else() -> None:
    code = (
        "import sys; import benchmarks.gpu_check.__main__ as check; "
        f"print([name for name in '{NOT_NEEDED}'.split() if name in sys.modules]); check.main()"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.strip()) == (1, "[]")
    told = "error: torch sees no CUDA device here; --device cpu --small tries the check itself"
    assert ended.stderr.splitlines() == [told]


def weights_a_little_off(*arguments: Any) -> Any:
    weights, metrics = RIGHT["weigh"](*arguments)
    return weights * 1.001, metrics


def rows_that_see_each_other(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Packed rows that are told apart no more: every later row has another row as its context."""
    places = torch.arange(batch["input_ids"].numel()).view_as(batch["input_ids"])
    return RIGHT["packed_log_probs"](model, batch | {"position_ids": places})


RIGHT = {"weigh": updates.weigh, "packed_log_probs": updates.packed_log_probs}


@pytest.mark.parametrize(
    ("name", "wrong", "fails"),
    [
        ("weigh", RIGHT["weigh"], set()),
        ("weigh", weights_a_little_off, {"weights", "gradient"}),
        ("packed_log_probs", rows_that_see_each_other, {"log-probs"}),
    ],
)
def test_a_wrong_update_fails(name: str, wrong: Any, fails: set[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(updates, name, wrong)
    lines = [line for line in numerics.check("cpu", small=True) if "float32" in line.what]
    failed = {line.what.rsplit(" ", 1)[-1] for line in lines if not line.passed}
    assert failed >= fails
    assert bool(failed) == bool(fails)


def test_lines_by_hand() -> None:
    values = (0.5, None, "s"), (2.0, 1.0, ""), (float("nan"), 1.0, "")
    lines = [Line("a", "b", value, unit, limit) for value, limit, unit in values]
    assert [line.passed for line in lines] == [True, False, False]
    assert table(lines).splitlines()[2:] == [
        "| a | b | 0.5 s |  |  |",
        "| a | b | 2 | 1 | FAILED |",
        "| a | b | nan | 1 | FAILED |",
    ]
