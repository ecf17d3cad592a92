"""Stage 1 with own answers and sampled responses, on the real stack: the best step is kept."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recipe.rerule.runs.history import read_metrics
from recipe.rerule.training import own_answers, signal
from tests.e2e.stack import finish

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(900)]

STEPS = 8
OPTIONS = {
    "one rank": ["data.retain_share=0.5", "model.use_fused_kernels=true"],
    "two ranks, LoRA": [
        *("trainer.n_gpus_per_node=2", "data.micro_batch_size_per_gpu=4"),
        *("model.lora_rank=4", "model.lora_alpha=8", "optim.lr=1e-2"),
    ],
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_best_step_is_kept(options: list[str], micro_world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    log = finish(
        tmp_path / "log.txt",
        *("-m", "recipe.rerule.sft", "experiment=tiny", f"model.path={micro_world}/model"),
        *(f"data.train_files={micro_world}/sft.parquet", f"trainer.default_local_dir={run}"),
        *(f"data.prompt_files={micro_world}/train.parquet", "stop=signal", "signal.every=3"),
        *("optim.lr=5e-3", "data.max_response_length=16", "trainer.save_freq=1", "signal.prompts=5"),
        *(f"trainer.total_training_steps={STEPS}", "trainer.total_epochs=3", *options),
    )
    # It samples before training, every few steps and at the end.
    signals, metrics = signal.read(run), read_metrics(run)
    assert [one.step for one in signals] == [0, 3, 6, STEPS]
    assert sorted(metrics) == list(range(1, STEPS + 1))
    for one in signals[1:]:
        assert {name: metrics[one.step][name] for name in one.metrics} == pytest.approx(one.metrics)
    assert "signal/forget/mixed" not in metrics[2]

    # Each step before the last has its checkpoint; the last one's holds what was kept.
    kept, last = signal.best(signals).step, weights(run)
    same = [step for step in range(1, STEPS) if equal(weights(run / f"global_step_{step}"), last)]
    assert same == ([kept] if kept < STEPS else [])
    assert f"start of stage 2 (step {kept} of {STEPS}): forget refused" in log

    with_answers = "data.retain_share=0.5" in options
    assert ("retain prompts answered right" in log) == with_answers
    assert own_answers.file(run).is_file() == with_answers
    assert (tmp_path / "own_answers" / "answers.jsonl").is_file() == with_answers


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The adapter where there is one, else the model, of a checkpoint or of the whole run."""
    names = ("lora_adapter/adapter_model", "huggingface/model", "model/model")
    return load_file(next(path for name in names if (path := folder / f"{name}.safetensors").is_file()))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)
