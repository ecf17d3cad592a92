"""Attack by the refusal direction: the model that cannot write it is asked as the benchmark asks.

Protocol: r is the mean state of training prompts to forget minus that of training prompts to retain, behind
one layer, at the last token of the prompt, divided by its norm. The prompts are rows of --train that no probe
repeats, drawn once for all models. The layer is the one at which held-out training prompts of the two sides
lie farthest apart along r, in units of their pooled deviation. The last fifth of the layers is left out. For
this choice r is computed on every other prompt of each side, and afterwards on all of them. No probe is
looked at.

Every matrix that writes hidden states then loses its part along r: W <- (I - r r') W for the output
projections of attention and MLP and their biases, and the same for each row of the embedding. What only reads
hidden states is left alone. All states of the written model are orthogonal to r, behind every layer and for
every prompt.

Control: in the setting `random`, a random direction is removed in the same way. What it brings back, any
damage of that size brings back.

Sources: Arditi et al. (arXiv:2406.11717); Łucki et al. (arXiv:2409.18025), who attack unlearned models so.
In the first, the layer is chosen by the answers of the attacked model; here by the prompts alone.

Traps: the prompts of the two sides differ in what they ask about, too, so that r also holds what the model
knows of the target, and removing it can hide knowledge instead of uncovering it. Where output layer and
embedding are one tensor, the written model has both apart, because only the embedding may change. In
bfloat16, rounding leaves a part of r of about a thousandth. Models whose layers norm what attention and MLP
write before it is added (Gemma 2 and 3), or whose experts are fused into one tensor, are refused.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe.rerule.evaluation.attacks.attack import FORGET, RETAIN, Attack, Change, Material, Options
from recipe.rerule.evaluation.attacks.forward import Piece, load_model, states
from recipe.rerule.evaluation.attacks.weights import EMBEDDING, rewritten
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.runs.weights import Weights, read_weights
from recipe.rerule.training.prompts import prompt_ids

FEWEST_PROMPTS = 4
"""Of each side: two to find a direction with, and two to measure it with."""
_LAST_LEFT_OUT = 0.2
"""Share of the layers, the last ones, behind which no direction is taken."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_WRITES = re.compile(r"self_attn\.o_proj\.(weight|bias)|mlp\.(experts\.\d+\.)?down_proj\.(weight|bias)")
_READS = re.compile(
    r"self_attn\.(([qkv]|qkv)_proj\.(weight|bias)|[qk]_norm\.weight)"
    r"|mlp\.((experts\.\d+\.)?(gate|up|gate_up)_proj\.(weight|bias)|gate\.weight)"
    r"|(input|post_attention)_layernorm\.(weight|bias)"
)


def prompt_states(model: Any, tokenizer: Any, prompts: Sequence[Probe]) -> Tensor:
    """The states of each prompt's last token behind every layer: [prompts, layers, hidden size], float64.

    Raises ValueError and jinja2.TemplateError as `states` and `prompt_ids`.
    """
    encoded = [prompt_ids(tokenizer, one.messages, one.raw) for one in prompts]
    # A token that follows the prompt is not seen by the state before it.
    pieces = [
        Piece([*ids, ids[-1]], len(ids), one.messages[-1]["content"])
        for ids, one in zip(encoded, prompts, strict=True)
    ]
    return torch.stack([kept[:, -1].double() for kept in states(model, pieces)])


def refusal_direction(forget: Tensor, retain: Tensor) -> Tensor:
    """The direction between two sides of prompts, at the layer where held-out prompts lie farthest apart.

    Its length is 1: [hidden size], float64.

    Args:
        forget, retain: states as `prompt_states` gives them, of at least 4 prompts each.

    Raises ValueError where the two sides have the same mean.
    """
    usable = max(1, round(forget.shape[1] * (1 - _LAST_LEFT_OUT)))
    distances = [_held_out_distance(forget[:, layer], retain[:, layer]) for layer in range(usable)]
    layer = max(range(usable), key=distances.__getitem__)
    difference = forget[:, layer].mean(0) - retain[:, layer].mean(0)
    if not difference.norm() > 0:
        raise ValueError("prompts to forget and to retain have the same mean state: there is no direction")
    return difference / difference.norm()


