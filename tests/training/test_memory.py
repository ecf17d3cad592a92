"""Memory of a run: by hand for Llama-3-8B with an adapter, and what is said of cards and machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from recipe.rerule.platform.log_probs import CHUNK_BYTES
from recipe.rerule.schema import SettingsError
from recipe.rerule.training import lora, memory
from recipe.rerule.training.memory import GB, SAMPLING, SENDING, UPDATE, Run, Sizes
from tests.training.test_lora import SMALL as SMALL_CONFIG
from tests.training.test_lora import put_config, section

BASE, ADAPTER = 8_030_261_248, 83_886_080
EMBEDDINGS = 128256 * 4096
LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
LLAMA3 = Sizes(BASE, ADAPTER, 2 * EMBEDDINGS + 4096, EMBEDDINGS, 4096, 14336, 32, 128256, 2048)
LONGEST = 512 + 1024
BOUND = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
ON_80 = Run(1, 4, 2 * LONGEST, 4 * LONGEST, LONGEST, BOUND, engine_share=0.45)
ON_40 = Run(1, 2, LONGEST, LONGEST, LONGEST, BOUND, param_offload=True, engine_share=0.6)
TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
LORA_80 = Run(1, 2, 16384, 16384, LONGEST, TOKENS, engine_share=0.45, fused=True)
LORA_40 = Run(1, 2, 4096, 4096, LONGEST, TOKENS, param_offload=True, engine_share=0.6, fused=True)
"""The experiment lora_1gpu, and its settings for 40 GB."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Llama-3-8B with an adapter; building it takes seconds."""
    return lora.adapted(section(put_config(tmp_path_factory.mktemp("llama3")), lora_rank=32))


