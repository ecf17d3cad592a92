"""The loss of a batch: that of plain formulae, whatever the order of its groups, its splits and its ranks.

And groups of rows: who is whose partner, which tokens are learnt, and that all draws follow from the seed.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.utils.data import DataLoader
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import SFTTensorCollator

from data_prep.contract import Row, text_row
from recipe.rerule.unlearning import presets, trainer
from recipe.rerule.unlearning.loss import MethodLoss, counts
from recipe.rerule.unlearning.method import SIDES, Method
from recipe.rerule.unlearning.rows import GroupDataset, GroupSampler
from tests.e2e import plain_unlearning
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level
from tests.unlearning import made

Models = tuple[Any, Any, Any]
ALIASES = ("gd", "kl", "npo_rt", "dpo_rt")
METHODS = {name: presets.load(name) for name in presets.names() if name not in ALIASES}
FLAT = METHODS["flat"]
METHODS |= {f"flat_{name}": dataclasses.replace(FLAT, divergence=name) for name in ("kl", "tv", "js")}
METHODS["rmu"] = dataclasses.replace(METHODS["rmu"], layer=0)  # of 2
METHODS["whp_soft"] = dataclasses.replace(METHODS["whp"], labels="soft")
WEIGHTS = {
    "llmu": {"loss/forget": 0.5},
    "sga": {"loss/forget": 0.8, "loss/retain": 0.2},
    "satimp_gdr": {"loss/retain": 0.1},
    "satimp_klr": {"loss/retain": 0.1},
    "pdu": {"loss/retain": 100.0},
    "rmu": {"loss/retain": 1200.0},
}
"""Of the terms of a method, where they are not 1; by hand."""
GROUPS = [0, 3, 5, 6]
# Micro-batches of each rank: groups by their place in GROUPS.
SPLITS: dict[str, list[list[list[int]]]] = {
    "whole": [[[0, 1, 2, 3]]],
    "permuted and split unequally": [[[3], [0, 2, 1]]],
    "two ranks": [[[3, 1]], [[0], [2]]],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The model, the start model that it has moved away from, and one reinforced from there.

    In float64, but for norms and the softmax of attention, which transformers does in float32.
    """
    folder = made.put_model(tmp_path_factory.mktemp("model"))
    model, start, reinforced = (made.plain_model(folder).double() for _ in range(3))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in (*model.parameters(), *reinforced.parameters()):
            value += 0.02 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return model, start, reinforced


def plain_frozen(model: Any) -> Any:
    """A frozen model without verl's engine."""

    def passing(values: Callable[[Any, TensorDict], Tensor]) -> Callable[[TensorDict, Tensor], Tensor]:
        return lambda data, rows: values(model, tu.index_select_tensor_dict(data, rows)).detach()

    parts = {"log_probs": next_log_probs, "logits": all_logits, "hidden": hidden_states}
    return SimpleNamespace(**{name: passing(values) for name, values in parts.items()})


def all_logits(model: Any, data: TensorDict) -> Tensor:
    return torch.cat([model(input_ids=ids[None]).logits[0] for ids in data["input_ids"].unbind()])


def hidden_states(model: Any, data: TensorDict) -> Tensor:
    """After layer 0: [positions, H]."""
    rows = (model.model(ids[None], output_hidden_states=True) for ids in data["input_ids"].unbind())
    return torch.cat([row.hidden_states[1][0] for row in rows])


def next_log_probs(model: Any, data: TensorDict) -> Tensor:
    """As verl's engine gives them: the labels of a packed batch rolled by one, over the ends of rows too."""
    labels = data["input_ids"].values().roll(-1)
    return all_logits(model, data).log_softmax(-1).gather(-1, labels[:, None])[:, 0]


@functools.cache
def groups(method: Method) -> list[list[dict[str, Tensor]]]:
    return [dataset(method).group(0, place) for place in GROUPS]


def micro_batch(method: Method, places: Sequence[int]) -> TensorDict:
    rows = [row for place in places for row in groups(method)[place]]
    return tu.get_tensordict(tensor_dict=SFTTensorCollator("no_padding")(rows), non_tensor_dict={})


def loss_of(method: Method, models: Models, ranks: list[list[list[int]]]) -> tuple[Tensor, dict[str, float]]:
    """What verl makes of micro-batches: summed in each rank, averaged over ranks."""
    model, *frozen = models
    loss = MethodLoss(method, *map(plain_frozen, frozen), seed=42)
    parts = [micro_batch(method, micro) for rank in ranks for micro in rank]
    counted = [counts(part, method.retain_positions) for part in parts]
    totals = {name: sum(count[name] for count in counted) for name in counted[0]}
    found, terms = [], []
    for part in parts:
        tu.assign_non_tensor(part, groups=len(GROUPS), dp_size=len(ranks), **totals)
        output = {"log_probs": nested(next_log_probs(model, part), part)}
        if method.needs_logits:
            logits = all_logits(model, part)[None]
            more = loss(student_logits=logits, data=part)
            output |= {name: nested(value[0], part) for name, value in more.items()}
        if method.needs_hidden:
            output["hidden"] = nested(hidden_states(model, part), part)
        value, metrics = loss(model_output=output, data=part)
        found.append(value)
        terms.append(metrics)
    mean = {name: sum(metrics[name] for metrics in terms) / len(ranks) for name in terms[0]}
    return torch.stack(found).sum() / len(ranks), mean