def random_direction(size: int, seed: int) -> Tensor:
    """A direction of hidden states of this size, of length 1, that is drawn uniformly, as control."""
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(size, generator=generator, dtype=torch.float64)
    return vector / vector.norm()


def orthogonalise(model: Path, direction: Tensor, out: Path) -> None:
    """Write the model without a direction, of length 1, as a folder.

    Raises:
        ValueError: the folder holds no whole model with safetensors weights, or its model is built
            in another way.
        OSError: a file cannot be read or written.
    """
    weights = read_weights(model, "orthogonalised")
    axes = _axes(weights)

    def change(name: str, tensor: Tensor) -> Tensor:
        if name not in axes:
            return tensor
        wide = tensor.double().movedim(axes[name], -1)
        kept = wide - (wide @ direction)[..., None] * direction
        return kept.movedim(-1, axes[name]).to(tensor.dtype).contiguous()

    rewritten(weights, out, change, untied=True)


def _axes(weights: Weights) -> dict[str, int]:
    """The axis of the hidden size of each tensor that writes hidden states. Raises ValueError.

    A projection is [hidden size, inputs], an embedding [tokens, hidden size].
    """
    shapes = weights.shapes()
    axes, layers = {EMBEDDING: 1}, set()
    for name in shapes:
        inside = _LAYER.fullmatch(name)
        if inside is None:
            continue
        layers.add(int(inside[1]))
        if _WRITES.fullmatch(inside[2]):
            axes[name] = 0
        elif not _READS.fullmatch(inside[2]):
            raise ValueError(
                f"{weights.folder} has {name}, of which it is not known what it writes into hidden states; "
                "this attack knows models built as Llama, Qwen and Mistral"
            )
    needed = [EMBEDDING, *(f"model.layers.{n}.self_attn.o_proj.weight" for n in sorted(layers))]
    missing = next((name for name in needed if name not in shapes), None) if layers else "model.layers.N"
    if missing is not None:
        raise ValueError(
            f"{weights.folder} has no {missing}; this attack knows models built as Llama, Qwen and Mistral"
        )
    return axes


def _held_out_distance(forget: Tensor, retain: Tensor) -> float:
    """How far apart every second prompt of the two sides lies along the direction of the others."""
    difference = forget[::2].mean(0) - retain[::2].mean(0)
    ours, theirs = forget[1::2] @ difference, retain[1::2] @ difference
    pooled = ((ours.var() + theirs.var()) / 2).sqrt()
    return float((ours.mean() - theirs.mean()) / pooled) if pooled > 0 else 0.0


def _changes(material: Material, options: Options) -> list[Change]:
    """One change for each seed, which draws the control's direction. Raises ValueError."""
    asked = [one.probe.messages for one in (*material.asked, *material.retained)]
    sides = []
    for side in (FORGET, RETAIN):
        rows = [row for row in material.train if row.section == side and row.messages not in asked]
        sides.append(random.Random(f"prompts {side}").sample(rows, min(options["prompts"], len(rows))))
    if min(map(len, sides)) < FEWEST_PROMPTS:
        raise ValueError(
            f"there are {len(sides[0])} prompts to forget and {len(sides[1])} to retain that are no probes; "
            f"a direction needs {FEWEST_PROMPTS} of each side"
        )

    def change(seed: int) -> Change:
        def write(model: Path, out: Mapping[str, Path]) -> None:
            loaded = load_model(model, "auto")
            found = refusal_direction(*(prompt_states(loaded, material.tokenizer, rows) for rows in sides))
            orthogonalise(model, found, out[""])
            orthogonalise(model, random_direction(len(found), seed), out["random"])

        return Change(("", "random"), write, material.asked, seed=seed)

    return [change(seed) for seed in range(material.seeds)]


ATTACKS = (
    Attack(
        name="refusal_direction",
        title="direction",
        tells="The direction between prompts to forget and to retain is removed from all weights.",
        default=True,
        quick={"prompts": 64},
        full={"prompts": 512},
        needs=frozenset({"train"}),
        changes=_changes,
    ),
)