@pytest.fixture
def llama3(built: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model that is built once for all tests."""
    monkeypatch.setattr(lora, "adapted", lambda model: built)
    return Path("llama3")


def test_sizes_are_those_of_the_model(built: Any) -> None:
    assert memory.sizes(built) == LLAMA3
    assert 32 * LAYER + 2 * EMBEDDINGS + 4096 == BASE


def test_the_parts_of_an_update_by_hand() -> None:
    parts = memory.moments(LLAMA3, ON_80)[UPDATE]
    assert parts == {
        "base weights": 4 * BASE,
        "adapter and optimizer": 16 * ADAPTER,
        "gathered weights": 2 * (2 * EMBEDDINGS + 4096 + 2 * LAYER),
        "kept activations": 2 * 3072 * 4096 * 32,
        "a layer's activations": 2 * 3072 * (8 * 4096 + 4 * 14336),
        "logits": 6144 * 10 * 128256,  # more than 3072 * 12 * 128256
        "context": 2e9,
        "sleeping engine": 2e9,
    }
    assert sum(parts.values()) / GB == pytest.approx(49.7, abs=0.1)
    alone = memory.moments(LLAMA3, Run(1, 4, 1024))[UPDATE]
    assert alone["logits"] == 1024 * 12 * 128256
    assert "sleeping engine" not in alone
    two = memory.moments(LLAMA3, replace(ON_80, devices=2))[UPDATE]
    for name in ("base weights", "adapter and optimizer"):
        assert two[name] == parts[name] / 2
    assert {name for name, size in two.items() if size == parts[name]} == set(parts) - {
        "base weights",
        "adapter and optimizer",
    }


def test_weights_of_trainer_and_engine_are_there_together_while_they_are_sent() -> None:
    sent = memory.moments(LLAMA3, ON_80)[SENDING]
    assert sent["base weights"] == 4 * BASE
    assert sent["engine's weights"] == 2 * (BASE + ADAPTER)
    assert sent["adapter and optimizer"] == 12 * ADAPTER
    assert sum(sent.values()) / GB == pytest.approx(53.4, abs=0.1)
    merged = memory.moments(LLAMA3, Run(1, 4, 1, optimizer_offload=True, merge=True, engine_share=0.5))[
        SENDING
    ]
    assert merged["engine's weights"] == 2 * BASE
    assert merged["adapter and optimizer"] == 4 * ADAPTER
    assert merged["largest tensor"] == 4 * EMBEDDINGS


@pytest.mark.parametrize(
    ("param", "optimizer", "base", "adapter"), [(0, 0, 4, 12), (1, 0, 0, 8), (0, 1, 4, 4), (1, 1, 0, 0)]
)
def test_what_stays_while_the_engine_samples(param: int, optimizer: int, base: int, adapter: int) -> None:
    run = Run(1, 4, 1, param_offload=bool(param), optimizer_offload=bool(optimizer), engine_share=0.5)
    assert memory.moments(LLAMA3, run)[SAMPLING] == {
        "base weights": base * BASE,
        "adapter and optimizer": adapter * ADAPTER,
        "context": 2e9,
    }


def test_tokens_that_the_engine_keeps() -> None:
    """A token takes two bytes for each of 2,048 keys and values of 32 layers: 128 KiB."""
    room = 0.45 * 80e9 - 2 * (BASE + ADAPTER) - 2e9
    assert memory.cached_tokens(LLAMA3, ON_80, 80 * GB) == int(room // 131072) == 135_587
    assert memory.cached_tokens(LLAMA3, ON_80, 40 * GB) == 0


@pytest.mark.parametrize(
    ("run", "card", "shortage"),
    [
        (ON_80, 80, None),
        (ON_80, 40, "the update needs 49.7 GB"),
        (ON_40, 40, None),
        (replace(ON_40, engine_share=0.99), 40, "sampling needs 42.3 GB"),
        (replace(ON_40, engine_share=0.4), 40, "0.4 of it holds the engine's weights and no response"),
    ],
)
def test_which_cards_are_too_small_and_why(run: Run, card: int, shortage: str | None) -> None:
    found = memory.shortage(LLAMA3, run, card * GB)
    assert found is None if shortage is None else shortage in (found or "")


def composed(stage: int, *overrides: str) -> DictConfig:
    module, name = [
        ("recipe.rerule.config.stage1", "sft_trainer"),
        ("recipe.rerule.config", "rerule_trainer"),
    ][stage - 1]
    with initialize_config_module(module, version_base=None):
        config = compose(name, list(overrides))
    OmegaConf.resolve(config)
    return config


def said(stage: int, *overrides: str) -> list[str]:
    return memory.said(composed(stage, *overrides))


FSDP = "actor_rollout_ref.actor.fsdp_config"
FOR_40_GB = [
    f"{FSDP}.param_offload=true",
    f"{TOKENS}=4096",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "actor_rollout_ref.model.use_fused_kernels=true",  # as of a folder with a config.json of Llama
]
"""As config/common/lora_1gpu.yaml has them."""


@pytest.mark.parametrize(
    "benchmark",
    ["rwku", *(pytest.param(name, marks=pytest.mark.full) for name in ("tofu", "muse_books", "muse_news"))],
)
def test_the_experiments_fit_their_cards(benchmark: str, llama3: Path) -> None:
    model = [f"actor_rollout_ref.model.path={llama3}", "data.train_files=x", "data.val_files=x"]
    on_80 = said(2, f"experiment={benchmark}/lora_1gpu", *model, FOR_40_GB[-1])
    assert on_80[-1].endswith("tokens at once")
    assert "a card of 80 GB is enough" in on_80[-1]
    assert "a card of 40 GB is too small" in on_80[-2]
    assert all(line.startswith("memory of a device, computed and not measured: ") for line in on_80)
    on_40 = said(2, f"experiment={benchmark}/lora_1gpu", *model, *FOR_40_GB)
    assert "a card of 40 GB is enough" in on_40[-2]
    assert on_40[-3].endswith(" GB; whatever the devices")
    static = ["data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=2"]
    first = said(
        1, f"experiment={benchmark}/lora_1gpu", f"model.path={llama3}", "data.train_files=x", *static
    )
    assert [line.rpartition(": ")[2] for line in first][1:] == [
        "a card of 24 GB is too small, because the update needs 26.4 GB; enough for 2, 4, 8 devices",
        "a card of 40 GB is enough",
        "a card of 80 GB is enough",
    ]


def test_the_settings_are_those_of_the_run() -> None:
    files = ["actor_rollout_ref.model.path=x", "data.train_files=x", "data.val_files=x"]

    def found(*more: str) -> Run:
        return memory.of_run(composed(2, "experiment=rwku/lora_1gpu", *files, *more))

    assert found() == replace(LORA_80, fused=False)
    assert found(*FOR_40_GB) == LORA_40
    rows = found("actor_rollout_ref.actor.use_dynamic_bsz=false", f"{BOUND}=2")
    assert (rows.update_tokens, rows.log_prob_tokens, rows.tokens_key) == (2 * LONGEST, 16 * LONGEST, BOUND)
    whole = found("actor_rollout_ref.model.lora_rank=0", "actor_rollout_ref.model.use_fused_kernels=true")
    assert (whole.reference, whole.fused, whole.checkpointing) == (True, True, True)


SMALL = Sizes(1000, 0, 400, 300, 10, 20, 3, 30, 8)
ON_CPU = Run(1, 4, 50, 60, engine_share=0.5, reference=True, checkpointing=False, fused=True)


def test_the_parts_of_a_machine_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama keeps 14 numbers of its width and 4 of its middle layers a token and layer."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    parts = memory.machine_bytes(SMALL, ON_CPU)
    assert parts == {
        "weights, gradients and optimizer": 16 * 1000,
        "activations": 4 * 50 * 3 * (140 + 80),
        "logits": 4 * CHUNK_BYTES,
        "processes": memory.PROCESSES,
        "reference": 4 * 1000,
        "rollout engine": 2 * 4 * 1000,
        "its KV cache": 2 * 2**30,
    }
    adapted = memory.machine_bytes(replace(SMALL, adapter=10), Run(1, 4, 50))
    assert adapted["weights, gradients and optimizer"] == 4 * 1000 + 16 * 10
    assert adapted["logits"] == 50 * 12 * 30
    assert adapted["processes"] == memory.LIBRARIES
    assert set(adapted) & {"reference", "rollout engine", "activations"} == set()


def test_all_weights_on_a_device_have_gradients_and_moments() -> None:
    parts = memory.moments(replace(LLAMA3, adapter=0), ON_80)[UPDATE]
    assert parts["weights and optimizer"] == 16 * BASE
    assert "base weights" not in parts
    fused = memory.moments(LLAMA3, replace(ON_80, fused=True))[UPDATE]
    assert fused["logits"] == 512 * 20 * 128256


@pytest.mark.parametrize(
    ("free", "total", "line"), [(10, 16, ""), (6, 16, "6.0 GB of 16.0 are free"), (6, 7, "!")]
)
def test_a_run_that_needs_more_than_there_is(
    free: float, total: float, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4.8 GB for the processes, 4.3 GB for a cache of 4 GiB, and next to nothing for a model of this size."""
    put_config(tmp_path, **SMALL_CONFIG)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    monkeypatch.setattr(memory, "free_bytes", lambda: (free * GB, total * GB))
    model = [f"actor_rollout_ref.model.path={tmp_path}", "data.train_files=x", "data.val_files=x"]
    config = composed(2, "experiment=tiny", *model)
    if line == "!":
        with pytest.raises(SettingsError, match="lower VLLM_CPU_KVCACHE_SPACE"):
            list(memory.warnings(config))
        return
    said = list(memory.warnings(config))
    assert len(said) == bool(line)
    assert all(line in of and of.startswith("the run needs up to 9.") for of in said)


def test_the_gpu_that_is_here_is_spoken_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights of 8 billion parameters: 16 bytes of each at the update on one device, 2 on eight."""
    model = put_config(tmp_path)
    files = [f"actor_rollout_ref.model.path={model}", "data.train_files=x", "data.val_files=x"]
    one, eight = (
        composed(2, "experiment=rwku", f"trainer.n_gpus_per_node={devices}", *files) for devices in (1, 8)
    )
    assert list(memory.warnings(one)) == []
    monkeypatch.setattr(memory, "card_bytes", lambda: 85.0 * GB)
    (line,) = memory.warnings(one)
    assert line.startswith(
        "the GPU here has 85.0 GB, which is too small by what is computed, because the upda"
    )
    assert list(memory.warnings(eight)) == []
    assert "the card that is here (85.0 GB) is too small" in memory.said(one)[-1]
    assert memory.said(one)[-1].endswith("; enough for 4, 8 devices")


def test_the_documentation_has_these_numbers() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "running.md").read_text("utf-8")
    for run, line in (
        (LORA_80, "computes {:.1f}, {:.1f} and {:.1f} GB"),
        (LORA_40, "{:.1f}, {:.1f} and {:.1f} GB. None"),
    ):
        assert (
            line.format(*(sum(parts.values()) / GB for parts in memory.moments(LLAMA3, run).values())) in page
        )
