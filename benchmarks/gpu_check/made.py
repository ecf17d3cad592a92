"""What the parts of the check work on: Llamas of random weights, and stored groups of random tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from recipe.rerule.replay import RolloutGroup


@dataclass(frozen=True)
class Shape:
    """A Llama's layers. `layers` may be fewer than the model of that name has."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int
    layers: int
    tied: bool = False


@dataclass(frozen=True)
class Rows:
    """groups x rollouts responses; lengths are drawn up to the tokens given."""

    groups: int
    rollouts: int
    prompt_tokens: int
    response_tokens: int


def llama(shape: Shape, device: str, dtype: torch.dtype) -> LlamaForCausalLM:
    """A Llama of seeded random weights, made on the device in `dtype`."""
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=8192,
        initializer_range=shape.hidden**-0.5,  # logits of about 1, so that responses differ in probability
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def random_groups(rows: Rows, vocabulary: int) -> list[RolloutGroup]:
    """Groups of random tokens, rewards and GRPO advantages; their log-probs are 0."""
    generator = torch.Generator().manual_seed(1)
    return [_random_group(number, rows, vocabulary, generator) for number in range(rows.groups)]


def _random_group(number: int, rows: Rows, vocabulary: int, generator: torch.Generator) -> RolloutGroup:
    def draw(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high + 1, (count,), generator=generator, dtype=torch.int32)

    lengths = draw(max(1, rows.response_tokens // 2), rows.response_tokens, rows.rollouts)
    tokens = int(lengths.sum())
    rewards = torch.cat([torch.tensor([0.0, 1.0]), draw(0, 2, rows.rollouts - 2) / 2])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    return RolloutGroup(
        prompt_index=number,
        side="retain",
        mode="qa",
        step=1,
        prompt_ids=draw(5, vocabulary - 1, rows.prompt_tokens),
        response_ids=draw(5, vocabulary - 1, tokens),
        lengths=lengths,
        response_mask=torch.ones(tokens, dtype=torch.bool),
        old_log_probs=torch.zeros(tokens),
        advantages=advantages.repeat_interleave(lengths),
        rewards=rewards,
        ref_log_probs=torch.zeros(tokens),
    )
