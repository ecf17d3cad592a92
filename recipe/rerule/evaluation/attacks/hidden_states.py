"""Hidden states of a decoder: reading them, replacing them, and reading tokens out of them.

A state is what a decoder layer adds up to: the output of the layer, before the final norm. The state of a
token that is scored is the one at the position before it, from which the token is predicted. States are read
with hooks, because the last of the `hidden_states` that transformers returns is already normed.

Models are those of transformers whose decoder has its layers in a list, one norm behind them and one output
layer, which is all that stands between the last state and the logits (Llama, Qwen, Mistral and their kind).
Others are refused in one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from recipe.rerule.evaluation.attacks.likelihood import Piece, check_pieces, right_logits
from recipe.rerule.process import Progress

_LAYERS, _NORMS = ("layers", "h"), ("norm", "final_layernorm", "final_layer_norm", "ln_f")
_NEAR = 1e-3
"""Largest difference of two computations of a log-probability, in nats, that is taken for rounding."""


class LayersError(ValueError):
    """A model whose layers cannot be read as this audit needs it; the message is one line."""


@dataclass(frozen=True)
class Decoder:
    """The parts of a model: its layers, the norm behind the last one, and the output layer."""

    layers: ModuleList
    norm: Module
    head: Module


def decoder_of(model: Any) -> Decoder:
    """The parts of a causal model.

    Raises:
        LayersError: they are not where those of a plain decoder are.
    """
    base = model.base_model
    layers = next((found for name in _LAYERS if (found := getattr(base, name, None)) is not None), None)
    norm = next((found for name in _NORMS if (found := getattr(base, name, None)) is not None), None)
    head = model.get_output_embeddings()
    if not isinstance(layers, ModuleList) or norm is None or head is None:
        raise LayersError(
            f"{type(model).__name__} has no plain list of decoder layers, final norm and output layer; this "
            "audit reads models such as Llama, Qwen and Mistral"
        )
    return Decoder(layers, norm, head)


def states(model: Any, pieces: Sequence[Piece], batch_size: int = 8) -> list[Tensor]:
    """The states of each piece's scored tokens behind every layer: [layers, scored tokens, hidden size].

    They are on the CPU, in the model's dtype.

    Args:
        batch_size: pieces in one forward pass.

    Raises:
        LayersError: as `decoder_of`.
        LikelihoodError: a piece that the model cannot be shown (`check_pieces`).
    """
    layers = decoder_of(model).layers
    check_pieces(model, pieces)
    found: list[Tensor] = []
    model.eval()
    with torch.no_grad(), Progress("hidden states", len(pieces), "texts") as progress:
        for batch in _batches(pieces, batch_size):
            with _kept(layers) as outputs:
                for _ in right_logits(model, batch):
                    pass
            for row, piece in enumerate(batch):
                places = slice(piece.start - 1, len(piece.ids) - 1)
                found.append(torch.stack([outputs[n][row, places].cpu() for n in range(len(layers))]))
                progress.advance()
    return found


def mean_log_probs(model: Any, pieces: Sequence[Piece], batch_size: int = 8) -> Tensor:
    """The mean log-probability of the scored tokens of each piece, in nats, float64: [pieces].

    Raises:
        LikelihoodError: as `states`.
    """
    check_pieces(model, pieces)
    model.eval()
    with torch.no_grad():
        return torch.cat([_mean_log_probs(model, batch) for batch in _batches(pieces, batch_size)])


def patched_log_probs(
    model: Any, pieces: Sequence[Piece], layer: int, values: Sequence[Tensor], batch_size: int = 8
) -> Tensor:
    """`mean_log_probs` while the states of the scored tokens behind one layer are replaced: [pieces].

    Args:
        layer: number from 0.
        values: the states of each piece, [scored tokens, hidden size].

    Raises:
        LayersError: as `decoder_of`, or states of another size than the model's.
        LikelihoodError: as `states`.
    """
    module = decoder_of(model).layers[layer]
    check_pieces(model, pieces)
    model.eval()
    found = []
    with torch.no_grad():
        for first in range(0, len(pieces), batch_size):
            batch = pieces[first : first + batch_size]
            with _replaced(module, batch, values[first : first + batch_size]):
                found.append(_mean_log_probs(model, batch))
    return torch.cat(found)


def read_out(model: Any, found: Tensor) -> Tensor:
    """Log-probabilities that the model's final norm and output layer read out of states, in float64.

    Args:
        found: [..., hidden size].

    Returns:
        [..., vocabulary].

    Raises:
        LayersError: as `decoder_of`.
    """
    parts = decoder_of(model)
    weights = next(parts.norm.parameters())
    with torch.no_grad():
        logits = parts.head(parts.norm(found.to(weights.device, weights.dtype)))
    return logits.double().log_softmax(-1)


def check_read_out(model: Any, piece: Piece) -> None:
    """Refuse a model that does more to its last state than norm and output layer do.

    Raises:
        LayersError: the log-probabilities that are read out of the last state are not the model's own, as
            with capped or scaled logits.
    """
    last = states(model, [piece])[0][-1]
    right = torch.tensor(piece.ids[piece.start :])
    read = read_out(model, last).cpu().gather(-1, right[:, None]).mean()
    own = mean_log_probs(model, [piece])[0].cpu()
    if not abs(float(read - own)) <= _NEAR * max(1.0, abs(float(own))):
        raise LayersError(
            f"{type(model).__name__} changes its logits behind the output layer, so that they cannot be read "
            "out of hidden states; this audit reads models such as Llama, Qwen and Mistral"
        )


def check_alike(one: Any, other: Any) -> None:
    """Refuse two models whose states do not fit each other.

    Raises:
        LayersError: they differ in the number of layers or the hidden size.
    """
    sizes = [
        (len(decoder_of(model).layers), model.config.get_text_config().hidden_size) for model in (one, other)
    ]
    if sizes[0] != sizes[1]:
        (layers, width), (other_layers, other_width) = sizes
        raise LayersError(
            f"one model has {layers} layers of width {width}, the other {other_layers} of {other_width}; "
            "give models of one architecture"
        )


def _batches(pieces: Sequence[Piece], size: int) -> Iterator[Sequence[Piece]]:
    return (pieces[first : first + size] for first in range(0, len(pieces), size))


def _mean_log_probs(model: Any, batch: Sequence[Piece]) -> Tensor:
    found = []
    for piece, logits in zip(batch, right_logits(model, batch), strict=True):
        right = torch.tensor(piece.ids[piece.start :], device=logits.device)[:, None]
        found.append(logits.double().log_softmax(-1).gather(-1, right).mean())
    return torch.stack(found).cpu()


@contextmanager
def _kept(layers: ModuleList) -> Iterator[dict[int, Tensor]]:
    """The output of every layer during the block, by number."""
    outputs: dict[int, Tensor] = {}

    def keep(number: int) -> Any:
        return lambda module, inputs, output: outputs.__setitem__(number, _state(output))

    hooks = [layer.register_forward_hook(keep(number)) for number, layer in enumerate(layers)]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _replaced(module: Module, batch: Sequence[Piece], values: Sequence[Tensor]) -> Iterator[None]:
    """Other states of the scored tokens behind a layer during the block."""

    def replace(_: Any, inputs: Any, output: Any) -> Any:
        changed = _state(output).clone()
        for row, (piece, wanted) in enumerate(zip(batch, values, strict=True)):
            places = changed[row, piece.start - 1 : len(piece.ids) - 1]
            if places.shape != wanted.shape:
                raise LayersError(f"states of shape {list(wanted.shape)} cannot replace {list(places.shape)}")
            places.copy_(wanted)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    hook = module.register_forward_hook(replace)
    try:
        yield
    finally:
        hook.remove()


def _state(output: Any) -> Tensor:
    """The hidden states in what a layer returns: alone, or first of a tuple."""
    return output[0] if isinstance(output, tuple) else output