def nested(values: Tensor, data: TensorDict) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(values, data["input_ids"].offsets())


def flat_gradient(loss: Tensor, model: Any) -> Tensor:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.cat([part.flatten() for part in found if part is not None])


@pytest.mark.parametrize("name", METHODS)
def test_loss_and_gradient_are_those_of_plain_formulae_whatever_the_splits(name: str, models: Models) -> None:
    rows = [row for group in groups(METHODS[name]) for row in group]
    lists = [{key: value.tolist() for key, value in row.items()} for row in rows]
    expected = plain_unlearning.loss(name, lists, *models)
    gradient = flat_gradient(expected, models[0])
    for split, ranks in SPLITS.items():
        found, terms = loss_of(METHODS[name], models, ranks)
        assert found.item() == pytest.approx(expected.item(), rel=1e-6), split
        assert (flat_gradient(found, models[0]) - gradient).norm() < 1e-6 * gradient.norm(), split
        weighed = sum(WEIGHTS.get(name, {}).get(side, 1.0) * value for side, value in terms.items())
        assert weighed == pytest.approx(expected.item(), rel=1e-6), split


def test_the_weight_of_pdu_moves_after_its_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, with limit 0.3 and rate 5: 100 + 5 (0.5 - 0.3), then + 5 (0.1 - 0.3); of two ranks."""
    terms = iter([0.9, 0.5, 0.1])

    def one_step(worker: Any, data: TensorDict) -> TensorDict:
        term = next(terms)
        metrics = {"loss/retain": [[term, term / 2], [term / 4, term / 4]]}
        return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": metrics})

    monkeypatch.setattr(trainer.TrainingWorker, "train_batch", one_step)
    monkeypatch.setattr(trainer.UnlearningWorker, "_batch_counts", lambda worker, data: {})
    worker = object.__new__(trainer.UnlearningWorker)
    worker._method, worker.loss_fn = METHODS["pdu"], MethodLoss(METHODS["pdu"], None)
    worker.steps, worker.dual_begins = 0, 1
    found = [tu.get(worker.train_batch(micro_batch(METHODS["pdu"], [0])), "metrics") for _ in range(3)]
    weights = [*(metrics["weight/retain"] for metrics in found), worker.loss_fn.weights["retain"]]
    assert weights == pytest.approx([100, 100, 101, 100], abs=1e-12)


def test_the_kl_may_count_the_positions_of_answers_alone(models: Models) -> None:
    """By hand, row by row; a mask that is not shifted within rows would count others."""
    model, start, _ = models
    by_hand = []
    for row in (row for group in groups(METHODS["ga_klr"]) for row in group if row["side"].item() == 2):
        ids = row["input_ids"][None]
        p0, p = (one(input_ids=ids).logits[0].log_softmax(-1).detach() for one in (start, model))
        by_hand += (p0.exp() * (p0 - p)).sum(-1)[:-1][row["loss_mask"][1:].bool()].tolist()
    answers = dataclasses.replace(METHODS["ga_klr"], retain_positions="answer")
    for ranks in SPLITS.values():
        _, terms = loss_of(answers, models, ranks)
        assert terms["loss/retain"] == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-6)


def test_whp_and_the_kl_are_of_their_own_rows(models: Models) -> None:
    both = dataclasses.replace(METHODS["whp"], retain="kl")
    _, terms = loss_of(both, models, [[[3, 1]], [[0], [2]]])
    for side, name in (("forget", "whp"), ("retain", "ga_klr")):
        _, alone = loss_of(METHODS[name], models, [[[0, 1, 2, 3]]])
        assert terms[f"loss/{side}"] == pytest.approx(alone[f"loss/{side}"], rel=1e-6)


TOKENIZER = byte_level(LLAMA3_TEMPLATE)


def dataset(method: str | Method, seed: int = 0, max_length: int = 300, **files: list[Row]) -> GroupDataset:
    chosen = presets.load(method) if isinstance(method, str) else method
    return GroupDataset(made.rows() | files, chosen, TOKENIZER, max_length, seed)


def texts(group: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Side, prompt and answer of each row of a group."""
    found = []
    for row in group:
        side = SIDES[row["side"].item()]
        parts = [
            TOKENIZER.decode(row["input_ids"][row["loss_mask"] == learnt], skip_special_tokens=True)
            for learnt in (0, 1)
        ]
        found.append((side, parts[0].replace("user", "").replace("assistant", "").strip(), parts[1].strip()))
    return found


