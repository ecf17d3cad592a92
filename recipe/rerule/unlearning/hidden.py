"""Hidden states: the output of one decoder layer of a model in verl's engine, and what RMU does with it.

"Layer" counts the decoder layers from 0, as `model.layers.N` does in transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def layers(module: nn.Module) -> nn.ModuleList:
    """The decoder layers of a causal language model of transformers, with or without an adapter.

    Raises ValueError: the model does not keep them in a list `layers`.
    """
    found = getattr(module.get_decoder(), "layers", None)
    if not isinstance(found, nn.ModuleList):
        raise ValueError(f"{type(module).__name__} keeps no list of decoder layers named layers")
    return found


def trained(module: nn.Module, layer: int, count: int, name: str | None) -> list[nn.Parameter]:
    """The parameters of the last `count` layers up to `layer`; with a name, those that have it as a part.

    "down_proj" is a part of `mlp.down_proj.weight`.
    """
    chosen = layers(module)[max(0, layer + 1 - count) : layer + 1]
    return [
        parameter
        for one in chosen
        for path, parameter in one.named_parameters()
        if name is None or name in path.split(".")
    ]


def train_alone(module: nn.Module, parameters: list[nn.Parameter]) -> None:
    """Have no other parameter of the model train. FSDP2 takes this until the first pass."""
    kept = set(map(id, parameters))
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in kept)


def add_to_output(engine: Any, layer: int) -> None:
    """Have what verl's FSDP engine gives of a micro-batch hold `hidden`, of its rows: nested [rows, *, H]."""
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: Any, output: Any) -> None:
        # Where activations are recomputed, the backward pass calls this once more; only the last one counts.
        caught[:] = [output if isinstance(output, Tensor) else output[0]]

    layers(engine.module)[layer].register_forward_hook(catch)
    prepare = engine.prepare_model_outputs

    def with_hidden(*arguments: Any, micro_batch: Any, **named: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = prepare(*arguments, micro_batch=micro_batch, **named)
        offsets, hidden = micro_batch["input_ids"].offsets(), caught.pop()
        if len(hidden) > 1:  # padded rows; else all rows are packed into one
            lengths = offsets.diff()
            hidden = hidden[torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]][None]
        found["hidden"] = torch.nested.nested_tensor_from_jagged(hidden[0], offsets)
        return found

    engine.prepare_model_outputs = with_hidden


def direction(size: int, seed: int) -> Tensor:
    """u of RMU: [size], float32, of length 1; its entries are drawn uniformly from 0 to 1, then scaled."""
    drawn = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm()
