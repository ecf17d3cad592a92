"""What tests of the study share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from data_prep.world.model import make_model
from data_prep.world.splits import make_world
from data_prep.world.tokenizer import train_tokenizer
from tests.benchmarks.small_study import CONFIG


@pytest.fixture(scope="module")
def made() -> SimpleNamespace:
    """An untrained model, its tokenizer and the rows of a small world."""
    world = make_world(CONFIG)
    tokenizer = train_tokenizer((text for pair in world.base_pairs for text in pair), CONFIG.vocab_size)
    return SimpleNamespace(world=world, tokenizer=tokenizer, model=make_model(CONFIG, tokenizer).eval())
