"""Stage 1, rejection steering, in process: fine-tuning on (forget prompt, refusal) pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from data_prep.world.model import answer_loss, encode_pairs, make_batches


@dataclass(frozen=True)
class Steering:
    """Stage 1's settings; the defaults are `experiment=tiny`'s, with verl's AdamW and cosine schedule."""

    learning_rate: float = 2e-4
    epochs: int = 1
    batch_size: int = 8
    warmup_steps: int = 5
    weight_decay: float = 0.01
    grad_clip: float = 1.0


def steer(model: Any, tokenizer: Any, rows: list[dict[str, Any]], how: Steering, seed: int) -> float:
    """Fine-tune in place on rows of sft.parquet, the loss on the refusal alone; the last epoch's loss."""
    pairs = [(row["messages"][0]["content"], row["messages"][1]["content"]) for row in rows]
    examples = encode_pairs(tokenizer, pairs)
    optimizer = torch.optim.AdamW(
        model.parameters(), how.learning_rate, (0.9, 0.999), weight_decay=how.weight_decay
    )
    steps = how.epochs * math.ceil(len(examples) / how.batch_size)
    schedule = LambdaLR(optimizer, lambda step: _cosine(step, how.warmup_steps, steps))
    losses: list[float] = []
    for epoch in range(how.epochs):
        losses = []
        for batch in make_batches(examples, how.batch_size, seed * how.epochs + epoch):
            loss = answer_loss(
                model, type(batch)(batch.input_ids.to(model.device), batch.targets.to(model.device))
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), how.grad_clip)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def _cosine(step: int, warmup: int, steps: int) -> float:
    """Learning rate as a share of its peak: a linear rise, then half a cosine to 0."""
    if step < warmup:
        return step / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
