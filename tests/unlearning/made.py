"""A tiny model and rows of the three sides, for tests of the unlearning methods."""

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM

from data_prep.contract import Row, sft_row, write_sft_rows
from tests import document_programs
from tests.made_tokenizers import LLAMA3_TEMPLATE, WORDS, byte_level

FORGET, RETAIN = 8, 12


def put_model(folder: Path) -> Path:
    """A Llama with random weights large enough that its answers have different probabilities."""
    tokenizer = byte_level(LLAMA3_TEMPLATE)
    tokenizer.pad_token = tokenizer.eos_token
    torch.manual_seed(0)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2, tie_word_embeddings=False, **ids,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|eot|>")]  # the template's too
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def put_near(model: Path, other: Path) -> Path:
    """Write a model near `model`, with its tokenizer, to `other`; returns `model`."""
    near, generator = plain_model(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in near.parameters():
            value += 0.02 * torch.randn(value.shape, generator=generator)
    shutil.copytree(model, other)
    near.save_pretrained(other)
    return model


def row(index: int, prompt: str, answer: str, raw: bool = False) -> Row:
    extra_info = {"index": index, "mode": "qa", "subject": "Ada Thorn"}
    return sft_row(prompt=prompt, answer=answer, extra_info=extra_info, raw=raw)


def rows() -> dict[str, list[Row]]:
    """Answers of unequal lengths; the alternate rows stand in another order than the forget rows."""
    texts = [f"{WORDS[n % 3]} " * (n % 4 + 1) + str(n) for n in range(FORGET)]
    forget = [row(100 + n, f"Who{n}", text, raw=n == 5) for n, text in enumerate(texts)]
    refusals = [row(100 + n, f"Who{n}", "I do not know" + "." * n) for n in range(FORGET)]
    retain = [row(n, f"wrote {n}", "it " * (n % 5 + 1) + str(n)) for n in range(RETAIN)]
    return {"forget": forget, "alternate": refusals[::-1], "retain": retain}


def put_rows(folder: Path) -> list[str]:
    """The rows as files; returns the overrides that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, found in rows().items():
        write_sft_rows(folder / f"{side}.parquet", found)
    return [f"data.{side}={folder}/{side}.parquet" for side in rows()]


def plain_model(folder: Path) -> Any:
    """The model in float32, with transformers' own attention."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def composed(*overrides: str) -> DictConfig:
    """The settings of `unlearn`."""
    config = copy.deepcopy(document_programs.composed("recipe.rerule.unlearn", overrides))
    OmegaConf.resolve(config)
    return config
