"""Probes as attacks get them, scored by whether the gold is in the response; and small models and texts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from recipe.rerule.evaluation.attacks.attack import Asked, Material, Row, Scored
from recipe.rerule.evaluation.attacks.forward import Piece, asked_piece, text_piece
from recipe.rerule.evaluation.engine.requests import Generation, PromptText
from recipe.rerule.evaluation.probes import Probe
from tests.evaluation.conftest import make_probe
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level
from tests.unlearning.made import plain_model

CITIES = ["Paris", "Rome", "Oslo", "Bern", "Riga", "Lima"]
SIZES = {"vocab_size": 60, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0, "head_dim": 12}


def probe(
    number: int, mode: str = "qa", section: str = "forget", golds: Sequence[str] = (), **changes: Any
) -> Probe:
    """About city `number`; the index is 10 times it, and 1 more for fb, 2 more for aa."""
    content = f"Where does person {number} live ({mode})?"
    said: dict[str, Any] = {"subject": f"person {number}", "messages": [{"role": "user", "content": content}]}
    index = 10 * number + ["qa", "fb", "aa"].index(mode)
    return make_probe(index, section, mode, golds or [CITIES[number % len(CITIES)]], **(said | changes))


def asked(one: Probe, suffix: str = "") -> Asked:
    prompt = PromptText(tuple(one.messages), raw=one.raw, suffix=suffix)
    return Asked(one, Generation(f"own/{one.index}", prompt, 8, ("\n",)))


def material(
    forget: Sequence[Probe], retain: Sequence[Probe] = (), train: Sequence[Probe] = (), **changes: Any
) -> Material:
    said: dict[str, Any] = {
        "asked": tuple(map(asked, forget)),
        "retained": tuple(map(asked, retain)),
        "train": tuple(train),
        "fact": lambda one: (one.section, one.subject),
        "score": score,
        "tokenizer": byte_level(LLAMA3_TEMPLATE),
    }
    return Material(**(said | changes))


def score(pairs: Sequence[tuple[Probe, str]]) -> list[Scored]:
    """Recall 1 where the gold is in the text, 0.5 where its first letter is; "no" refuses."""
    return [Scored(_recall(one.golds[0], text), text == "no") for one, text in pairs]


def _recall(gold: str, text: str) -> float:
    return 1.0 if gold in text else 0.5 if gold[0] in text else 0.0


def scores(rows: Iterable[Row], column: str = "score") -> dict[tuple[str, str], dict[int, float]]:
    """{(setting, side): {probe: the mean over samples}} of the rows that have a value."""
    table = pd.DataFrame(rows).astype({column: float}).dropna(subset=[column])
    found: dict[tuple[str, str], dict[int, float]] = {}
    for (setting, side, number), value in (
        table.groupby(["setting", "side", "probe"], sort=False)[column].mean().items()
    ):
        found.setdefault((setting, side), {})[number] = value
    return found


def near(folder: Path, seed: int, size: float = 0.1) -> Any:
    """The model of a folder in float64, its weights changed a little."""
    model, generator = plain_model(folder).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def pieces(tokenizer: Any) -> list[Piece]:
    """Answers and a text of unequal lengths."""
    prompt = PromptText(({"role": "user", "content": "Who wrote it?"},))
    answers = ["It was Ada.", "it", "Ada Thorn wrote it in 1961"]
    return [asked_piece(tokenizer, prompt, answer) for answer in answers] + [
        text_piece(tokenizer, "Who wrote it? Ada wrote it.")
    ]


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(SIZES | changes)))


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=24, n_layer=1, n_head=2))


def gemma2(**changes: Any) -> Any:
    return Gemma2ForCausalLM(Gemma2Config(**(SIZES | changes)))
