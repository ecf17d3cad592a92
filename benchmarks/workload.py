"""What both sides of a speed comparison train on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One training step's work, and where its model and prompts are.

    model: folder of a Hugging Face model. train: a parquet file of our row contract.
    prompts x rollouts responses a step, of at most response_limit tokens. replay_groups: most groups kept.
    pass_rows: responses in each of TRL's passes; None: all of a step.
    """

    model: str
    train: str
    prompts: int = 16
    rollouts: int = 8
    response_limit: int = 24
    temperature: float = 1.0
    learning_rate: float = 2e-4
    kl_coef: float = 0.01
    replay_groups: int = 256
    pass_rows: int | None = None
