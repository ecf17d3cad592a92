"""Sizes of checkpoints: by hand, against a real model's, and what is said of the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from recipe.rerule.training.checkpoint_size import (
    checkpoint_bytes,
    draft_bytes,
    free_bytes,
    most_at_once,
    parameter_count,
    sentence,
    steps_saved,
)


def test_eight_billion_parameters_take_128_gb() -> None:
    """32 GB of weights, 64 GB of Adam's two moments, 32 GB of the Hugging Face folder."""
    sizes = checkpoint_bytes(8_000_000_000, ["model", "optimizer", "extra", "hf_model"])
    assert sizes == {"model": 32 * 10**9, "optimizer": 64 * 10**9, "hf_model": 32 * 10**9}
    assert checkpoint_bytes(10, ["hf_model"]) == {"hf_model": 40}


def test_rounded_weights_take_half_and_for_a_while_the_float32_ones_too() -> None:
    sizes = checkpoint_bytes(10, ["model", "hf_model"], "bfloat16")
    assert sizes == {"model": 40, "hf_model": 20}
    assert draft_bytes(sizes, "bfloat16") == 40
    assert draft_bytes(checkpoint_bytes(10, ["model", "hf_model"]), "float32") == 0
    assert draft_bytes({"model": 40}, "bfloat16") == 0


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_from_the_configuration_alone(tmp_path: Path, tied: bool) -> None:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=tied,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(tmp_path)
    # Attention 4 x 8 x 8, MLP 3 x 8 x 16, two norms of 8; twice; a last norm; embeddings.
    by_hand = 2 * (4 * 64 + 3 * 128 + 16) + 8 + 32 * 8 * (1 if tied else 2)
    assert parameter_count(str(tmp_path)) == by_hand
    assert sum(weight.numel() for weight in LlamaForCausalLM(config).parameters()) == by_hand


@pytest.mark.parametrize(
    ("kept", "saves", "expected"), [(None, 7, 7), (1, 7, 2), (3, 7, 4), (3, 2, 2), (1, 1, 1)]
)
def test_checkpoints_on_the_disk_at_once(kept: int | None, saves: int, expected: int) -> None:
    assert most_at_once(kept, saves) == expected


@pytest.mark.parametrize(
    ("frequency", "steps", "expected"), [(10, 37, 4), (10, 40, 4), (1_000_000, 37, 1), (-1, 5, 1), (1, 3, 3)]
)
def test_saves_of_a_run(frequency: int, steps: int, expected: int) -> None:
    assert steps_saved(frequency, steps) == expected


def test_the_sentence_names_size_and_free_space() -> None:
    sizes = checkpoint_bytes(8_000_000_000, ["model", "optimizer", "hf_model"])
    assert sentence(sizes, 2, 500 * 10**9, Path("/data")) == (
        "a checkpoint takes about 128 GB (model 32, optimizer 64, hf_model 32), up to 2 at once 256 GB; "
        "500 GB are free in /data"
    )


def test_free_space_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    free, asked = free_bytes(tmp_path / "not" / "yet")
    assert asked == tmp_path
    assert free > 0
