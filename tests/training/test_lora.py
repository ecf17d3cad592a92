"""The dtype and the highest rank of adapters; test_memory has their sizes, tests/refused refused ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from recipe.rerule.preflight import settings
from recipe.rerule.training import lora


@pytest.mark.full  # importing vllm takes long
def test_vllm_s_highest_rank() -> None:
    from typing import get_args

    from vllm.config.lora import MaxLoRARanks

    assert max(get_args(MaxLoRARanks)) == settings._HIGHEST_RANK


@pytest.mark.parametrize(("strategy", "dtype"), [("fsdp2", torch.float32), ("fsdp", torch.bfloat16)])
def test_adapters_are_trained_in_float32_on_a_base_in_bfloat16(
    strategy: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
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
    assert {weight.dtype for weight in built["lora_A"].parameters()} == {dtype}
