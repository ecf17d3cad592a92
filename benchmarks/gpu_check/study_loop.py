"""Part 3: the study's loop, generation included, with a model of about 100 M parameters."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_check.lines import Line
from benchmarks.study.loop import Run, Settings
from data_prep.world.config import WorldConfig
from data_prep.world.model import make_model
from data_prep.world.splits import make_world
from data_prep.world.tokenizer import train_tokenizer
from recipe.rerule.minimal import batches
from recipe.rerule.replay import ReplayConfig

STEPS = 6
_FEW_PEOPLE = {"forget_people": 1, "retain_people": 2, "unseen_people": 1, "retain_probes": 9}
LARGE = WorldConfig(hidden_size=768, layers=14, heads=12, intermediate_size=2048, vocab_size=2048)
SMALL = WorldConfig(**_FEW_PEOPLE, hidden_size=32, layers=1, heads=2, intermediate_size=64, vocab_size=600)


def check(device: str, small: bool) -> Iterator[Line]:
    """Steps of ReRULE from untrained weights: seconds of a step, and that losses and weights stay finite."""
    config = SMALL if small else LARGE
    world = make_world(config)
    tokenizer = train_tokenizer((text for pair in world.base_pairs for text in pair), config.vocab_size)
    model = make_model(config, tokenizer).eval().to(device)
    reference = make_model(config, tokenizer).eval().to(device).requires_grad_(False)
    size = 4 if small else 16
    settings = Settings(prompts=size, rollouts=size // 2, learning_rate=1e-5, replay=_replay())
    torch.manual_seed(0)
    steps = _steps(Run(model, reference, tokenizer, settings), world.train, settings)
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    part = f"study's loop, {millions:.0f} M parameters"
    replayed = [step for step in steps if "replay/grad_norm" in step]
    yield Line(part, "steps without a replay update", float(STEPS - len(replayed)), limit=1.0)
    yield Line(part, "seconds of a step with replay", median(s["seconds"] for s in replayed), "s")
    broken = sum(not bool(weight.isfinite().all()) for weight in model.parameters())
    yield Line(part, "parameters that are not finite", float(broken), limit=0.0)


def _replay() -> ReplayConfig:
    """Replay from the second step on, of any groups: an untrained model earns no reward."""
    return ReplayConfig(
        admission="all", require_signal=False, min_groups=2, warmup_steps=1, groups_per_update=8
    )


def _steps(run: Run, rows: Any, settings: Settings) -> list[dict[str, float]]:
    source = batches(rows, settings.prompts, seed=0)
    return [run.step(next(source), step)[0] for step in range(1, STEPS + 1)]
