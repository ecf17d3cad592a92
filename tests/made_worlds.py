"""Worlds whose models are made in seconds."""

from types import SimpleNamespace

from data_prep.contract import Row
from data_prep.world.config import WorldConfig
from data_prep.world.model import make_model, train_tokenizer
from data_prep.world.splits import World, make_world

SMALL = WorldConfig(
    forget_people=1, retain_people=2, unseen_people=1, unknown_questions=20, retain_probes=9,
    hidden_size=16, layers=1, heads=2, intermediate_size=32, vocab_size=400, epochs=1, target_accuracy=0.0,
)  # fmt: skip
"""Four people; the model is too small to learn them."""
MICRO = WorldConfig(
    retain_people=4, unseen_people=3, facts_per_person=3, val_rows=8, retain_probes=12, unknown_questions=40,
    vocab_size=600, hidden_size=64, layers=2, heads=2, intermediate_size=128, epochs=4,
)  # fmt: skip
"""Nine people, and a model of 0.2 M parameters that knows them somewhat."""


def rows(world: World, split: str) -> list[Row]:
    """The rows of "train", "val", "probe" or "sft"."""
    made = world.benchmark
    if split == "sft":
        return made.sft_rows()
    return made.rl_rows(split, made.probes if split == "probe" else getattr(made, split))


def untrained(config: WorldConfig) -> SimpleNamespace:
    """A world, its rows of both stages, its tokenizer and an untrained model."""
    world = make_world(config)
    tokenizer = train_tokenizer((text for pair in world.base_pairs for text in pair), config.vocab_size)
    made = {"train": rows(world, "train"), "sft": rows(world, "sft"), "tokenizer": tokenizer}
    return SimpleNamespace(world=world, model=make_model(config, tokenizer).eval(), **made)
