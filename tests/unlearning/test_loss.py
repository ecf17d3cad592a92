"""The loss of a batch: that of plain formulae, whatever the order of its groups, its splits and its ranks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import SFTTensorCollator

from recipe.rerule.unlearning import batch, presets
from recipe.rerule.unlearning.loss import MethodLoss
from recipe.rerule.unlearning.method import Method
from recipe.rerule.unlearning.rows import GroupDataset
from tests.e2e import plain_unlearning
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level
from tests.unlearning import made

Models = tuple[Any, Any, Any]
ALIASES = ("gd", "kl", "npo_rt", "dpo_rt")
METHODS = {name: presets.load(name) for name in presets.names() if name not in ALIASES}
METHODS |= {
    f"flat_{name}": dataclasses.replace(METHODS["flat"], divergence=name) for name in ("kl", "tv", "js")
}
METHODS["whp_soft"] = dataclasses.replace(METHODS["whp"], labels="soft")
GROUPS = [0, 3, 5, 6]
# Micro-batches of each rank: groups by their place in GROUPS.
SPLITS: dict[str, list[list[list[int]]]] = {
    "whole": [[[0, 1, 2, 3]]],
    "permuted and split unequally": [[[3], [0, 2, 1]]],
    "two ranks": [[[3, 1]], [[0], [2]]],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """The model, the start model that it has moved away from, and one reinforced from there.

    In float64, but for norms and the softmax of attention, which transformers does in float32.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are too small to share
    folder = made.put_model(tmp_path_factory.mktemp("model"))
    model, start, reinforced = (made.plain_model(folder).double() for _ in range(3))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in (*model.parameters(), *reinforced.parameters()):
            value += 0.02 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    yield model, start, reinforced
    torch.set_num_threads(threads)


class PlainFrozen:
    """A frozen model without verl's engine."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def log_probs(self, data: TensorDict, rows: Tensor) -> Tensor:
        return next_log_probs(self._model, tu.index_select_tensor_dict(data, rows)).detach()

    def logits(self, data: TensorDict, rows: Tensor) -> Tensor:
        return all_logits(self._model, tu.index_select_tensor_dict(data, rows)).detach()


def all_logits(model: Any, data: TensorDict) -> Tensor:
    return torch.cat([model(input_ids=ids[None]).logits[0] for ids in data["input_ids"].unbind()])


def next_log_probs(model: Any, data: TensorDict) -> Tensor:
    """As verl's engine gives them: the labels of a packed batch rolled by one, over the ends of rows too."""
    labels = data["input_ids"].values().roll(-1)
    return all_logits(model, data).log_softmax(-1).gather(-1, labels[:, None])[:, 0]


@functools.cache
def groups(method: Method) -> list[list[dict[str, Tensor]]]:
    dataset = GroupDataset(made.rows(), method, byte_level(LLAMA3_TEMPLATE), 300, seed=0)
    return [dataset.group(0, place) for place in GROUPS]


def micro_batch(method: Method, places: Sequence[int]) -> TensorDict:
    rows = [row for place in places for row in groups(method)[place]]
    return tu.get_tensordict(tensor_dict=SFTTensorCollator("no_padding")(rows), non_tensor_dict={})


def batch_loss(
    method: Method, models: Models, ranks: list[list[list[int]]], elsewhere: float | None = None
) -> tuple[Tensor, dict[str, float]]:
    """What verl makes of micro-batches: summed in each rank, averaged over ranks.

    `elsewhere` is put in the place of log-probs of the model at positions that are of no answer.
    """
    model, *frozen = models
    loss = MethodLoss(method, *map(PlainFrozen, frozen))
    parts = [micro_batch(method, micro) for rank in ranks for micro in rank]
    counted = [batch.counts(part, method.kl_positions) for part in parts]
    totals = {name: sum(count[name] for count in counted) for name in counted[0]}
    found, terms = [], []
    for part in parts:
        tu.assign_non_tensor(part, groups=len(GROUPS), dp_size=len(ranks), **totals)
        log_probs = next_log_probs(model, part)
        if elsewhere is not None:
            log_probs[~part["loss_mask"].values().roll(-1).bool()] = elsewhere
        output = {"log_probs": nested(log_probs, part)}
        if method.needs_logits:
            logits = all_logits(model, part)[None]
            output |= {
                name: nested(value[0], part) for name, value in loss(student_logits=logits, data=part).items()
            }
        value, metrics = loss(model_output=output, data=part)
        found.append(value)
        terms.append(metrics)
    mean = {name: sum(metrics[name] for metrics in terms) / len(ranks) for name in terms[0]}
    return torch.stack(found).sum() / len(ranks), mean


def nested(values: Tensor, data: TensorDict) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(values, data["input_ids"].offsets())


def plain(name: str, models: Models) -> Tensor:
    rows = [
        {key: value.tolist() for key, value in row.items()}
        for group in groups(METHODS[name])
        for row in group
    ]
    return plain_unlearning.loss(name, rows, *models)


@pytest.mark.parametrize("name", METHODS)
def test_loss_and_gradient_are_those_of_plain_formulae_whatever_the_splits(name: str, models: Models) -> None:
    expected = plain(name, models)
    gradient = flat_gradient(expected, models[0])
    for split, ranks in SPLITS.items():
        found, terms = batch_loss(METHODS[name], models, ranks)
        assert found.item() == pytest.approx(expected.item(), rel=1e-6), split
        assert (flat_gradient(found, models[0]) - gradient).norm() < 1e-6 * gradient.norm(), split
        assert sum(weights(METHODS[name])[side] * value for side, value in terms.items()) == pytest.approx(
            expected.item(), rel=1e-6
        )


