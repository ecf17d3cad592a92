"""Folders of whole models of a few kilobytes: a Llama of hidden size 8 whose weights are zeros and ones.

And random tensors.
"""

import json
from pathlib import Path
from typing import Any

VOCABULARY = 400
"""Tokens that the model knows: more than any tokenizer of made_tokenizers has."""
STOPS = [1, 2, 4]
"""Ids of the tokens that end a text or a turn in the tokenizers of made_tokenizers."""
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY}
CONFIG |= {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def tensors() -> dict[str, Any]:
    """Some of the model's weights: what the checks of a folder look at."""
    import torch

    made = {"model.embed_tokens.weight": torch.zeros(VOCABULARY, 8), "model.norm.weight": torch.ones(8)}
    return made | {f"model.layers.{n}.input_layernorm.weight": torch.ones(8) for n in (0, 1)}


def put_model(folder: Path, **changes: Any) -> Path:
    """A folder with config.json, `changes` in it, STOPS and model.safetensors; no tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOPS}))
    (folder / "config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")
    put_weights(folder)
    return folder


def put_weights(folder: Path) -> None:
    """model.safetensors with `tensors`."""
    from safetensors.torch import save_file

    save_file(tensors(), folder / "model.safetensors", metadata={"format": "pt"})


def drawn(*shape: int, seed: int = 0) -> Any:
    """A tensor of normal numbers in float64."""
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
