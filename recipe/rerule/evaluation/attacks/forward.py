"""Forward passes of a transformers model over texts and answers: their logits and hidden states.

The model sees the right tokens, and each scored token is judged given the right ones before it. An answer is
scored behind its prompt, a text behind BOS; where a tokenizer adds no BOS, a text's first token is not
scored, since nothing stands before it. No end-of-sequence token is scored.

A state is what a decoder layer adds up to: the output of the layer, before the final norm. The state of a
token that is scored is the one at the position before it, from which the token is predicted. States are read
with hooks, because the last of the `hidden_states` that transformers returns is already normed. Models whose
states are read are those whose decoder has its layers in a list, one norm behind them and one output layer
(Llama, Qwen, Mistral and their kind). Others are refused in one line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from torch.nn.utils.rnn import pad_sequence

from recipe.rerule.evaluation.engine.encoding import encode_one
from recipe.rerule.evaluation.engine.requests import PromptText
from recipe.rerule.evaluation.metrics import right_answer
from recipe.rerule.process import Progress
from recipe.rerule.training.prompts import prompt_ids

BATCH = 8
"""Texts in one forward pass."""
_LAYERS, _NORMS = ("layers", "h"), ("norm", "final_layernorm", "final_layer_norm", "ln_f")


@dataclass(frozen=True)
class Piece:
    """Token ids of which those from `start` on are scored, and the text that they stand for."""

    ids: list[int]
    start: int
    text: str

    @property
    def places(self) -> slice:
        """The positions from which the scored tokens are predicted."""
        return slice(self.start - 1, len(self.ids) - 1)

    @property
    def right(self) -> Tensor:
        """The scored tokens, [tokens, 1]."""
        return torch.tensor(self.ids[self.start :])[:, None]


@dataclass(frozen=True)
class Decoder:
    """The parts of a model: its layers, the norm behind the last one, and the output layer."""

    layers: ModuleList
    norm: Module
    head: Module


def load_model(folder: Path, dtype: Any) -> Any:
    """The transformers model of a folder, in evaluation mode and without gradients.

    It is on the accelerator, unless torch sees none or the platform of this process is "cpu".
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    if os.environ.get("VERL_PLATFORM") != "cpu" and torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    return model.eval().requires_grad_(False)


def text_piece(tokenizer: Any, text: str) -> Piece:
    """A text from its beginning, as the tokenizer itself takes it, without EOS."""
    before, whole = (
        prompt_ids(tokenizer, [{"role": "user", "content": content}], raw=True) for content in ("", text)
    )
    return Piece(whole, max(1, len(before)), text)


def asked_piece(tokenizer: Any, prompt: PromptText, answer: str) -> Piece:
    """An answer behind a prompt of a benchmark, in the tokens of the engine, without the end of its turn.

    Raises RequestError where the tokenizer cannot turn it into tokens.
    """
    encoded = encode_one(tokenizer, right_answer(f"{answer[:40]!r}", prompt, answer))
    assert encoded.answer_start is not None
    return Piece(encoded.ids[:-1], encoded.answer_start, answer)


def batches(model: Any, pieces: Sequence[Piece], size: int | None = None) -> Iterator[Sequence[Piece]]:
    """The pieces in batches of at most `size` (BATCH where None), for a model in evaluation mode.

    Raises ValueError naming a piece (from 0) that has no scored token, or is too long for the model.
    """
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for number, piece in enumerate(pieces):
        if not 1 <= piece.start < len(piece.ids):
            raise ValueError(f"text {number} has no token to score behind another one: {piece.text[:40]!r}")
        if longest is not None and len(piece.ids) > longest:
            raise ValueError(f"text {number} has {len(piece.ids)} tokens; the model takes {longest}")
    model.eval()
    size = size or BATCH
    for first in range(0, len(pieces), size):
        yield pieces[first : first + size]


def right_logits(model: Any, pieces: Sequence[Piece]) -> Iterator[Tensor]:
    """Logits at the positions before each scored token, piece by piece: [scored tokens, vocabulary]."""
    ids = [torch.tensor(piece.ids) for piece in pieces]
    mask = pad_sequence([torch.ones_like(one) for one in ids], True, 0).to(model.device)
    padded = pad_sequence(ids, True, 0).to(model.device)
    logits = model(input_ids=padded, attention_mask=mask, use_cache=False).logits
    for piece, row in zip(pieces, logits, strict=True):
        yield row[piece.places]


def mean_log_probs(model: Any, batch: Sequence[Piece]) -> Tensor:
    """The mean log-probability of each piece's scored tokens in one batch, in nats, float64: [pieces]."""
    found = []
    with torch.no_grad():
        for piece, logits in zip(batch, right_logits(model, batch), strict=True):
            found.append(logits.double().log_softmax(-1).gather(-1, piece.right.to(logits.device)).mean())
    return torch.stack(found).cpu()


def decoder_of(model: Any) -> Decoder:
    """The parts of a causal model. Raises ValueError where they are not those of a plain decoder."""
    base = model.base_model
    layers = next((found for name in _LAYERS if (found := getattr(base, name, None)) is not None), None)
    norm = next((found for name in _NORMS if (found := getattr(base, name, None)) is not None), None)
    head = model.get_output_embeddings()
    if not isinstance(layers, ModuleList) or norm is None or head is None:
        raise ValueError(
            f"{type(model).__name__} has no plain list of decoder layers, final norm and output layer; this "
            "audit reads models such as Llama, Qwen and Mistral"
        )
    return Decoder(layers, norm, head)


def states(model: Any, pieces: Sequence[Piece]) -> list[Tensor]:
    """The states of each piece's scored tokens behind every layer: [layers, scored tokens, hidden size].

    They are on the CPU, in the model's dtype. Raises ValueError as `decoder_of` and `batches`.
    """
    layers = decoder_of(model).layers
    found: list[Tensor] = []
    with torch.no_grad(), Progress("hidden states", len(pieces), "texts") as progress:
        for batch in batches(model, pieces):
            outputs: dict[int, Tensor] = {}
            with hooked(layers, outputs.__setitem__):
                list(right_logits(model, batch))  # a pass, of which the logits are not needed
            for row, piece in enumerate(batch):
                found.append(torch.stack([outputs[n][row, piece.places].cpu() for n in range(len(layers))]))
                progress.advance()
    return found


@contextmanager
def hooked(layers: Iterable[Module], see: Callable[[int, Tensor], Tensor | None]) -> Iterator[None]:
    """`see` gets the number and output of every layer during the block; what it returns replaces it."""

    def hook(number: int, module: Module, inputs: Any, output: Any) -> Any:
        is_tuple = isinstance(output, tuple)  # of which the first are the hidden states
        changed = see(number, output[0] if is_tuple else output)
        return None if changed is None else (changed, *output[1:]) if is_tuple else changed

    hooks = [layer.register_forward_hook(partial(hook, number)) for number, layer in enumerate(layers)]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


def check_alike(one: Any, other: Any) -> None:
    """Raises ValueError where two models differ in the number of layers or the hidden size."""
    (layers, width), (other_layers, other_width) = (
        (len(decoder_of(model).layers), model.config.get_text_config().hidden_size) for model in (one, other)
    )
    if (layers, width) != (other_layers, other_width):
        raise ValueError(
            f"one model has {layers} layers of width {width}, the other {other_layers} of {other_width}; "
            "give models of one architecture"
        )