@pytest.mark.parametrize("name", ["ga_klr", "npo", "simnpo", "dpo_gdr", "flat", "po"])
def test_labels_of_prompts_and_after_the_end_of_a_row_change_nothing(name: str, models: Models) -> None:
    splits = SPLITS["permuted and split unequally"]
    (one, terms), (other, others) = (batch_loss(METHODS[name], models, splits, x) for x in (None, -1e3))
    assert other.item() == one.item()
    assert others == terms


def flat_gradient(loss: Tensor, model: Any) -> Tensor:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.cat([part.flatten() for part in found if part is not None])


def weights(method: Method) -> dict[str, float]:
    by_hand = {"llmu": (0.5, 1.0, 1.0), "sga": (0.8, 1.0, 0.2)}.get(method.name, (1.0, 1.0, 1.0))
    return dict(zip(("loss/forget", "loss/alternate", "loss/retain"), by_hand, strict=True))


def test_the_prompt_of_a_row_counts_in_no_term_but_the_kl(models: Models) -> None:
    """Labels of the prompt are what the row before could see, were the mask not shifted within rows."""
    whole = [[[0, 1, 2, 3]]]
    for name in ("ga_klr", "npo_klr"):
        answers = dataclasses.replace(METHODS[name], kl_positions="answer")
        (everywhere, _), (there, _) = (batch_loss(m, models, whole) for m in (METHODS[name], answers))
        assert abs(everywhere.item() - there.item()) > 1e-4
    model, start, _ = models
    rows = [row for group in groups(METHODS["ga_klr"]) for row in group if row["side"].item() == 2]
    by_hand, count = 0.0, 0
    for row in rows:
        p0, p = (
            one(input_ids=row["input_ids"][None]).logits[0].log_softmax(-1).detach() for one in (start, model)
        )
        of_row = (p0.exp() * (p0 - p)).sum(-1)[:-1][row["loss_mask"][1:].bool()]
        by_hand, count = by_hand + of_row.sum().item(), count + len(of_row)
    _, terms = batch_loss(dataclasses.replace(METHODS["ga_klr"], kl_positions="answer"), models, whole)
    assert terms["loss/retain"] == pytest.approx(by_hand / count, rel=1e-6)


def test_at_the_start_npo_dpo_and_kl_are_constants(models: Models) -> None:
    start = models[1]
    ln2 = 0.6931471805599453
    for name, forget in (("npo_klr", 20 * ln2), ("dpo_gdr", ln2)):
        _, terms = batch_loss(METHODS[name], (start, start, start), [[[0, 1, 2, 3]]])
        assert terms["loss/forget"] == pytest.approx(forget, rel=1e-12)
        if name == "npo_klr":
            assert terms["loss/retain"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["whp", "whp_soft"])
def test_whp_without_a_difference_has_the_labels_of_the_start_model(name: str, models: Models) -> None:
    """With alpha 0, or with the start model as the reinforced one: by hand, row by row."""
    model, start, reinforced = models
    rows = [row for group in groups(METHODS[name]) for row in group]
    by_hand, count = 0.0, 0
    for row in rows:
        z0, z = (one(input_ids=row["input_ids"][None]).logits[0].detach() for one in (start, model))
        for place in row["loss_mask"].nonzero().flatten().tolist():
            log_p = z[place - 1].log_softmax(-1)
            if name == "whp":
                by_hand -= log_p[z0[place - 1].argmax()].item()
            else:
                by_hand -= (z0[place - 1].softmax(-1) @ log_p).item()
            count += 1
    without = dataclasses.replace(METHODS[name], alpha=0.0)
    for method, frozen in ((without, reinforced), (METHODS[name], start)):
        _, terms = batch_loss(method, (model, start, frozen), [[[0, 1], [2, 3]]])
        assert terms["loss/forget"] == pytest.approx(by_hand / count, rel=1e-6)
    _, terms = batch_loss(METHODS[name], models, [[[0, 1], [2, 3]]])
    assert abs(terms["loss/forget"] - by_hand / count) > 1e-3


def test_whp_and_the_kl_are_of_their_own_rows(models: Models) -> None:
    both = dataclasses.replace(METHODS["whp"], retain="kl")
    _, terms = batch_loss(both, models, [[[3, 1]], [[0], [2]]])
    for side, name in (("forget", "whp"), ("retain", "ga_klr")):
        _, alone = batch_loss(METHODS[name], models, [[[0, 1, 2, 3]]])
        assert terms[f"loss/{side}"] == pytest.approx(alone[f"loss/{side}"], rel=1e-6)


def test_options_of_dpo_and_sga(models: Models) -> None:
    whole = [[[0, 1, 2, 3]]]
    plain_dpo, scaled = METHODS["dpo"], dataclasses.replace(METHODS["dpo"], dpo_scale=20.0)
    assert batch_loss(scaled, models, whole)[0].item() == pytest.approx(
        20 * batch_loss(plain_dpo, models, whole)[0].item()
    )
    unsmoothed = dataclasses.replace(METHODS["sga"], smoothing=0.0)
    ga = batch_loss(METHODS["ga"], models, whole)[0].item()
    assert batch_loss(unsmoothed, models, whole)[0].item() == pytest.approx(ga)
    halved = dataclasses.replace(METHODS["llmu"], alternate_weight=0.0, retain_weight=0.0)
    assert batch_loss(halved, models, whole)[0].item() == pytest.approx(ga / 2)