def test_the_alternate_row_is_the_one_with_the_same_index() -> None:
    groups = dataset("dpo")
    for place, row in enumerate(made.rows()["forget"]):
        (side, prompt, answer), (other_side, other_prompt, refusal) = texts(groups.group(3, place))
        assert (side, other_side) == ("forget", "alternate")
        assert prompt == other_prompt == row["messages"][0]["content"]
        assert answer == row["messages"][1]["content"].strip()
        assert refusal == "I do not know" + "." * place


@pytest.mark.parametrize("rows", [1, 3])
def test_every_retain_row_is_used_once_before_any_is_used_twice(rows: int) -> None:
    groups = dataset(dataclasses.replace(presets.load("ga_gdr"), retain_rows=rows))
    used: Counter[str] = Counter()
    for epoch in range(6):
        for place in range(made.FORGET):
            found = texts(groups.group(epoch, place))
            assert [side for side, _, _ in found] == ["forget", *["retain"] * rows]
            used.update(prompt for _, prompt, _ in found[1:])
            assert max(used.values()) - min(used.values() if len(used) == made.RETAIN else [0]) <= 1
    assert set(used.values()) == {6 * made.FORGET * rows // made.RETAIN}


def test_random_answers_are_those_of_other_rows_and_drawn_anew() -> None:
    groups = dataset("mismatch")
    own = [row["messages"][1]["content"].strip() for row in made.rows()["forget"]]
    seen = set()
    for epoch in range(4):
        for place in range(len(groups)):
            (side, prompt, answer), (kept, _, _) = texts(groups.group(epoch, place))
            assert (side, kept) == ("alternate", "retain")
            assert prompt == f"Who{place}"
            assert answer in own
            assert answer != own[place]
            seen.add((place, answer))
    assert len(seen) > 2 * len(groups)


def test_llmu_has_five_different_answers_of_retain_rows() -> None:
    answers = {row["messages"][1]["content"].strip() for row in made.rows()["retain"]}
    for place in range(made.FORGET):
        found = texts(dataset("llmu").group(0, place))
        assert [side for side, _, _ in found] == ["forget", *["alternate"] * 5, "retain"]
        drawn = {answer for side, _, answer in found if side == "alternate"}
        assert len(drawn) == 5
        assert drawn <= answers


def test_draws_follow_from_the_seed_alone() -> None:
    def drawn(seed: int, order: list[int]) -> dict[int, Any]:
        groups = dataset("llmu", seed)
        return {place: texts(groups.group(2, place)) for place in order}

    forward = drawn(5, list(range(8)))
    assert forward == drawn(5, list(range(8))[::-1])
    assert forward != drawn(6, list(range(8)))


def test_a_row_that_is_one_text_is_learnt_but_for_its_first_token() -> None:
    """Nothing predicts that token, and the mask's shift would count it at the end of the row before it."""
    text = text_row("Who wrote it", {"index": 0, "mode": "qa", "subject": "x"})
    row, *_ = dataset("ga", forget=[text]).group(0, 0)
    assert TOKENIZER.convert_ids_to_tokens(row["input_ids"]) == ["<|begin|>", "Who", "Ġwrote", "Ġit"]
    assert row["loss_mask"].tolist() == [0, 1, 1, 1]


def test_longer_rows_are_cut() -> None:
    row, *_ = dataset("ga", max_length=7).group(0, 0)
    assert len(row["input_ids"]) == len(row["loss_mask"]) == len(row["position_ids"]) == 7


def test_the_longest_group() -> None:
    groups = dataset("dpo_gdr")
    longest: Counter[int] = Counter()
    for epoch, place in itertools.product(range(3), range(made.FORGET)):
        for row in groups.group(epoch, place):
            side = int(row["side"])
            longest[side] = max(longest[side], len(row["input_ids"]))
    assert groups.longest() == longest.total()


@pytest.mark.parametrize("workers", [0, 1])
def test_the_ranks_share_one_order_and_workers_see_the_epoch(workers: int) -> None:
    def batches(ranks: int, epoch: int) -> list[list[str]]:
        """The groups of each batch of all ranks, each a row to forget and a row to keep."""
        found: list[list[str]] = [[] for _ in range(made.FORGET // 4)]
        for rank in range(ranks):
            groups = dataset("ga_gdr")
            sampler = GroupSampler(groups, num_replicas=ranks, rank=rank, seed=7, drop_last=True)
            sampler.set_epoch(epoch)
            loader = DataLoader(groups, 4 // ranks, sampler=sampler, collate_fn=list, num_workers=workers)
            for of_batch, rows in zip(found, loader, strict=True):
                of_batch += [str(texts(rows[place : place + 2])) for place in range(0, len(rows), 2)]
        return [sorted(of_batch) for of_batch in found]

    assert batches(1, 3) == batches(2, 3)
    assert batches(1, 3) != batches(1, 4)
    assert all(len(set(batch)) == 4 for batch in batches(1, 3))
