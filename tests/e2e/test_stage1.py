"""Stage 1 with own answers and sampled responses, on the real stack: the best step is kept (`full`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from data_prep.contract import read_rows, read_sft_rows
from recipe.rerule.runs.history import read_metrics
from recipe.rerule.training import own_answers, signal
from tests.e2e.stack import Command

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(900)]

STEPS = 8
OPTIONS = {
    "one rank": ["data.retain_share=0.5", "model.use_fused_kernels=true"],
    "two ranks, LoRA": [
        *("trainer.n_gpus_per_node=2", "data.micro_batch_size_per_gpu=4"),
        *("model.lora_rank=4", "model.lora_alpha=8", "optim.lr=1e-2"),
    ],
}


@pytest.fixture(scope="module", params=OPTIONS)
def run(request: Any, micro_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stage1")
    command = Command(
        [
            *("-m", "recipe.rerule.sft", "experiment=tiny", f"model.path={micro_world}/model"),
            *(f"data.train_files={micro_world}/sft.parquet", f"trainer.default_local_dir={folder}/run"),
            *(f"data.prompt_files={micro_world}/train.parquet", "stop=signal", "signal.every=3"),
            *("optim.lr=5e-3", "data.max_response_length=16", "trainer.save_freq=1", "signal.prompts=5"),
            *(f"trainer.total_training_steps={STEPS}", "trainer.total_epochs=3", *OPTIONS[request.param]),
        ],
        folder / "log.txt",
    )
    try:
        assert command.wait() == 0, command.output[-3000:]
    finally:
        command.end()
    return folder / "run"


def test_it_samples_before_training_every_few_steps_and_at_the_end(run: Path) -> None:
    signals = signal.read(run)
    assert [one.step for one in signals] == [0, 3, 6, STEPS]
    metrics = read_metrics(run)
    assert sorted(metrics) == list(range(1, STEPS + 1))
    for one in signals[1:]:
        assert {name: metrics[one.step][name] for name in one.metrics} == pytest.approx(one.metrics)
    assert "signal/forget/mixed" not in metrics[2]


def test_the_model_is_that_of_the_best_step(run: Path) -> None:
    """Each step before the last has its checkpoint; the last one's holds what was kept."""
    kept = signal.best(signal.read(run)).step
    written = {step: _weights(run / f"global_step_{step}") for step in range(1, STEPS)}
    last = _weights(run)
    same = [step for step, weights in written.items() if _equal(weights, last)]
    assert same == ([kept] if kept < STEPS else [])
    line = (run.parent / "log.txt").read_text()
    assert f"start of stage 2 (step {kept} of {STEPS}): forget refused" in line


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """The adapter where there is one, else the model, of a checkpoint or of the whole run."""
    names = ("lora_adapter/adapter_model", "huggingface/model", "model/model")
    found = [path for name in names if (path := folder / f"{name}.safetensors").is_file()]
    return load_file(found[0])


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_own_answers_are_right_answers_of_the_retain_side(run: Path, micro_world: Path) -> None:
    if not own_answers.file(run).is_file():
        assert "retain prompts answered right" not in (run.parent / "log.txt").read_text()
        return
    rows = {row["prompt"][0]["content"]: row for row in read_rows(micro_world / "train.parquet")}
    answered = read_sft_rows(own_answers.file(run))
    for row in answered:
        prompt, answer = (message["content"] for message in row["messages"])
        asked = rows[prompt]
        assert asked["reward_model"]["ground_truth"]["type"] == "retain"
        assert signal.judge(asked, answer, {})[1]
    assert (run.parent / "own_answers" / "stage1.jsonl").is_file()
