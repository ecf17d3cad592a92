"""What verl writes of a model becomes what others read: by peft's own merge, and by counts by hand."""

import json
import os
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from recipe.rerule.runs import checkpoints, model_checks, written_model
from tests import made_models
from tests.refused.models import nan
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


def section(path: object, rank: int = RANK) -> DictConfig:
    """What a configuration says of the model."""
    return OmegaConf.create({"path": str(path), "lora_rank": rank, "lora_alpha": ALPHA})


@pytest.mark.parametrize(("tied", "shards"), [(False, 3), (True, 1), (True, 3)])
def test_the_merged_model_and_the_adapter_say_what_peft_says(tied: bool, shards: int, tmp_path: Path) -> None:
    adapted = adapted_model(start(tmp_path / "model", tied))
    expected = adapted(input_ids=IDS).logits
    written, apart = tmp_path / "step" / "huggingface", tmp_path / "step" / "lora_adapter"
    put_written(adapted, written, shards)
    written_model.merge(written, section(tmp_path / "model"))

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
    written_model.merge(written, section(tmp_path / "model"))
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
        written_model.settle(written, section(tmp_path / "model"), dtype)
        weights = load_file(written / "model.safetensors")
        assert {str(value.dtype) for value in weights.values()} == {f"torch.{dtype}"}
        merged = weights["model.layers.1.self_attn.q_proj.weight"]
        torch.testing.assert_close(merged, found, rtol=1e-6 if dtype == "float32" else 0, atol=1e-7)
        assert json.loads((written / "config.json").read_text())["dtype"] == dtype
        assert (tmp_path / dtype / "lora_adapter" / "adapter_model.safetensors").is_file()


def test_an_adapter_of_some_layers_is_no_adapter_of_all(tmp_path: Path) -> None:
    adapted = adapted_model(start(tmp_path / "model"), r".*layers\.1\..*\.(q|v)_proj")
    put_written(adapted, tmp_path / "step" / "huggingface")
    written_model.merge(tmp_path / "step" / "huggingface", section("a/name"))
    apart = tmp_path / "step" / "lora_adapter"
    config = json.loads((apart / "adapter_config.json").read_text())
    assert sorted(config["target_modules"]) == [f"model.layers.1.self_attn.{part}_proj" for part in "qv"]
    assert config["base_model_name_or_path"] == "a/name"
    loaded = peft.PeftModel.from_pretrained(made.plain_model(tmp_path / "model"), apart)
    assert sum("lora_A" in name for name, _ in loaded.named_parameters()) == 2
    torch.testing.assert_close(loaded(input_ids=IDS).logits, adapted(input_ids=IDS).logits)


def test_an_adapter_that_lacks_a_part_is_named(tmp_path: Path) -> None:
    put_written(adapted_model(start(tmp_path / "model")), tmp_path / "step" / "huggingface")
    file = tmp_path / "step" / "huggingface" / "model.safetensors"
    module = "base_model.model.model.layers.1.self_attn.q_proj"
    others = {name: one for name, one in load_file(file).items() if not name.startswith(f"{module}.lora_B")}
    save_file(others, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"^{module} has an adapter without lora_B; train"):
        written_model.merge(tmp_path / "step" / "huggingface", section(tmp_path / "model"))


