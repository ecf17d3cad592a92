"""Stage 1, rejection steering, in process: a small model fine-tuned on (forget prompt, refusal) pairs.

The plain counterpart of `recipe.rerule.sft`, for models that one process trains in seconds: no verl.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.contract import read_sft_rows
from data_prep.world.build import build, is_up_to_date
from data_prep.world.config import WorldConfig
from data_prep.world.model import answer_loss, encode_pairs, make_batches
from recipe.rerule.io import DATA, file_sha256, new_folder

MADE_FROM = "made_from.txt"
"""The SHA-256 of its world's manifest, in the model's folder."""
# The settings of `experiment=tiny`, with verl's AdamW and cosine schedule.
LEARNING_RATE = 2e-4
_BATCH_SIZE = 8
_WARMUP_STEPS = 5
_WEIGHT_DECAY = 0.01
_GRAD_CLIP = 1.0


def prepare(folder: Path, config: WorldConfig) -> tuple[Path, Path]:
    """The world and its stage-1 model under `folder`, made unless they are there; their folders.

    Raises:
        ValueError: what is there was made with other settings or by another version; it is left as it is.
    """
    data, target = folder / "world", folder / "stage1"
    if data.exists() and not is_up_to_date(config, data):
        raise ValueError(
            f"{data} is not the world that these settings and this version make; give another folder, or "
            "move it away"
        )
    build(config, data, overwrite=False)
    world, mark = file_sha256(data / DATA.marker), target / MADE_FROM
    if target.exists():
        if not mark.is_file() or mark.read_bytes() != world.encode():
            raise ValueError(f"{target} is of another stage 1; give another folder, or move it away")
        return data, target
    model = AutoModelForCausalLM.from_pretrained(data / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(data / "model")
    steer(model, tokenizer, read_sft_rows(data / "sft.parquet"), config.seed)
    with new_folder(target, overwrite=False) as draft:
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        (draft / MADE_FROM).write_text(world)
    return data, target


def steer(
    model: Any, tokenizer: Any, rows: list[dict[str, Any]], seed: int, learning_rate: float = LEARNING_RATE
) -> list[float]:
    """Fine-tune in place on rows of sft.parquet, once over them, the loss on the refusal alone.

    Returns the loss of each step, before it.
    """
    pairs = [(row["messages"][0]["content"], row["messages"][1]["content"]) for row in rows]
    batches = make_batches(encode_pairs(tokenizer, pairs), _BATCH_SIZE, seed)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=_WEIGHT_DECAY)
    schedule = LambdaLR(optimizer, lambda step: _cosine(step, len(batches)))
    losses = []
    for batch in batches:
        loss = answer_loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _GRAD_CLIP)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def _cosine(step: int, steps: int) -> float:
    """Learning rate as a share of its peak: a linear rise, then half a cosine to 0."""
    if step < _WARMUP_STEPS:
        return step / _WARMUP_STEPS
    return 0.5 * (1 + math.cos(math.pi * (step - _WARMUP_STEPS) / max(1, steps - _WARMUP_STEPS)))
