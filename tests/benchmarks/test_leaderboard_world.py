"""Methods from end to end: of a small world that the model knows, each does what it is known for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks.leaderboard.language import Language
from benchmarks.leaderboard.measures import measure
from benchmarks.leaderboard.methods import METHODS
from benchmarks.leaderboard.plain import Schedule
from benchmarks.leaderboard.plan import Plan
from benchmarks.leaderboard.starts import FILES, Start
from benchmarks.study.worlds import WORLDS
from data_prep.contract import read_rows, read_sft_rows
from data_prep.world.build import build
from data_prep.world.splits import make_world
from recipe.rerule.minimal import Metrics

pytestmark = pytest.mark.full

CONFIG = replace(WORLDS["micro"].config, epochs=40, target_accuracy=0.95)
GENTLE, LONG = (3e-4, 2), (1e-3, 8)
"""Learning rate, and number of epochs of 5 steps. A refusal takes longer to learn than an answer to lose."""
End = Callable[[str, tuple[float, int]], Metrics]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world") / "world"
    build(CONFIG, folder, overwrite=False)
    files = {side: read_sft_rows(folder / f"{name}.parquet") for side, name in FILES.items()}
    language = Language(answer for _, answer in make_world(CONFIG).base_pairs)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    # No method here starts from a stage-1 model.
    data: Any = SimpleNamespace(model=Path("no stage 1"), probes=read_rows(folder / "probes.parquet"))
    yield Start(0, data, folder, files, language, tokenizer)
    torch.set_num_threads(threads)


@pytest.fixture
def end(start: Start) -> End:
    """end(method, (learning rate, epochs)): measures of the model that the method makes."""

    def train(method: str, how: tuple[float, int]) -> Metrics:
        rate, epochs = how
        trained = METHODS[method].train(start, Plan(schedule=Schedule(epochs=epochs)), rate)
        return measure(trained.model, start, start.data.probes)

    return train


def test_the_model_knows_the_world(start: Start) -> None:
    found = measure(start.model("base"), start, start.data.probes)
    assert min(found["forget/recall"], found["retain/recall"]) > 0.9
    assert found["forget/refused"] == found["retain/refused"] == 0


def test_gradient_ascent_loses_both_sides_and_a_retain_term_keeps_one(end: End) -> None:
    alone, kept = end("ga", GENTLE), end("ga_gdr", GENTLE)
    assert max(alone["forget/recall"], kept["forget/recall"]) < 0.3
    assert alone["retain/recall"] < 0.6
    assert kept["retain/recall"] > 0.9


def test_refusals_are_learnt_and_with_a_retain_term_on_one_side_alone(end: End) -> None:
    alone, kept = end("rejection_steering", LONG), end("po", LONG)
    assert min(alone["forget/refused"], kept["forget/refused"], alone["retain/refused"]) > 0.6
    assert kept["retain/refused"] < 0.1
    assert kept["retain/recall"] > 0.9
