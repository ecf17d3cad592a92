"""Frozen models: rows that have passed are remembered on all ranks, and weights are as passes read them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module

from recipe.rerule.unlearning import frozen
from tests.unlearning.made import put_model


@pytest.mark.parametrize(
    ("known", "other_misses", "passes"),
    [("", False, True), ("ab", True, True), ("a", False, True), ("ab", False, False)],
)
def test_all_ranks_pass_where_one_of_them_misses_a_row(
    known: str, other_misses: bool, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This rank asks for a and b; the other one passes c where any pass is made."""
    of_other = iter([other_misses, {b"c": torch.ones(3)}])
    made: list[str] = []

    def gather(parts: list[Any], own: Any, group: Any) -> None:
        parts[:] = [own, next(of_other)]

    def passed() -> dict[bytes, torch.Tensor]:
        made.append("pass")
        return {b"a": torch.ones(1), b"b": torch.ones(2)}

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    found = {bytes([letter]): torch.ones(1) for letter in known.encode()}
    frozen.remember(found, [b"a", b"b"], passed, None)
    assert bool(made) == passes
    assert {b"a", b"b"} <= set(found)
    assert (b"c" in found) == passes


@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        ("platform=gpu platform.attention=sdpa", "bf16"),
        ("platform=gpu platform.attention=sdpa +engine.mixed_precision.param_dtype=fp32", "fp32"),
        ("platform=cpu", "fp32"),
        ("platform=cpu platform.bf16=true", "bf16"),
    ],
)
def test_weights_are_read_as_passes_are_made(words: str, dtype: str, tmp_path: Path) -> None:
    given = ["method=npo", f"model.path={put_model(tmp_path)}", "model.lora_rank=4", *words.split()]
    with initialize_config_module("recipe.rerule.config.unlearn", version_base=None):
        config = compose("unlearn_trainer", given)
    made = frozen.worker_config(config, None)
    assert (made.engine_config.model_dtype, made.engine_config.forward_only) == (dtype, True)
    assert made.model_config.lora_rank == 0
