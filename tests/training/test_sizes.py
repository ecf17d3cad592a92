"""The sizes that follow from the numbers of rows and devices, by hand."""

import http.server
import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError
from safetensors.torch import save_file

from recipe.rerule.training import sizes
from tests.training.made import composed, rows_file

STAGE2 = {  # rows: batch, epochs, steps, replay warm-up, threshold window, capacity
    2: (2, 40, 40, 10, 8, 80),
    10: (8, 40, 40, 10, 32, 320),
    30: (8, 14, 42, 10, 32, 336),
    100: (16, 7, 42, 10, 64, 672),
    1000: (32, 2, 62, 15, 128, 1200),
    10000: (32, 1, 312, 15, 128, 1200),
}
STAGE1 = {  # rows: batch, epochs, steps, warm-up, learning rate of a model of unknown size
    2: (2, 30, 30, 3, 3e-6),
    10: (8, 30, 30, 3, 3e-6),
    30: (8, 10, 30, 3, 3e-6),
    100: (8, 3, 36, 3, 2.5e-6),
    10000: (8, 3, 3750, 20, 4e-7),
}
CUSTOM = "experiment=custom"


def stage2_sizes(*words: str) -> tuple[int, ...]:
    config = composed(2, CUSTOM, *words)
    batch, epochs, replay = config.data.train_batch_size, config.trainer.total_epochs, config.replay
    steps = epochs * (sizes.count_rows(config.data.train_files) // batch)
    of_batch = config.actor_rollout_ref.actor.ppo_mini_batch_size, replay.min_groups, replay.groups_per_update
    assert of_batch == (batch, batch, batch)
    return batch, epochs, steps, replay.warmup_steps, replay.threshold_window, replay.capacity


def test_sizes_by_the_number_of_rows(tmp_path: Path) -> None:
    for rows, expected in STAGE2.items():
        assert stage2_sizes(f"data.train_files={rows_file(tmp_path, rows, str(rows))}") == expected
    for rows, of_stage1 in STAGE1.items():
        config = composed(1, CUSTOM, f"data.train_files={rows_file(tmp_path, rows, str(rows))}")
        batch, epochs = config.data.train_batch_size, config.trainer.total_epochs
        found = (batch, epochs, epochs * (rows // batch), config.optim.lr_warmup_steps, config.optim.lr)
        assert found == pytest.approx(of_stage1)
    files = [rows_file(tmp_path, count, f"{count}") for count in (12, 18)]
    assert stage2_sizes(f"data.train_files=[{files[0]},{files[1]}]") == STAGE2[30]


def test_rows_that_a_run_leaves_out_do_not_count(tmp_path: Path) -> None:
    all_rows, most = f"data.train_files={rows_file(tmp_path, 1000)}", "data.train_max_samples={}"
    found, plain = composed(2, CUSTOM, all_rows, most.format(30)), composed(2, CUSTOM, all_rows)
    assert (found.data.train_batch_size, found.trainer.total_epochs, found.replay.capacity) == (8, 14, 336)
    for few in (2000, -1, "all"):  # the last is left to the checks, which name the setting
        given = composed(2, CUSTOM, all_rows, most.format(few))
        assert given.data.train_batch_size == plain.data.train_batch_size == 32
    forget = composed(2, "experiment=forget", all_rows, most.format(30))
    assert (forget.data.train_batch_size, forget.trainer.total_epochs) == (8, 10)
    for experiment in (CUSTOM, f"{CUSTOM}/lora_1gpu"):
        stage1 = composed(1, experiment, all_rows, most.format(30))
        assert (stage1.data.train_batch_size, stage1.trainer.total_epochs) == (8, 10)
        assert stage1.optim.lr == pytest.approx(3e-6 * (10 if "lora" in experiment else 1))


def test_what_is_given_counts_and_the_rest_follows(tmp_path: Path) -> None:
    file = f"data.train_files={rows_file(tmp_path, 100)}"
    assert stage2_sizes(file, "data.train_batch_size=4") == (4, 2, 50, 12, 16, 200)
    by_steps = composed(2, CUSTOM, file, "trainer.total_training_steps=20")
    found = by_steps.replay.warmup_steps, by_steps.replay.capacity, by_steps.data.sides
    assert found == (5, 320, "balanced")
    assert composed(1, CUSTOM, file, "optim.lr=2e-4").optim.lr == 2e-4
    of_stage1 = composed(1, CUSTOM, file, "trainer.total_training_steps=5")
    assert of_stage1.optim.lr == pytest.approx(3e-6)  # as over 30 steps
    assert of_stage1.signal.every == 2


BATCH, EPOCHS, TOTAL = "data.train_batch_size", "trainer.total_epochs", "trainer.total_training_steps"


@pytest.mark.parametrize("words", [(1, CUSTOM), (2, CUSTOM), (2, "experiment=forget")])
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        *((BATCH, value, "set it to a whole number >= 1") for value in ("0", "-8", "2.5", "'abc'", "null")),
        *((EPOCHS, value, "set it to a whole number >= 1") for value in ("0", "'abc'", "null")),
        *(
            (TOTAL, value, "set it to a whole number >= 1, or null (by total_epochs)")
            for value in ("0", "'abc'")
        ),
        ("data.train_files", "", "no rows; give a file with rows"),
    ],
)
def test_a_value_that_no_size_follows_from_is_named(
    words: tuple[int, str], key: str, value: str, said: str, tmp_path: Path
) -> None:
    file = rows_file(tmp_path, 30 if value else 0)
    rows_file(tmp_path, 30, "train")
    given = f"{key} is {value}; " if value else f"{file}: "
    wrong = [f"{key}={value}".replace("'", "")] if value else []
    config = composed(*words, f"data.train_files={file}", *wrong)
    with pytest.raises(InterpolationResolutionError) as raised:
        OmegaConf.resolve(config)
    assert str(raised.value).startswith(f"ValueError raised while resolving interpolation: {given}{said}")


def test_a_run_on_own_data_validates_about_six_times(tmp_path: Path) -> None:
    for rows, steps, every in ((2, "null", 7), (1000, "null", 10), (10_000, "null", 52), (30, "2", 1)):
        file = f"data.train_files={rows_file(tmp_path, rows, str(rows))}"
        trainer = composed(2, CUSTOM, file, f"trainer.total_training_steps={steps}").trainer
        assert (trainer.test_freq, trainer.val_before_train) == (every, True)
    assert composed(2, "experiment=tiny").trainer.test_freq == -1


RATES = {  # parameters: rate of stage 1 over 30 and over 300 steps, rate of stage 2
    1e5: (2e-4, 2e-5, 1e-4),
    2e6: (2e-4, 2e-5, 1e-4),
    1.35e8: (1e-5, 1e-6, 3e-5),
    8e9: (3e-6, 4e-7, 2e-6),
    # Half of the way from 135 million to a billion in logarithms: the geometric means.
    math.sqrt(1.35e17): (math.sqrt(2.7e-8) / 30, math.sqrt(2.7e-8) / 300, math.sqrt(6e-11)),
}


@pytest.mark.parametrize("count", RATES)
def test_learning_rates_fall_with_the_size_of_the_model(count: float) -> None:
    of_stage1 = [sizes.stage1_rate(steps, int(count)) for steps in (30, 300)]
    assert (*of_stage1, sizes.stage2_rate(int(count))) == pytest.approx(RATES[count], rel=0.01)


def test_parameters_are_counted_from_the_headers_of_the_weights(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7)}, tmp_path / "model-1.safetensors")
    save_file({"c": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "model-2.safetensors")
    assert (sizes.parameters(str(tmp_path)), sizes.parameters("owner/name")) == (24, None)
    rows = f"data.train_files={rows_file(tmp_path, 30)}"
    assert composed(1, CUSTOM, rows, f"model.path={tmp_path}").optim.lr == pytest.approx(2e-4)
    actor = composed(2, CUSTOM, f"actor_rollout_ref.model.path={tmp_path}").actor_rollout_ref.actor
    assert actor.optim.lr == pytest.approx(1e-4)
    assert composed(2, CUSTOM).actor_rollout_ref.actor.optim.lr == 2e-6
    whole = (tmp_path / "model-2.safetensors").read_bytes()
    for damaged in (b"", whole[:-1], whole[:12], b"version https://git-lfs.github.com/spec/v1"):
        (tmp_path / "model-2.safetensors").write_bytes(damaged)
        assert sizes.parameters(str(tmp_path)) is None


def test_the_hub_says_how_large_a_model_is_and_without_it_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            counted = {"parameters": {"BF16": 2_000_000}, "total": 2_000_000}
            answer = json.dumps({"id": "own/small", "safetensors": counted}).encode()
            self.send_response(200 if "own/small" in self.path else 404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        rows = f"data.train_files={rows_file(tmp_path, 30)}"
        assert composed(1, CUSTOM, rows, "model.path=own/small").optim.lr == pytest.approx(2e-4)
        assert sizes.parameters("own/none") is sizes.parameters("no such/name") is None
        server.shutdown()
    assert [path for path in asked if path.startswith("/api/models")] == [
        f"/api/models/own/{name}?expand=safetensors" for name in ("small", "none")
    ]
    snapshot = tmp_path / "models--own--cached" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    save_file({"a": torch.zeros(3, 5)}, snapshot / "model.safetensors")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert sizes.parameters("own/cached") == 15


def test_prompts_are_looked_for_beside_the_rows(tmp_path: Path) -> None:
    config = composed(1, CUSTOM, f"data.train_files={rows_file(tmp_path, 30, 'sft')}")
    with pytest.raises(InterpolationResolutionError, match=r"has no train\.parquet.*data\.prompt_files=null"):
        _ = config.data.prompt_files
    prompts = rows_file(tmp_path, 60, "train")
    assert config.data.prompt_files == str(prompts)
    assert (config.stop, config.data.retain_share, config.signal.every) == ("signal", 0.5, 8)
    plain = composed(1)
    assert (plain.stop, plain.data.retain_share, plain.data.prompt_files) == ("none", 0.0, None)


NODE, ROWS = "trainer.n_gpus_per_node", "actor_rollout_ref.rollout.n"
MICRO = [
    # Overrides; rows a pass of the update and of log-probs, of 256 rows a step.
    *((f"{NODE}={devices}", (8, 16)) for devices in (1, 16)),
    *((f"{NODE}={devices}", sizes) for devices, sizes in {32: (8, 8), 64: (4, 4), 256: (1, 1)}.items()),
    ("actor_rollout_ref.actor.ppo_mini_batch_size=8 trainer.nnodes=4", (4, 4)),  # 64 rows on 16 devices
    (f"{ROWS}=6 {NODE}=2", (8, 16)),  # 96 rows each
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3", (3, 16)),
    # Wrong values are left to the checks: they name the setting, and a size that depends on it does not.
    *((f"{ROWS}={text}", (8, 16)) for text in ("many", "null", "2.5", "0")),
    ("trainer.nnodes=0", (8, 16)),
]


@pytest.mark.parametrize(("overrides", "sizes"), MICRO)
def test_micro_batches_fit_the_rows_of_a_device(overrides: str, sizes: tuple[int, int]) -> None:
    config = composed(2, *overrides.split())
    OmegaConf.resolve(config)
    model = config.actor_rollout_ref
    found = {model.rollout.log_prob_micro_batch_size_per_gpu, model.ref.log_prob_micro_batch_size_per_gpu}
    assert (model.actor.ppo_micro_batch_size_per_gpu, found) == (sizes[0], {sizes[1]})


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
    assert composed(2, model).actor_rollout_ref.rollout.max_model_len == length
    shorter = composed(2, model, "data.max_response_length=64")
    assert shorter.actor_rollout_ref.rollout.max_model_len == min(576, length)


MODEL = "actor_rollout_ref.model"
OF_TOKEN = 4 * 30 * (14 * 576 + 4 * 1536)
GPU = f"platform.name=gpu {MODEL}.enable_gradient_checkpointing=true"


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        ("", 10**9 // OF_TOKEN),
        (f"{MODEL}.use_fused_kernels=false", 10**9 // (OF_TOKEN + 12 * 49152)),
        ("data.max_prompt_length=1000", 1032),
        (GPU, 16384),
        (f"{GPU} {MODEL}.use_fused_kernels=false", 10**10 // (2 * 30 * 576 + 12 * 49152)),
        (f"{MODEL}.path=elsewhere", 16384),
    ],
)
def test_passes_by_the_sizes_of_the_model(words: str, tokens: int, tmp_path: Path) -> None:
    """SmolLM2-135M keeps 30 x (14 x 576 + 4 x 1536) float32 numbers a token, and 12 bytes a logit."""
    named = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **named}))
    short = ["data.max_prompt_length=128", "data.max_response_length=32", "platform.name=cpu"]
    short += [f"{MODEL}.path={tmp_path}", f"{MODEL}.enable_gradient_checkpointing=false"]
    config = composed(2, CUSTOM, *short, *words.split())
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == tokens


@pytest.mark.parametrize(
    ("choice", "instructions", "dtype"),
    [(False, True, "fp32"), (True, False, "bf16"), ("auto", True, "bf16"), ("auto", False, "fp32")],
)
def test_the_dtype_of_passes(choice: bool | str, instructions: bool, dtype: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert sizes.passes_dtype(choice) == dtype


def test_mini_batches_divide_the_batch() -> None:
    assert [sizes.mini_batch(batch, 8) for batch in (4, 8, 28)] == [1, 1, 2]  # 3 does not divide 28


@pytest.mark.parametrize(
    ("words", "size"), [("", -1), ("trainer.nnodes=2", 4), ("trainer.nnodes=2 trainer.n_gpus_per_node=8", 8)]
)
def test_weights_are_shared_within_a_node(words: str, size: int) -> None:
    config = composed(2, "experiment=rwku", *words.split())
    actor, reference = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref
    for section in (actor.fsdp_config, reference.fsdp_config, config.critic.fsdp):
        assert section.fsdp_size == size
