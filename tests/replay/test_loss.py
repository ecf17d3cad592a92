from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from recipe.rerule.replay import (
    ImportanceConfig,
    k3,
    replay_loss,
    seq_mean_token_mean,
    seq_mean_token_sum,
    token_mean,
)
from recipe.rerule.replay.loss import ImportanceStats, importance_ratios, log_ratios, weights

ROWS, WIDTH, FEATURES, VOCABULARY = 5, 4, 3, 6
KL_COEF = 0.3
# The last row has no valid token; the first has a hole where a tool has spoken.
MASK = [[1, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
VALID = [(i, t) for i in range(ROWS) for t in range(WIDTH) if MASK[i][t]]
LEVELS: list[Any] = ["token", "sequence", "sequence_sum"]
CLIPS: dict[str, dict[str, Any]] = {
    "clip": {"clip_low": 0.8, "clip_high": 1.3},
    "none": {"clip_low": 0.0, "clip_high": math.inf},
}
AGGREGATES = {
    "token-mean": token_mean,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-mean": seq_mean_token_mean,
}
# Rows of each micro-batch or rank, unequal and out of order too.
SPLITS = {
    "whole": [[0, 1, 2, 3, 4]],
    "single rows": [[0], [1], [2], [3], [4]],
    "unequal": [[3, 0], [4, 2, 1]],
}
CASES = list(itertools.product(LEVELS, CLIPS, [True, False], [True, False], AGGREGATES))


def importance(level: Any, clip: str, normalize: bool) -> ImportanceConfig:
    return ImportanceConfig(level=level, normalize=normalize, **CLIPS[clip])


@functools.cache
def softmax_policy() -> dict[str, Tensor]:
    """A linear softmax policy over random features, and stored data far enough off to be clipped."""
    generator = torch.Generator().manual_seed(50)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    policy = {
        "features": normal(ROWS, WIDTH, FEATURES),
        "parameters": normal(FEATURES, VOCABULARY),
        "actions": torch.randint(VOCABULARY, (ROWS, WIDTH), generator=generator),
        "advantages": normal(ROWS, 1).expand(ROWS, WIDTH),
    }
    current = log_probs_of(policy["parameters"], policy["features"], policy["actions"])
    return policy | {"old": current + 0.5 * normal(ROWS, WIDTH), "ref": current + 0.5 * normal(ROWS, WIDTH)}


def log_probs_of(parameters: Tensor, features: Tensor, actions: Tensor) -> Tensor:
    return (features @ parameters).log_softmax(-1).gather(-1, actions[..., None])[..., 0]


def hand_units(log_ratio: dict[tuple[int, int], float], level: str) -> dict[Any, float]:
    """Ratio of every unit in plain Python: by (row, place), or by row."""
    rows: dict[int, list[float]] = {}
    for (i, _), value in log_ratio.items():
        rows.setdefault(i, []).append(value)
    logs: dict[Any, float] = {
        "token": dict(log_ratio),
        "sequence": {i: sum(values) / len(values) for i, values in rows.items()},
        "sequence_sum": {i: sum(values) for i, values in rows.items()},
    }[level]
    return {unit: math.exp(value) for unit, value in logs.items()}


def hand_weights(log_ratio: dict[tuple[int, int], float], config: ImportanceConfig) -> dict[Any, float]:
    """rho~ of every valid token in plain Python."""
    units = hand_units(log_ratio, config.level)
    clipped = {unit: min(max(r, config.clip_low), config.clip_high) for unit, r in units.items()}
    divisor = sum(clipped.values()) / len(clipped) if config.normalize else 1.0
    return {key: clipped[key if config.level == "token" else key[0]] / divisor for key in log_ratio}


def hand_share(aggregate: str, row: int) -> float:
    """What one valid token of a row counts in the aggregate of the whole batch."""
    valid_rows = sum(any(marks) for marks in MASK)
    return {
        "token-mean": 1 / sum(map(sum, MASK)),
        "seq-mean-token-sum": 1 / valid_rows,
        "seq-mean-token-mean": 1 / (valid_rows * max(1, sum(MASK[row]))),
    }[aggregate]


@functools.cache
def hand_probabilities() -> dict[tuple[int, int], list[float]]:
    """The policy's distribution at every valid place."""
    policy, found = softmax_policy(), {}
    for i, t in VALID:
        logits = [
            sum(float(policy["features"][i, t, f] * policy["parameters"][f, v]) for f in range(FEATURES))
            for v in range(VOCABULARY)
        ]
        exponentials = [math.exp(x) for x in logits]
        found[i, t] = [e / sum(exponentials) for e in exponentials]
    return found


def hand_log_ratios() -> dict[tuple[int, int], float]:
    policy, probabilities = softmax_policy(), hand_probabilities()
    current = {(i, t): math.log(probabilities[i, t][int(policy["actions"][i, t])]) for i, t in VALID}
    return {(i, t): current[i, t] - float(policy["old"][i, t]) for i, t in VALID}


def hand_loss_and_gradient(config: ImportanceConfig, aggregate: str, with_kl: bool) -> tuple[float, Tensor]:
    """The closed form, one token at a time: d log pi(a) / d W[f, v] = x[f] ([v = a] - pi(v))."""
    policy, probabilities, log_ratio = softmax_policy(), hand_probabilities(), hand_log_ratios()
    rho = hand_weights(log_ratio, config)
    loss, gradient = 0.0, torch.zeros(FEATURES, VOCABULARY, dtype=torch.float64)
    for i, t in VALID:
        action, share = int(policy["actions"][i, t]), hand_share(aggregate, i)
        current = math.log(probabilities[i, t][action])
        slope = -rho[i, t] * float(policy["advantages"][i, t])
        loss += share * slope * current
        if with_kl:
            d = float(policy["ref"][i, t]) - current
            loss += share * KL_COEF * (math.exp(d) - d - 1)
            slope += KL_COEF * (1 - math.exp(d))
        for f, v in itertools.product(range(FEATURES), range(VOCABULARY)):
            indicator = 1.0 if v == action else 0.0
            feature = float(policy["features"][i, t, f])
            gradient[f, v] += share * slope * feature * (indicator - probabilities[i, t][v])
    return loss, gradient


def shard_aggregate(name: str, values: Tensor, mask: Tensor) -> Tensor:
    """A shard's part of the whole batch's aggregate: the whole batch's counts below the fraction bar."""
    whole = torch.tensor(MASK)
    if name == "token-mean":
        return (values * mask).sum() / whole.sum()
    rows = (values * mask).sum(dim=-1)
    if name == "seq-mean-token-mean":
        rows = rows / mask.sum(dim=-1).clamp(min=1)
    return rows.sum() / whole.any(dim=-1).sum()


def weights_of_shards(config: ImportanceConfig, log_probs: Tensor, split: list[list[int]]) -> list[Tensor]:
    """rho~ of each shard, by way of units and moments gathered from all of them."""
    old, mask = softmax_policy()["old"], torch.tensor(MASK)
    logs = [log_ratios(log_probs[rows], old[rows], mask[rows]) for rows in split]
    units = [
        importance_ratios(part, mask[rows], config.level) for part, rows in zip(logs, split, strict=True)
    ]
    moments = ImportanceStats()
    for part, log_ratio, rows in zip(units, logs, split, strict=True):
        moments = moments + ImportanceStats.of(part, log_ratio, mask[rows], config)
    return [weights(part, mask[rows], config, moments) for part, rows in zip(units, split, strict=True)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("level", "clip", "normalize", "with_kl", "aggregate"), CASES)
def test_gradient_is_the_closed_form(
    level: Any, clip: str, normalize: bool, with_kl: bool, aggregate: str, split: str
) -> None:
    config, policy, mask = importance(level, clip, normalize), softmax_policy(), torch.tensor(MASK)
    parameters = policy["parameters"].clone().requires_grad_()
    log_probs = log_probs_of(parameters, policy["features"], policy["actions"])
    total = torch.zeros((), dtype=torch.float64)
    for rows, w in zip(SPLITS[split], weights_of_shards(config, log_probs, SPLITS[split]), strict=True):
        extra = {"ref_log_probs": policy["ref"][rows], "kl_coef": KL_COEF} if with_kl else {}
        aggregator = functools.partial(shard_aggregate, aggregate)
        total = (
            total
            + replay_loss(
                log_probs[rows], w, policy["advantages"][rows], mask[rows], aggregator, **extra
            ).total
        )
    total.backward()
    expected_loss, expected = hand_loss_and_gradient(config, aggregate, with_kl)
    assert total.item() == pytest.approx(expected_loss, rel=1e-10)
    assert parameters.grad is not None
    assert float((parameters.grad - expected).norm() / expected.norm()) < 1e-10


@pytest.mark.parametrize("name", AGGREGATES)
def test_the_aggregates_offered_are_those_of_the_whole_batch(name: str) -> None:
    config, inputs = importance("token", "clip", True), simple_inputs()
    (w,) = weights_of_shards(config, inputs["log_probs"], SPLITS["whole"])
    loss = replay_loss(**{**inputs, "weights": w, "aggregate": AGGREGATES[name]})
    assert loss.total.item() == pytest.approx(hand_loss_and_gradient(config, name, True)[0], rel=1e-10)


@pytest.mark.parametrize("level", LEVELS)
def test_the_cases_truncate(level: Any) -> None:
    """Guards the gradients above: with nothing to cut, both clip ranges would be the same case."""
    ratios = list(hand_units(hand_log_ratios(), level).values())
    assert min(ratios) < 0.8
    assert max(ratios) > 1.3


def simple_inputs() -> dict[str, Any]:
    policy = softmax_policy()
    return {
        "log_probs": log_probs_of(policy["parameters"], policy["features"], policy["actions"]),
        "weights": policy["old"].exp(),
        "advantages": policy["advantages"],
        "mask": torch.tensor(MASK),
        "aggregate": token_mean,
        "ref_log_probs": policy["ref"],
        "kl_coef": KL_COEF,
    }


def test_total_is_the_sum_of_its_parts_and_kl_is_reported_without_its_factor() -> None:
    inputs = simple_inputs()
    loss = replay_loss(**inputs)
    assert float(loss.total) == pytest.approx(float(loss.policy_gradient + KL_COEF * loss.kl), rel=1e-15)
    mask = inputs["mask"].bool()
    d = (inputs["ref_log_probs"] - inputs["log_probs"])[mask]
    assert float(loss.kl) == pytest.approx(float((d.exp() - d - 1).mean()), rel=1e-14)


def test_values_off_the_mask_are_ignored_even_nan() -> None:
    inputs = simple_inputs()
    clean = replay_loss(**inputs)
    off = ~inputs["mask"].bool()
    for name in ("log_probs", "weights", "advantages", "ref_log_probs"):
        inputs[name] = torch.where(off, math.nan, inputs[name])
    inputs["log_probs"].requires_grad_()
    dirty = replay_loss(**inputs)
    assert [part.item() for part in dirty] == [part.item() for part in clean]
    dirty.total.backward()
    assert (inputs["log_probs"].grad[off] == 0).all()
    assert torch.isfinite(inputs["log_probs"].grad).all()


@pytest.mark.parametrize("name", list(AGGREGATES))
def test_more_padding_changes_nothing(name: str) -> None:
    inputs = {**simple_inputs(), "aggregate": AGGREGATES[name]}
    wide = dict(inputs)
    for plane in ("log_probs", "weights", "advantages", "mask", "ref_log_probs"):
        wide[plane] = torch.nn.functional.pad(inputs[plane], (0, 3, 0, 2))
    expected = [float(part) for part in replay_loss(**inputs)]
    assert [float(part) for part in replay_loss(**wide)] == pytest.approx(expected, rel=1e-14)


def test_equal_rewards_carry_no_policy_gradient_but_kl() -> None:
    inputs = {**simple_inputs(), "advantages": torch.zeros(ROWS, WIDTH)}
    inputs["log_probs"].requires_grad_()
    loss = replay_loss(**inputs)
    (policy_gradient,) = torch.autograd.grad(loss.policy_gradient, inputs["log_probs"], retain_graph=True)
    (kl_gradient,) = torch.autograd.grad(loss.kl, inputs["log_probs"])
    assert not policy_gradient.any()
    assert kl_gradient.any()


def test_gradient_flows_through_the_log_probs_alone() -> None:
    inputs = simple_inputs()
    planes = ("log_probs", "weights", "advantages", "ref_log_probs")
    for name in planes:
        inputs[name] = inputs[name].clone().requires_grad_()
    replay_loss(**inputs).total.backward()
    assert [name for name in planes if inputs[name].grad is not None] == ["log_probs"]


def test_kl_coefficient_without_reference_is_refused() -> None:
    with pytest.raises(ValueError, match=r"replay loss is 0\.3 but ref_log_probs are missing"):
        replay_loss(**{**simple_inputs(), "ref_log_probs": None})


def test_k3_by_hand() -> None:
    log_probs = torch.zeros(2, dtype=torch.float64)
    ref = torch.tensor([0.0, math.log(2)], dtype=torch.float64)
    assert k3(log_probs, ref).tolist() == pytest.approx([0.0, 1 - math.log(2)], abs=1e-15)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [(token_mean, 10 / 4), (seq_mean_token_sum, 10 / 2), (seq_mean_token_mean, (2 + 4) / 2)],
)
def test_aggregates_by_hand(aggregate: Callable[[Tensor, Tensor], Tensor], expected: float) -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 50.0, 50.0], [50.0, 50.0, 50.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    assert float(aggregate(values, mask)) == expected
    assert float(aggregate(values, mask.bool())) == expected


def test_loss_keeps_the_precision_of_the_log_probs() -> None:
    weighed = torch.ones(1, 2, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        log_probs = torch.full((1, 2), -1.0, dtype=dtype)
        ones = torch.ones(1, 2, dtype=dtype)
        assert replay_loss(log_probs, weighed, ones, ones, token_mean).total.dtype == dtype