def test_a_finished_run_has_its_adapter_beside_its_model(tmp_path: Path) -> None:
    """All checkpoints are merged; one of a run that was killed between the two renames is replaced."""
    adapted = adapted_model(start(tmp_path / "start"))
    run = tmp_path / "run"
    for step in (2, 10):
        put_written(adapted, run / f"global_step_{step}" / "huggingface")
    (run / "lora_adapter").mkdir()
    (run / "lora_adapter" / "old.json").touch()
    written_model.settle_all(run, section(tmp_path / "start"), "float32")
    assert written_model.publish_model(run) == run / "model"
    files = sorted(path.name for path in (run / "lora_adapter").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    earlier = load_file(run / "global_step_2" / "huggingface" / "model.safetensors")
    last = load_file(run / "model" / "model.safetensors")
    assert earlier.keys() == last.keys()
    assert not (run / "global_step_10" / "huggingface").exists()


# The dtype.


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A trained model as verl leaves it: float32 shards, and bfloat16 in config.json."""
    start(tmp_path / "start").save_pretrained(tmp_path / "trained", max_shard_size="20KB")
    config = tmp_path / "trained" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "bfloat16"}))
    assert len(list((tmp_path / "trained").glob("*.safetensors"))) > 1
    return tmp_path / "trained"


def test_bfloat16_is_the_rounded_model_also_where_the_start_model_is_not_at_hand(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    written_model.settle(trained, section("org/not-in-the-cache", rank=0), "bfloat16")
    assert "how many changes that undoes is not known" in capsys.readouterr().out
    written = AutoModelForCausalLM.from_pretrained(trained, dtype="auto")
    assert written.dtype == torch.bfloat16
    for rounded, weight in zip(written.parameters(), exact.parameters(), strict=True):
        assert torch.equal(rounded, weight.bfloat16())
    index = json.loads((trained / INDEX).read_text())
    assert index["metadata"]["total_size"] == 2 * sum(weight.numel() for weight in exact.parameters())


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        # bfloat16 has steps of 2^-7 from 1 to 2: half a step, a bit more, none, a whole one.
        ([1.0] * 4, [1 + 2**-9, 1 + 2**-8 + 2**-12, 1.0, 1 + 2**-7], "33.3% of the 3 changed weights"),
        # A start that bfloat16 does not hold is compared after rounding.
        ([1 + 2**-10], [1 + 2**-10 + 2**-12], "100.0% of the 1 changed weights"),
        ([1.0], [1.0], "none of them differs from the start model's"),
        ([1.0] * 2, [1.0], "is not known"),
    ],
)
def test_counts_by_hand(
    before: list[float], after: list[float], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensors that the start model lacks, or has in another shape, count for nothing."""
    named = {"start": {"a": torch.tensor(before)}, "new": {"a": torch.tensor(after), "b": torch.ones(3)}}
    for name, tensors in named.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text("{}")
    written_model.set_dtype(tmp_path / "new", "bfloat16", str(tmp_path / "start"))
    assert said in capsys.readouterr().out


def test_float32_writes_no_weight_file_again_and_config_json_says_so(trained: Path) -> None:
    """They may have 32 GB."""
    files = sorted(trained.glob("*.safetensors"))
    for file in files:
        os.utime(file, (1, 1))
    written_model.settle(trained, section("no/model", rank=0), "float32")
    assert [file.stat().st_mtime for file in files] == [1.0] * len(files)
    assert AutoModelForCausalLM.from_pretrained(trained, dtype="auto").dtype == torch.float32
    assert not trained.with_name("lora_adapter").exists()  # a run of all weights gets no adapter


def test_a_folder_without_weights_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"dtype": "float16"}')
    written_model.set_dtype(tmp_path, "bfloat16", "org/name")
    written_model.set_dtype(tmp_path / "none", "bfloat16", "org/name")
    assert (tmp_path / "config.json").read_text() == '{"dtype": "float16"}'
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_of_a_models_parts(key: str, tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    parts = {"text_config": {key: "bfloat16", "layers": 2}, "rope_scaling": {"factor": 2}}
    (tmp_path / "config.json").write_text(json.dumps({key: "bfloat16", **parts}))
    written_model.set_dtype(tmp_path, "float32", "none")
    assert json.loads((tmp_path / "config.json").read_text()) == {
        key: "float32",
        "text_config": {key: "float32", "layers": 2},
        "rope_scaling": {"factor": 2},
    }


# What is looked at in a model's folder; the folders that were tried are in tests/refused.


def test_values_are_looked_at_from_the_smallest_tensor_on_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm, embeddings = "model.norm.weight", "model.embed_tokens.weight"
    folders = {name: made_models.put_model(tmp_path / name) for name in (norm, embeddings)}
    for name, folder in folders.items():
        nan(name)(folder)
    monkeypatch.setattr(model_checks, "SCANNED", 3 * 8 * 4)  # the three norms of 8 float32
    assert "NaN" in str(model_checks.problem(folders[norm]))
    assert model_checks.problem(folders[embeddings]) is None
    monkeypatch.setattr(model_checks, "SCANNED", 3 * 8 * 4 + 400 * 8 * 4)
    assert "NaN" in str(model_checks.problem(folders[embeddings]))


def test_the_model_of_a_run_is_named(tmp_path: Path) -> None:
    inner = made_models.put_model(tmp_path / "run" / "global_step_7" / "actor" / "huggingface")
    assert str(model_checks.problem(tmp_path / "run")).startswith("holds no config.json")
    checkpoints.finish(tmp_path / "run", 7)
    assert model_checks.problem(tmp_path / "run") == f"is the folder of a run; its model is in {inner}"
    assert model_checks.problem(inner.parents[1]) == f"is the folder of a run; its model is in {inner}"
