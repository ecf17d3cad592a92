"""The losses beside those of a checkout of open-unlearning; how far those depart is printed (pytest -s).

Runs where the environment variable OPEN_UNLEARNING names such a checkout.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from recipe.rerule.unlearning import losses

CHECKOUT = os.environ.get("OPEN_UNLEARNING")
pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="OPEN_UNLEARNING names no checkout")

VOCABULARY, WIDTH, BETA = 11, 9, 0.1
LENGTHS = (9, 6, 4)  # of rows padded to WIDTH
PROMPT = 2


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    path = Path(CHECKOUT or "") / "src" / "trainer" / "utils.py"
    spec = importlib.util.spec_from_file_location("open_unlearning_losses", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Fixed:
    """A model whose logits are known: [rows, WIDTH, VOCABULARY], float64."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (len(LENGTHS), WIDTH, VOCABULARY)
        self.logits = torch.randn(shape, generator=generator, dtype=torch.float64)

    def __call__(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits)


def inputs(seed: int) -> dict[str, Tensor]:
    """Labels as theirs: -100 on prompts and padding."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(VOCABULARY, (len(LENGTHS), WIDTH), generator=generator)
    places = torch.arange(WIDTH)
    for row, length in enumerate(LENGTHS):
        labels[row, (places < PROMPT) | (places >= length)] = -100
    return {"labels": labels}


def sums(model: Fixed, rows: dict[str, Tensor]) -> Tensor:
    """log pi of each answer."""
    labels = rows["labels"][:, 1:]
    found = model.logits[:, :-1].log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return (found * (labels >= 0)).sum(-1)


MODEL, START, GOLD, REFUSAL = Fixed(0), Fixed(1), inputs(2), inputs(3)


def test_their_npo_term_is_ours(theirs: ModuleType) -> None:
    found, _ = theirs.compute_dpo_loss(MODEL, START, None, GOLD, beta=BETA)
    ours = losses.npo(sums(MODEL, GOLD), sums(START, GOLD), BETA)
    assert found.item() == pytest.approx(ours.item(), rel=1e-10)


def test_their_dpo_is_a_multiple_of_the_standard(theirs: ModuleType) -> None:
    found, _ = theirs.compute_dpo_loss(MODEL, START, REFUSAL, GOLD, beta=BETA)
    four = [sums(model, rows) for rows in (REFUSAL, GOLD) for model in (MODEL, START)]
    ours = losses.dpo(*four, BETA)
    print(
        f"DPO: theirs {found.item():.6f}, standard {ours.item():.6f}, {found.item() / ours.item():.3f} times"
    )
    assert found.item() == pytest.approx(losses.dpo(*four, BETA, scale=2 / BETA).item(), rel=1e-10)


def test_their_kl_counts_padding(theirs: ModuleType) -> None:
    found, _ = theirs.compute_kl_divergence(MODEL, START, {})
    real = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
    ours = losses.kl_by_position(START.logits, MODEL.logits)
    print(f"KL: theirs {found.item():.6f}, without padding {ours[real].mean().item():.6f}")
    assert found.item() == pytest.approx(ours.mean().item(), rel=1e-10)


def test_their_weighted_gradient_ascent_is_ours(theirs: ModuleType) -> None:
    labels = GOLD["labels"][:, 1:]
    log_probs = MODEL.logits[:, :-1].log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    tokens = log_probs[labels >= 0]
    found, _ = theirs.compute_wga_loss(MODEL, GOLD, beta=1.5)
    assert found.item() == pytest.approx(losses.wga(tokens, 1.5).mean().item(), rel=1e-10)
    found, _ = theirs.compute_satimp_loss(MODEL, GOLD, beta1=5.0, beta2=0.3)
    assert found.item() == pytest.approx(losses.satimp(tokens, 5.0, 0.3).mean().item(), rel=1e-10)


def test_their_undial_counts_all_positions(theirs: ModuleType) -> None:
    rows = {"labels": torch.arange(len(LENGTHS) * WIDTH).reshape(len(LENGTHS), WIDTH) % VOCABULARY}
    found, _ = theirs.compute_undial_loss(MODEL, START, rows, beta=10.0)
    ours = losses.undial(START.logits[:, :-1], MODEL.logits[:, :-1], rows["labels"][:, 1:], 10.0)
    assert found.item() == pytest.approx(ours.mean().item(), rel=1e-6)  # their mask is in float32
