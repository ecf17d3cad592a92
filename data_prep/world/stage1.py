"""Stage 1, rejection steering, in process: a small model fine-tuned on (forget prompt, refusal) pairs.

The plain counterpart of `recipe.rerule.sft`, for models that one process trains in seconds: no verl.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.contract import read_sft_rows
from data_prep.world.build import build, is_up_to_date
from data_prep.world.config import WorldConfig
from data_prep.world.model import answer_loss, encode_pairs, make_batches
from recipe.rerule.io import new_folder

STEERING = "steering.json"
"""Stage 1's settings, in the model's folder."""


@dataclass(frozen=True)
class Steering:
    """Stage 1's settings; the defaults are `experiment=tiny`'s, with verl's AdamW and cosine schedule."""

    learning_rate: float = 2e-4
    epochs: int = 1
    batch_size: int = 8
    warmup_steps: int = 5
    weight_decay: float = 0.01
    grad_clip: float = 1.0


def prepare(folder: Path, config: WorldConfig, how: Steering) -> tuple[Path, Path]:
    """The world and its stage-1 model under `folder`, made unless they are there; their folders.

    Raises:
        ValueError: what is there was made with other settings or by another version; it is left as it is.
    """
    data, model = folder / "world", folder / "stage1"
    if data.exists() and not is_up_to_date(config, data):
        raise ValueError(
            f"{data} is not the world that these settings and this version make; give another folder, or "
            "move it away"
        )
    build(config, data, overwrite=False)
    make(data, model, how, config.seed)
    return data, model


def make(data: Path, target: Path, how: Steering, seed: int) -> None:
    """Write the stage-1 model of the world in `data` into `target`, unless it is there.

    Raises:
        ValueError: `target` holds a model of other settings, or something else.
    """
    if target.exists():
        return _check_settings(target, how)
    model = AutoModelForCausalLM.from_pretrained(data / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(data / "model")
    steer(model, tokenizer, read_sft_rows(data / "sft.parquet"), how, seed)
    with new_folder(target, overwrite=False) as draft:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        (draft / STEERING).write_text(json.dumps(asdict(how)))


def _check_settings(folder: Path, how: Steering) -> None:
    try:
        found = json.loads((folder / STEERING).read_text())
    except (OSError, ValueError):
        found = None
    if found != asdict(how):
        raise ValueError(f"{folder} is of another stage 1; give another folder, or move it away")


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
