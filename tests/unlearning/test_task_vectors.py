import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from data_prep.world.model import train_tokenizer
from recipe.rerule.task_vector import main
from tests.made_models import put_model


def llama(seed: int, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, tie_word_embeddings=tied))


def run(base: Path, reinforced: Path, out: Path, alpha: float = 1.0) -> int:
    return main(f"--base {base} --reinforced {reinforced} --alpha {alpha} --out {out}".split())


def weights(folder: Path) -> dict[str, Tensor]:
    parts = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    return {name: tensor for part in parts for name, tensor in part.items()}


def put_norms(folder: Path, values: list[float], dtype: torch.dtype = torch.float32) -> Path:
    """A made model whose final norm begins with `values`."""
    put_model(folder)
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["model.norm.weight"][: len(values)] = torch.tensor(values, dtype=dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_values_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1 - 0.5 (3 - 1) = 0; -2 - 0.5 (1 + 2) = -3.5; 0.25 - 0.5 (0.25 - 0.25) = 0.25; 4 - 0.5 (0 - 4) = 6."""
    base = put_norms(tmp_path / "base", [1.0, -2.0, 0.25, 4.0])
    reinforced = put_norms(tmp_path / "reinforced", [3.0, 1.0, 0.25, 0.0])
    for name in ("chat_template.jinja", "notes.md", "pytorch_model.bin"):
        (base / name).write_text("x")
    assert run(base, reinforced, tmp_path / "out", 0.5) == 0
    assert capsys.readouterr().out.endswith("the two differ in 3 weights\n")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    copied = {"config.json", "generation_config.json", "chat_template.jinja"}
    assert files == {*copied, "model.safetensors", "task_vector.json"}
    marker = json.loads((tmp_path / "out/task_vector.json").read_text())
    assert (marker["base"], marker["reinforced"], marker["alpha"]) == (str(base), str(reinforced), 0.5)
    found = weights(tmp_path / "out")
    assert found["model.norm.weight"].tolist() == [0.0, -3.5, 0.25, 6.0, 1.0, 1.0, 1.0, 1.0]
    assert found.keys() == weights(base).keys()
    assert torch.equal(found["model.embed_tokens.weight"], weights(base)["model.embed_tokens.weight"])


def test_a_difference_below_a_step_of_bfloat16_survives(tmp_path: Path) -> None:
    """Next to 1 bfloat16 has steps of 2^-7; the difference is a 64th of that, and the base is bfloat16."""
    base = put_norms(tmp_path / "base", [1.0], torch.bfloat16)
    reinforced = put_norms(tmp_path / "reinforced", [1.0 + 2**-13])
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    assert run(base, reinforced, tmp_path / "out") == 0
    found = weights(tmp_path / "out")
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert found["model.norm.weight"][0].item() == 1.0 - 2**-13
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_loads_as_the_model_it_should_be(tied: bool, tmp_path: Path) -> None:
    """Against plain arithmetic on the loaded models' parameters, and the logits of that model."""
    first, second = llama(0, tied), llama(1, tied)
    base, reinforced = tmp_path / "base", tmp_path / "reinforced"
    first.bfloat16().save_pretrained(base, max_shard_size="8KB")
    second.save_pretrained(reinforced)
    tokenizer = train_tokenizer(["Who wrote it?"], 300)
    tokenizer.save_pretrained(base)
    assert run(base, reinforced, tmp_path / "out", 0.7) == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert loaded.dtype == torch.float32
    expected = llama(0, tied)
    with torch.no_grad():
        models = (expected, first, second)
        for parameter, one, other in zip(*(model.parameters() for model in models), strict=True):
            parameter.copy_(one.float() - 0.7 * (other.float() - one.float()))
    for found, wanted in zip(loaded.parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, wanted)
    ids = torch.arange(10)[None]
    assert torch.equal(loaded(ids).logits, expected(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("Who?") == tokenizer("Who?")
    files = [sorted(file.name for file in at.glob("*.safetensors")) for at in (base, tmp_path / "out")]
    assert files[0] == files[1]
    assert len(files[0]) > 2
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    total = sum(tensor.nbytes for tensor in weights(tmp_path / "out").values())
    assert index["metadata"]["total_size"] == total
    assert index["weight_map"].keys() == weights(tmp_path / "out").keys()


@pytest.mark.parametrize("who", ["base", "reinforced"])
def test_a_tied_output_layer_that_one_model_wrote_is_no_difference(who: str, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("base", "reinforced")}
    for seed, folder in enumerate(folders.values()):
        llama(seed, tied=True).save_pretrained(folder)
    written = load_file(folders[who] / "model.safetensors")
    head = {"lm_head.weight": written["model.embed_tokens.weight"].clone()}
    save_file(written | head, folders[who] / "model.safetensors", metadata={"format": "pt"})
    assert run(folders["base"], folders["reinforced"], tmp_path / "out", 0.5) == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    one, other = (weights(folder)["model.embed_tokens.weight"] for folder in folders.values())
    assert torch.equal(loaded.lm_head.weight, one - 0.5 * (other - one))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
