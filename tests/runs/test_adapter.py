"""What verl writes of a model with an adapter becomes what peft itself makes of the parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from recipe.rerule.runs import adapter, written_model
from tests.unlearning import made

RANK, ALPHA = 4, 6
MODULES = ["q_proj", "down_proj"]
IDS = torch.tensor([[5, 9, 40, 41, 7]])
INDEX = "model.safetensors.index.json"


def adapted_model(model: Any, modules: Any = MODULES) -> Any:
    """The model with an adapter whose both parts are random."""
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=modules, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(0)
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            value.data = 0.1 * torch.randn(value.shape, generator=generator)
    return adapted


def put_written(adapted: Any, folder: Path, shards: int = 1) -> None:
    """A folder as verl writes it: peft's names, all in one file or dealt out over several."""
    folder.mkdir(parents=True)
    state = [(name, value.detach().clone()) for name, value in adapted.state_dict().items()]
    files = {f"model-{n + 1:05}-of-{shards:05}.safetensors": dict(state[n::shards]) for n in range(shards)}
    if shards == 1:
        files = {"model.safetensors": dict(state)}
    else:
        weight_map = {name: file for file, tensors in files.items() for name in tensors}
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))
    for file, tensors in files.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    adapted.get_base_model().config.save_pretrained(folder)


def start(folder: Path, tied: bool = False) -> Any:
    """A model in `folder`, and the same in memory."""
    model = made.plain_model(made.put_model(folder))
    model.config.tie_word_embeddings = tied
    if tied:
        model.tie_weights()
        model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_merged_model_and_the_adapter_say_what_peft_says(tied: bool, shards: int, tmp_path: Path) -> None:
    adapted = adapted_model(start(tmp_path / "model", tied))
    expected = adapted(input_ids=IDS).logits
    written, apart = tmp_path / "step" / "huggingface", tmp_path / "step" / "lora_adapter"
    put_written(adapted, written, shards)
    adapter.separate(written, apart, RANK, ALPHA, str(tmp_path / "model"))

    whole = LlamaForCausalLM.from_pretrained(written, attn_implementation="eager")
    torch.testing.assert_close(whole(input_ids=IDS).logits, expected, rtol=1e-5, atol=1e-5)
    names = {name for file in written.glob("*.safetensors") for name in load_file(file)}
    assert ("lm_head.weight" in names) != tied
    assert not any("lora" in name or "base" in name for name in names)
    if shards > 1:
        assert set(json.loads((written / INDEX).read_text())["weight_map"]) == names

    loaded = peft.PeftModel.from_pretrained(made.plain_model(tmp_path / "model"), apart)
    torch.testing.assert_close(loaded(input_ids=IDS).logits, expected, rtol=1e-6, atol=1e-6)
    config = json.loads((apart / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (RANK, ALPHA)
    assert sorted(config["target_modules"]) == sorted(MODULES)
    assert config["base_model_name_or_path"] == str(tmp_path / "model")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    adapter.separate(written, apart, RANK, ALPHA, str(tmp_path / "model"))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, "merged already"


def test_weights_are_merged_in_float32_and_rounded_once(tmp_path: Path) -> None:
    """By hand in float64, from a bfloat16 base and a bfloat16 adapter."""
    made.put_model(tmp_path / "model")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    adapted = adapted_model(model).to(torch.bfloat16)
    state = {name: value.double() for name, value in adapted.state_dict().items()}
    module = "base_model.model.model.layers.1.self_attn.q_proj"
    by_hand = state[f"{module}.base_layer.weight"] + ALPHA / RANK * (
        state[f"{module}.lora_B.default.weight"] @ state[f"{module}.lora_A.default.weight"]
    )
    for dtype, found in (("float32", by_hand.float()), ("bfloat16", by_hand.bfloat16())):
        written = tmp_path / dtype / "huggingface"
        put_written(adapted, written)
        section = {"path": str(tmp_path / "model"), "lora_rank": RANK, "lora_alpha": ALPHA}
        written_model.settle(written, OmegaConf.create(section), dtype)
        weights = load_file(written / "model.safetensors")
        assert {str(value.dtype) for value in weights.values()} == {f"torch.{dtype}"}
        merged = weights["model.layers.1.self_attn.q_proj.weight"]
        torch.testing.assert_close(merged, found, rtol=1e-6 if dtype == "float32" else 0, atol=1e-7)
        assert json.loads((written / "config.json").read_text())["dtype"] == dtype
        assert (tmp_path / dtype / "lora_adapter" / "adapter_model.safetensors").is_file()


def test_a_run_of_all_weights_gets_no_adapter(tmp_path: Path) -> None:
    folder = made.put_model(tmp_path / "step" / "huggingface")
    before = load_file(folder / "model.safetensors")
    section = {"path": str(folder), "lora_rank": 0, "lora_alpha": 16}
    written_model.settle(folder, OmegaConf.create(section), "float32")
    after = load_file(folder / "model.safetensors")
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert [path.name for path in (tmp_path / "step").iterdir()] == ["huggingface"]


def test_an_adapter_of_some_layers_is_no_adapter_of_all(tmp_path: Path) -> None:
    adapted = adapted_model(start(tmp_path / "model"), r".*layers\.1\..*\.(q|v)_proj")
    put_written(adapted, tmp_path / "written")
    adapter.separate(tmp_path / "written", tmp_path / "apart", RANK, ALPHA, "a/name")
    config = json.loads((tmp_path / "apart" / "adapter_config.json").read_text())
    assert sorted(config["target_modules"]) == [f"model.layers.1.self_attn.{part}_proj" for part in "qv"]
    assert config["base_model_name_or_path"] == "a/name"
    loaded = peft.PeftModel.from_pretrained(made.plain_model(tmp_path / "model"), tmp_path / "apart")
    assert sum("lora_A" in name for name, _ in loaded.named_parameters()) == 2
    torch.testing.assert_close(loaded(input_ids=IDS).logits, adapted(input_ids=IDS).logits)


def test_an_adapter_that_lacks_a_part_is_named() -> None:
    weights = {"base_model.model.x.base_layer.weight": torch.ones(2, 2)}
    parts = {"base_model.model.x.lora_A.default.weight": torch.ones(1, 2)}
    with pytest.raises(adapter.AdapterError, match=r"base_model.model.x has an adapter without lora_B"):
        adapter.merged_tensors(weights, parts, 1.0)


def test_a_finished_run_has_its_adapter_beside_its_model(tmp_path: Path) -> None:
    """All checkpoints are merged; one of a run that was killed between the two renames is replaced."""
    adapted = adapted_model(start(tmp_path / "start"))
    run = tmp_path / "run"
    for step in (2, 10):
        put_written(adapted, run / f"global_step_{step}" / "huggingface")
    (run / "lora_adapter").mkdir()
    (run / "lora_adapter" / "old.json").touch()
    section = {"path": str(tmp_path / "start"), "lora_rank": RANK, "lora_alpha": ALPHA}
    written_model.settle_all(run, OmegaConf.create(section), "float32")
    assert written_model.publish_model(run) == run / "model"
    assert sorted(path.name for path in (run / "lora_adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    earlier = load_file(run / "global_step_2" / "huggingface" / "model.safetensors")
    last = load_file(run / "model" / "model.safetensors")
    assert earlier.keys() == last.keys()
    assert not (run / "global_step_10" / "huggingface").exists()
