"""The leaderboard's plain loop against formulae of the tests' own, on padded batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.leaderboard import plain
from benchmarks.leaderboard.methods import METHODS, Preset
from benchmarks.leaderboard.plan import Plan
from recipe.rerule.unlearning import presets
from recipe.rerule.unlearning.loss import MethodLoss
from recipe.rerule.unlearning.rows import GroupDataset
from tests.e2e import plain_unlearning
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level
from tests.unlearning import made

Models = tuple[Any, Any, Any]
PRESETS = [entry.preset for entry in METHODS.values() if isinstance(entry, Preset)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """A model in float64, the start model that it has moved away from, and one reinforced from there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = made.put_model(tmp_path_factory.mktemp("model"))
    model, start, reinforced = (made.plain_model(folder).double() for _ in range(3))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in (*model.parameters(), *reinforced.parameters()):
            value += 0.02 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    yield model, start, reinforced
    torch.set_num_threads(threads)


def group_rows(name: str, keys: list[tuple[int, int]]) -> list[dict[str, torch.Tensor]]:
    dataset = GroupDataset(made.rows(), presets.load(name), byte_level(LLAMA3_TEMPLATE), 128, seed=0)
    return dataset.__getitems__(keys)


def as_lists(rows: list[dict[str, torch.Tensor]]) -> list[dict[str, Any]]:
    return [{key: value.tolist() for key, value in row.items()} for row in rows]


@pytest.mark.parametrize("name", PRESETS)
def test_the_loss_of_each_preset_is_that_of_plain_formulae(name: str, models: Models) -> None:
    model, *frozen = models
    rows = group_rows(name, [(0, 0), (0, 3), (1, 5)])
    method = presets.load(name)
    loss_of = MethodLoss(method, *map(plain.PlainFrozen, frozen))
    loss = plain.batch_loss(loss_of, method, model, plain.packed(rows))
    expected = plain_unlearning.loss(name, as_lists(rows), model, *frozen)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "frozen"), [("npo_klr", (0, 2)), ("dpo_gdr", (0, 1)), ("po", ()), ("whp", (0, 0))]
)
def test_training_is_plain_adamw_and_counts_its_tokens(
    name: str, frozen: tuple[int, ...], models: tuple[Any, Any]
) -> None:
    """`frozen`: the sides whose rows pass through a frozen model, once for each model."""
    trained, expected, start = (copy.deepcopy(models[0]) for _ in range(3))
    how = plain.Schedule(epochs=2, batch_size=4, weight_decay=0.01, grad_clip=1e9)
    tokenizer = byte_level(LLAMA3_TEMPLATE)
    method, reinforced = presets.load(name), models[2]
    found, spent = plain.train(trained, method, made.rows(), tokenizer, 1e-3, how, 0, reinforced)
    batches = [as_lists(group_rows(name, keys)) for keys in plain.steps(made.FORGET, how, seed=0)]
    losses, _ = plain_unlearning.train(name, batches, expected, start, reinforced, 1e-3, 0.01)
    assert len(found) == 4
    assert found == pytest.approx(losses, rel=1e-5, abs=1e-8)
    rows = [row for batch in batches for row in batch]
    tokens = sum(len(row["input_ids"]) for row in rows)
    referenced = sum(len(row["input_ids"]) * frozen.count(row["side"][0]) for row in rows)
    assert (spent.trained, spent.compute, spent.generated) == (tokens, 3 * tokens + referenced, 0)


def test_whp_has_the_labels_of_a_model_trained_on_the_answers_and_costs_both_trainings(
    models: Models,
) -> None:
    plan = Plan(schedule=plain.Schedule(epochs=1, batch_size=4, grad_clip=1e9))
    start = SimpleNamespace(
        model=lambda name: copy.deepcopy({"base": models[1]}[name]),
        files=made.rows(),
        tokenizer=byte_level(LLAMA3_TEMPLATE),
        seed=3,
    )
    found = METHODS["whp"].train(start, plan, 1e-3)
    reinforced, expected = copy.deepcopy(models[1]), copy.deepcopy(models[1])
    batches = [as_lists(group_rows("ga", keys)) for keys in plain.steps(made.FORGET, plan.schedule, seed=3)]
    as_refusals = [[{**row, "side": [plain_unlearning.ALTERNATE]} for row in rows] for rows in batches]
    plain_unlearning.train("rejection_steering", as_refusals, reinforced, models[1], models[1], 1e-3, 0.0)
    losses, _ = plain_unlearning.train("whp", batches, expected, models[1], reinforced, 1e-3, 0.0)
    assert found.curves["loss"] == pytest.approx(losses, rel=1e-5)
    for name, value in expected.named_parameters():
        torch.testing.assert_close(found.model.get_parameter(name), value, rtol=1e-4, atol=1e-6)
    tokens = sum(len(row["input_ids"]) for rows in batches for row in rows)
    assert (found.spent.trained, found.spent.compute) == (2 * tokens, (3 + 3 + 2) * tokens)
    assert found.spent.seconds > 0


def test_an_epoch_takes_every_row_once_but_for_its_incomplete_batch() -> None:
    found = list(plain.steps(10, plain.Schedule(epochs=2, batch_size=4), seed=1))
    assert [{epoch for epoch, _ in keys} for keys in found] == [{0}, {0}, {1}, {1}]
    for epoch in (0, 1):
        places = [place for keys in found for of_epoch, place in keys if of_epoch == epoch]
        assert len(set(places)) == len(places) == 8
    assert [place for _, place in found[0]] != [place for _, place in found[2]]


def test_the_probability_of_an_answer_is_the_geometric_mean_of_its_tokens(models: Models) -> None:
    ids, answered = torch.tensor([5, 9, 7, 3, 8]), 2
    with torch.no_grad():
        chances = models[0](input_ids=ids[None]).logits[0].double().softmax(-1)
    by_hand = [chances[place, ids[place + 1]].item() for place in (2, 3)]
    longer = torch.tensor([5, 9, 7, 3, 8, 2, 6, 4])
    rows = [
        {"input_ids": longer, "loss_mask": torch.tensor([0] * 7 + [1])},
        {"input_ids": ids, "loss_mask": torch.tensor([0, 0, 0] + [1] * answered)},
    ]
    sums, lengths = plain.answer_log_probs(models[0], rows)
    assert lengths.tolist() == [1, 2]
    assert (sums[1] / 2).exp().item() == pytest.approx((by_hand[0] * by_hand[1]) ** 0.5, rel=1e-6)
