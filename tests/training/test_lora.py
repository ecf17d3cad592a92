"""The size of an adapter, and the highest rank; adapters that are refused are in tests/refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from recipe.rerule.preflight import settings
from recipe.rerule.training import lora

LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
"""Llama-3-8B, as far as its size goes."""
SMALL = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def put_config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA3 | changes))
    return folder


def section(folder: Path, **changes: Any) -> DictConfig:
    values = {
        "path": str(folder),
        "trust_remote_code": False,
        "lora_rank": 4,
        "lora_alpha": 8,
        "target_modules": "all-linear",
        "exclude_modules": None,
        "target_parameters": None,
        "lora_adapter_path": None,
        "lora": {"rank": 0, "merge": False},
    }
    return OmegaConf.create(values | changes)


def test_the_adapter_of_all_linear_layers_of_llama_3_8b(tmp_path: Path) -> None:
    """r (in + out) of seven linear maps a layer; without the head."""
    built = lora.adapted(section(put_config(tmp_path), lora_rank=32))
    hidden, inner, key_values = 4096, 14336, 1024
    attention = 2 * (hidden + hidden) + 2 * (hidden + key_values)
    by_hand = 32 * 32 * (attention + 3 * (hidden + inner))
    trained, whole = built.get_nb_trainable_parameters()
    assert trained == by_hand == 83_886_080
    assert whole - trained == 8_030_261_248
    assert {weight.device.type for weight in built.parameters()} == {"meta"}


@pytest.mark.full  # importing vllm takes long
def test_vllm_s_highest_rank() -> None:
    from typing import get_args

    from vllm.config.lora import MaxLoRARanks

    assert max(get_args(MaxLoRARanks)) == settings._HIGHEST_RANK


@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp"])
def test_adapters_are_trained_in_float32_on_a_base_in_bfloat16(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 1e-6 beside weights of 0.1 vanish in bfloat16. FSDP1's weights have to have one type."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    monkeypatch.setattr(FSDPEngine, "_build_lora_module", lambda engine, module: module)
    lora.keep_float32()
    module = torch.nn.ModuleDict({"base": torch.nn.Linear(2, 2), "lora_A": torch.nn.Linear(2, 2)}).bfloat16()
    module["base"].requires_grad_(False)
    engine = SimpleNamespace(engine_config=SimpleNamespace(strategy=strategy))
    built = FSDPEngine._build_lora_module(engine, module)
    assert {weight.dtype for weight in built["base"].parameters()} == {torch.bfloat16}
    trained = torch.float32 if strategy == "fsdp2" else torch.bfloat16
    assert {weight.dtype for weight in built["lora_A"].parameters()} == {trained}
