"""A merged adapter is what peft itself computes with the parts apart."""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from recipe.rerule.unlearning import adapter
from tests.unlearning import made


@pytest.mark.parametrize("tied", [False, True])
def test_the_merged_model_says_what_peft_says(tied: bool, tmp_path: Path) -> None:
    folder = made.put_model(tmp_path / "model")
    model = made.plain_model(folder)
    model.config.tie_word_embeddings = tied
    if tied:
        model.tie_weights()
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(0)
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            value.data = 0.1 * torch.randn(value.shape, generator=generator)
    ids = torch.tensor([[5, 9, 40, 41, 7]])
    expected = adapted(input_ids=ids).logits
    (tmp_path / "written").mkdir()
    state = {name: value.clone() for name, value in adapted.state_dict().items()}
    save_file(state, tmp_path / "written" / "model.safetensors")
    model.config.save_pretrained(tmp_path / "written")

    adapter.merge(tmp_path / "written", 6 / 4)
    found = LlamaForCausalLM.from_pretrained(tmp_path / "written", attn_implementation="eager")
    torch.testing.assert_close(found(input_ids=ids).logits, expected, rtol=1e-5, atol=1e-5)
    names = set(load_file(tmp_path / "written" / "model.safetensors"))
    assert ("lm_head.weight" in names) != tied
    assert not any("lora" in name or "base" in name for name in names)


def test_an_adapter_that_lacks_a_part_is_named() -> None:
    parts = {
        "base_model.model.x.base_layer.weight": torch.ones(2, 2),
        "base_model.model.x.lora_A.default.weight": torch.ones(1, 2),
    }
    with pytest.raises(adapter.AdapterError, match=r"base_model.model.x has an adapter without lora_B"):
        adapter.merged_tensors(parts, 1.0)
