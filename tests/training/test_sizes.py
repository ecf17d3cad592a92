"""The sizes that follow from the numbers of rows and devices, by hand."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError
from safetensors.torch import save_file

import recipe.rerule.config.stage1
from recipe.rerule.preflight import checks
from recipe.rerule.training import sizes
from tests import document_programs

# rows: batch, epochs, steps, replay warm-up, threshold window, capacity
STAGE2 = {
    2: (2, 40, 40, 10, 8, 80),
    10: (8, 40, 40, 10, 32, 320),
    30: (8, 14, 42, 10, 32, 336),
    100: (16, 7, 42, 10, 64, 672),
    1000: (32, 2, 62, 15, 128, 1200),
    10000: (32, 1, 312, 15, 128, 1200),
}
# rows: batch, epochs, steps, warm-up, learning rate of a model of unknown size
STAGE1 = {
    2: (2, 30, 30, 3, 3e-6),
    10: (8, 30, 30, 3, 3e-6),
    30: (8, 10, 30, 3, 3e-6),
    100: (8, 3, 36, 3, 2.5e-6),
    1000: (8, 3, 375, 20, 4e-7),
    10000: (8, 3, 3750, 20, 4e-7),
}


@pytest.fixture(autouse=True)
def _registered() -> None:
    sizes.register()


def rows_file(folder: Path, rows: int, name: str = "rows") -> Path:
    pq.write_table(pa.table({"row": list(range(rows))}), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


@cache
def composed(module: str, name: str, experiment: str | None) -> Any:
    with initialize_config_module(module, version_base=None):
        return compose(name, [f"experiment={experiment}"] if experiment else [])


def stage2(*overrides: str, experiment: str | None = "custom") -> Any:
    """Composing takes a second and what is derived is derived when it is asked for: overrides come later."""
    config = deepcopy(composed("recipe.rerule.config", "rerule_trainer", experiment))
    config.merge_with_dotlist(list(overrides))
    return config


def stage1(*overrides: str, experiment: str | None = "custom") -> Any:
    config = deepcopy(composed(recipe.rerule.config.stage1.__name__, "sft_trainer", experiment))
    config.merge_with_dotlist(list(overrides))
    return config


def stage2_sizes(config: DictConfig) -> tuple[int, ...]:
    batch, epochs, replay = config.data.train_batch_size, config.trainer.total_epochs, config.replay
    steps = epochs * (sizes.count_rows(config.data.train_files) // batch)
    assert (config.actor_rollout_ref.actor.ppo_mini_batch_size, replay.min_groups) == (batch, batch)
    assert replay.groups_per_update == batch
    return batch, epochs, steps, replay.warmup_steps, replay.threshold_window, replay.capacity


@pytest.mark.parametrize("rows", STAGE2)
def test_sizes_of_stage_2(rows: int, tmp_path: Path) -> None:
    assert stage2_sizes(stage2(f"data.train_files={rows_file(tmp_path, rows)}")) == STAGE2[rows]


@pytest.mark.parametrize("rows", STAGE1)
def test_sizes_of_stage_1(rows: int, tmp_path: Path) -> None:
    config = stage1(f"data.train_files={rows_file(tmp_path, rows)}")
    batch, epochs = config.data.train_batch_size, config.trainer.total_epochs
    found = (batch, epochs, epochs * (rows // batch), config.optim.lr_warmup_steps, config.optim.lr)
    assert found == pytest.approx(STAGE1[rows])


# Parameters: rate of stage 1 over 30 and over 300 steps, rate of stage 2.
RATES = {
    1e5: (2e-4, 2e-5, 1e-4),
    2e6: (2e-4, 2e-5, 1e-4),
    1.35e8: (1e-5, 1e-6, 3e-5),
    8e9: (3e-6, 4e-7, 2e-6),
    # Half of the way from 135 million to a billion in logarithms: the geometric means.
    math.sqrt(1.35e8 * 1e9): (
        math.sqrt(3e-4 * 9e-5) / 30,
        math.sqrt(3e-4 * 9e-5) / 300,
        math.sqrt(3e-5 * 2e-6),
    ),
}


@pytest.mark.parametrize("count", RATES)
def test_learning_rates_fall_with_the_size_of_the_model(count: float) -> None:
    made = (
        sizes.stage1_rate(30, int(count)),
        sizes.stage1_rate(300, int(count)),
        sizes.stage2_rate(int(count)),
    )
    assert made == pytest.approx(RATES[count], rel=0.01)


def test_parameters_are_counted_from_the_headers_of_the_weights(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7)}, tmp_path / "model-1.safetensors")
    save_file({"c": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "model-2.safetensors")
    assert sizes.parameters(str(tmp_path)) == 24
    assert sizes.parameters("owner/name") is None
    file = rows_file(tmp_path, 30, "sft")
    assert stage1(f"data.train_files={file}", f"model.path={tmp_path}").optim.lr == pytest.approx(2e-4)
    config = stage2(f"actor_rollout_ref.model.path={tmp_path}")
    assert config.actor_rollout_ref.actor.optim.lr == pytest.approx(1e-4)


def test_prompts_are_looked_for_beside_the_rows(tmp_path: Path) -> None:
    config = stage1(f"data.train_files={rows_file(tmp_path, 30, 'sft')}")
    with pytest.raises(InterpolationResolutionError, match=r"has no train\.parquet.*data\.prompt_files=null"):
        _ = config.data.prompt_files
    prompts = rows_file(tmp_path, 60, "train")
    assert config.data.prompt_files == str(prompts)
    assert (config.stop, config.data.retain_share, config.signal.every) == ("signal", 0.5, 8)
    plain = stage1(experiment=None)
    assert (plain.stop, plain.data.retain_share, plain.data.prompt_files) == ("none", 0.0, None)


def test_what_is_given_counts_and_the_rest_follows(tmp_path: Path) -> None:
    file = rows_file(tmp_path, 100)
    by_batch = stage2(f"data.train_files={file}", "data.train_batch_size=4")
    assert stage2_sizes(by_batch) == (4, 2, 50, 12, 16, 200)
    by_steps = stage2(f"data.train_files={file}", "trainer.total_training_steps=20")
    assert (by_steps.replay.warmup_steps, by_steps.replay.capacity) == (5, 320)
    assert stage1(f"data.train_files={file}", "optim.lr=2e-4").optim.lr == 2e-4
    by_steps_1 = stage1(f"data.train_files={file}", "trainer.total_training_steps=5")
    assert by_steps_1.optim.lr == pytest.approx(3e-6)  # as over 30 steps
    assert (by_steps_1.signal.every, by_steps.data.sides) == (2, "balanced")


def test_a_run_on_own_data_validates_about_six_times(tmp_path: Path) -> None:
    for rows, every in ((2, 7), (100, 7), (1000, 10), (10_000, 52)):
        trainer = stage2(f"data.train_files={rows_file(tmp_path, rows, str(rows))}").trainer
        assert (trainer.test_freq, trainer.val_before_train) == (every, True)
    short = stage2(f"data.train_files={rows_file(tmp_path, 30)}", "trainer.total_training_steps=2").trainer
    assert short.test_freq == 1
    for name in ("rwku", "tiny", "paper/tofu"):
        assert stage2(experiment=name).trainer.test_freq == -1


def test_rows_of_several_files_add_up_and_what_needs_no_rows_is_there_without_them(tmp_path: Path) -> None:
    files = [rows_file(tmp_path, count, f"{count}") for count in (12, 18)]
    assert stage2_sizes(stage2(f"data.train_files=[{files[0]},{files[1]}]")) == STAGE2[30]
    config = stage2()
    assert config.actor_rollout_ref.actor.optim.lr == 2e-6
    assert "rerule.epochs" in OmegaConf.to_yaml(config.trainer)


@pytest.mark.parametrize(
    ("number", "limit", "largest"),
    [(64, 6, 4), (64, 64, 64), (64, 65, 64), (12, 8, 6), (7, 5, 1), (1, 8, 1), (10**24, 10**12, 2**16)],
)
def test_the_largest_divisor_up_to_a_limit(number: int, limit: int, largest: int) -> None:
    assert sizes.largest_divisor(number, limit) == largest


NODE, ROWS = "trainer.n_gpus_per_node", "actor_rollout_ref.rollout.n"
MICRO = [
    # Overrides; rows a pass of the update and of log-probs, of 256 rows a step.
    *((f"{NODE}={devices}", sizes) for devices, sizes in {1: (8, 16), 4: (8, 16), 16: (8, 16)}.items()),
    *((f"{NODE}={devices}", sizes) for devices, sizes in {32: (8, 8), 64: (4, 4), 256: (1, 1)}.items()),
    ("actor_rollout_ref.actor.ppo_mini_batch_size=8 trainer.nnodes=4", (4, 4)),  # 64 rows on 16 devices
    (f"{ROWS}=6 {NODE}=2", (8, 16)),  # 96 rows each
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3", (3, 16)),
    # Wrong values are left to the checks: they name the setting, and a size that depends on it does not.
    *(
        (f"{key}={text}", (8, 16))
        for key in (ROWS, "trainer.nnodes")
        for text in ("many", "null", "2.5", "0")
    ),
]


@pytest.mark.parametrize(("overrides", "sizes"), MICRO)
def test_micro_batches_fit_the_rows_of_a_device(overrides: str, sizes: tuple[int, int]) -> None:
    config = stage2(*overrides.split(), experiment=None)
    OmegaConf.resolve(config)
    model = config.actor_rollout_ref
    found = {model.rollout.log_prob_micro_batch_size_per_gpu, model.ref.log_prob_micro_batch_size_per_gpu}
    assert (model.actor.ppo_micro_batch_size_per_gpu, found) == (sizes[0], {sizes[1]})


@pytest.mark.parametrize(("devices", "rows"), [(1, 2), (4, 2), (8, 1), (16, 2)])
def test_micro_batches_of_stage_1(devices: int, rows: int) -> None:
    """16 devices cannot share 8 rows: that is refused, whatever the micro-batch."""
    config = stage1(f"trainer.n_gpus_per_node={devices}", experiment=None)
    assert config.data.micro_batch_size_per_gpu == rows


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ('{"max_position_embeddings": 131072}', 1536),
        ('{"max_position_embeddings": 1024}', 1024),
        ('{"n_positions": 1024}', 1024),
        ('{"text_config": {"max_position_embeddings": 512}}', 512),
        ('{"max_position_embeddings": null}', 1536),
        ("[]", 1536),
        ("no JSON", 1536),
    ],
)
def test_the_rollout_engine_plans_for_prompt_and_response_and_no_more_than_the_model_reads(
    config: str, length: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(config)
    model = f"actor_rollout_ref.model.path={tmp_path}"
    assert stage2(model, experiment=None).actor_rollout_ref.rollout.max_model_len == length
    shorter = stage2(model, "data.max_response_length=64", experiment=None)
    assert shorter.actor_rollout_ref.rollout.max_model_len == min(576, length)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("missing.parquet", "missing.parquet: no such file"),
        ("text.parquet", "text.parquet: not a readable parquet file"),
        (None, "data.train_files is not set"),
    ],
)
def test_rows_that_cannot_be_counted(file: str | None, reason: str, tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("question,answer\n")
    overrides = [] if file is None else [f"data.train_files={tmp_path / file}"]
    with pytest.raises(InterpolationResolutionError, match=reason):
        _ = stage2(*overrides).data.train_batch_size
    if file == "missing.parquet":  # as a run says it, in plain words
        with pytest.raises(ValueError, match=r"^\S*missing.parquet: no such file$"):
            checks.prepare(stage2(*overrides), require_accelerator=False)


def test_passes_by_the_sizes_of_the_model(tmp_path: Path) -> None:
    """SmolLM2-135M keeps 30 x (14 x 576 + 4 x 1536) float32 numbers a token, and 12 bytes a logit."""
    named = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **named}))
    short = ["data.max_prompt_length=128", "data.max_response_length=32", "platform.name=cpu"]
    short += [f"actor_rollout_ref.model.path={tmp_path}"]
    short += ["actor_rollout_ref.model.enable_gradient_checkpointing=false"]

    def tokens(*more: str) -> int:
        return stage2(*short, *more).actor_rollout_ref.actor.ppo_max_token_len_per_gpu

    of_token = 4 * 30 * (14 * 576 + 4 * 1536)
    assert tokens() == 10**9 // of_token == 586
    assert (
        tokens("actor_rollout_ref.model.use_fused_kernels=false") == 10**9 // (of_token + 12 * 49152) == 435
    )
    assert tokens("data.max_prompt_length=1000") == 1032
    on_gpu = ["platform.name=gpu", "actor_rollout_ref.model.enable_gradient_checkpointing=true"]
    assert tokens(*on_gpu) == 16384
    plain = [*on_gpu, "actor_rollout_ref.model.use_fused_kernels=false"]
    assert tokens(*plain) == 10**10 // (2 * 30 * 576 + 12 * 49152) == 16015
    assert tokens("actor_rollout_ref.model.path=elsewhere") == 16384


@pytest.mark.parametrize(
    ("choice", "instructions", "dtype"),
    [(False, True, "fp32"), (True, False, "bf16"), ("auto", True, "bf16"), ("auto", False, "fp32")],
)
def test_the_dtype_of_passes(
    choice: bool | str, instructions: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert sizes.passes_dtype(choice) == dtype


@pytest.mark.parametrize(("name", "options"), [("AdamW", {"fused": True}), ("SGD", None)])
def test_what_an_optimizer_takes_on_a_processor(name: str, options: dict[str, bool] | None) -> None:
    words = ("platform=cpu", f"actor_rollout_ref.actor.optim.optimizer={name}")
    config = document_programs.composed("recipe.rerule.main", words)
    assert config.actor_rollout_ref.actor.optim.override_optimizer_config == options
