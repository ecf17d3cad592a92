"""Weights and loss of a replay update: by hand, against a closed form in float64, and by enumeration."""

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recipe.rerule.replay import ImportanceConfig, log_ratios, low_var_kl, replay_loss, token_mean, weigh
from recipe.rerule.replay.loss import ImportanceStats, importance_ratios
from tests.replay import reference

LEVELS: list[Any] = ["token", "sequence", "sequence_sum"]
CLIPS: dict[str, dict[str, Any]] = {
    "clip": {"clip_low": 0.8, "clip_high": 1.3},
    "none": {"clip_low": 0.0, "clip_high": math.inf},
    "region": {"trust_region": True},
}
ONE = torch.ones(1, 1)


def importance(level: Any, clip: str, normalize: bool) -> ImportanceConfig:
    return ImportanceConfig(level=level, normalize=normalize, **CLIPS[clip])


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch(rows: int, width: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random log-probs, old log-probs (close and far), and masks with holes and at least one valid token."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, width)
    log_probs = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    old = log_probs + 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[0, 0] = True
    return log_probs, old, mask


def weigh_shards(
    log_ratio: Tensor, mask: Tensor, config: ImportanceConfig, split: list[list[int]], advantages: Tensor
) -> tuple[list[Tensor], dict[str, float]]:
    """`weigh` on each shard, with the statistics of all of them added up."""
    parts: list[ImportanceStats] = []

    def note(own: ImportanceStats) -> ImportanceStats:
        parts.append(own)
        return own

    for rows in split:
        weigh(log_ratio[rows], mask[rows], config, note, advantages[rows])
    assert len(parts) == len(split)  # asked for once
    total = sum(parts, start=ImportanceStats())
    found = [
        weigh(log_ratio[rows], mask[rows], config, lambda own: total, advantages[rows]) for rows in split
    ]
    return [own for own, _ in found], found[0][1]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_log_ratios_off_the_mask_are_0_whatever_stands_there(poison: float) -> None:
    log_probs, old, mask = batch(4, 5, seed=0)
    dirty = log_ratios(torch.where(mask, log_probs, poison), torch.where(mask, old, poison), mask)
    assert (dirty[~mask] == 0).all()
    assert torch.equal(dirty[mask], (log_probs - old)[mask])


def test_log_ratios_are_the_difference_in_float64() -> None:
    log_ratio = log_ratios(torch.tensor([[1e-9]]), torch.tensor([[1.0]]), ONE)
    assert log_ratio.dtype == torch.float64
    assert float(log_ratio) == float(torch.tensor(1e-9)) - 1.0  # float32 would round it to -1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("difference", "limited"), [(1000.0, 20.0), (-1000.0, -20.0), (-math.inf, -20.0)])
def test_huge_log_ratios_stay_finite(level: Any, difference: float, limited: float) -> None:
    log_ratio = log_ratios(torch.tensor([[difference]]), torch.zeros(1, 1), ONE)
    assert float(importance_ratios(log_ratio, ONE, level)) == math.exp(limited)
    _, metrics = weigh(log_ratio, ONE, ImportanceConfig(level=level))
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["replay/kl_old_current"] == pytest.approx(math.exp(limited) - 1 - limited, rel=1e-14)


def test_the_limit_is_on_the_sum_at_level_sequence_sum() -> None:
    log_ratio, mask = float64(25, -24)[None], torch.ones(1, 2)
    assert float(importance_ratios(log_ratio, mask, "sequence_sum")) == math.e


def test_metrics_and_weights_by_hand() -> None:
    log_ratio = float64(0.5, 1.0, 1.0, 2.0, 1.0, 1.0).log().reshape(2, 3)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    normalised, metrics = weigh(log_ratio, mask, ImportanceConfig())
    assert metrics == pytest.approx(
        {
            "replay/ratio_mean": 3.5 / 3,
            "replay/ratio_max": 2.0,
            "replay/ratio_second_moment": (0.25 + 1 + 4) / 3,
            "replay/clipped_low": 1 / 3,
            "replay/clipped_high": 1 / 3,
            "replay/effective_sample_size": 3.1**2 / (3 * (0.64 + 1 + 1.69)),
            "replay/kl_old_current": ((0.5 - 1 + math.log(2)) + 0 + (2 - 1 - math.log(2))) / 3,
        },
        rel=1e-14,
    )
    clipped = float64(0.8, 1.0, 0.0, 1.3, 0.0, 0.0).reshape(2, 3)
    torch.testing.assert_close(normalised, clipped * 3 / 3.1, rtol=1e-14, atol=0)
    plain, _ = weigh(log_ratio, mask, ImportanceConfig(normalize=False))
    torch.testing.assert_close(plain, clipped, rtol=1e-14, atol=0)


def test_in_the_trust_region_a_token_is_pushed_no_further() -> None:
    """Ratios .5 and 2, and the bounds themselves, each with an advantage of both signs and of none."""
    ratios = float64(*[0.5] * 3, *[2.0] * 3, 0.8, 1.3).reshape(2, 4)
    advantages = float64(1, -1, 0, 1, -1, 0, -1, 1).reshape(2, 4)
    config = ImportanceConfig(normalize=False, trust_region=True)
    mask = torch.ones(2, 4)
    found, metrics = weigh(ratios.log(), mask, config, advantages=advantages)
    assert found.flatten().tolist() == pytest.approx([0.8, 0, 0.8, 0, 1.3, 1.3, 0.8, 1.3])
    mean = (3 * 0.8 + 3 * 1.3 + 0.8 + 1.3) / 8  # of all tokens
    scaled = weigh(ratios.log(), mask, ImportanceConfig(trust_region=True), advantages=advantages)[0]
    torch.testing.assert_close(scaled, found / mean)
    assert metrics == weigh(ratios.log(), mask, ImportanceConfig())[1]
    with pytest.raises(ValueError, match="trust_region is true, but there are no advantages"):
        weigh(ratios.log(), mask, config)


@pytest.mark.parametrize("level", ["sequence", "sequence_sum"])
def test_sequence_ratios_count_each_row_once_but_the_kl_counts_tokens(level: Any) -> None:
    log_ratio = float64(0.1, 0.2, 0.3, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0).reshape(3, 3)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    metrics = weigh(log_ratio, mask, ImportanceConfig(level=level))[1]
    first = math.exp(0.2 if level == "sequence" else 0.6)
    assert metrics["replay/ratio_mean"] == pytest.approx((first + math.exp(-2)) / 2, rel=1e-14)
    kl = sum(math.exp(value) - 1 - value for value in (0.1, 0.2, 0.3, -2.0)) / 4
    assert metrics["replay/kl_old_current"] == pytest.approx(kl, rel=1e-13)


def kl_of(log_ratio: float) -> float:
    return weigh(float64(log_ratio)[None], ONE, ImportanceConfig())[1]["replay/kl_old_current"]


def test_the_kl_is_that_of_old_to_current() -> None:
    """Its mean under pi_old, exact over all actions, is KL(pi_old || pi_theta), not the reverse."""
    pairs = list(zip([0.5, 0.3, 0.2], [0.2, 0.7, 0.1], strict=True))
    exact = sum(old * math.log(old / now) for old, now in pairs)
    mean = sum(old * kl_of(math.log(now / old)) for old, now in pairs)
    assert mean == pytest.approx(exact, rel=1e-14)


def test_the_kl_of_a_policy_that_hardly_moved_keeps_its_digits() -> None:
    """exp(l) - 1 - l is l^2/2 + l^3/6 for small l; its terms cancel to nothing when just added up."""
    assert kl_of(1e-7) == pytest.approx(5e-15, rel=1e-6, abs=0)


def test_ratios_on_a_bound_are_not_counted_as_clipped() -> None:
    units = float64(0.8, 1.3)
    stats = ImportanceStats.of(units, units.log()[None], torch.ones(1, 2), ImportanceConfig())
    assert (stats.clipped_low, stats.clipped_high) == (0, 0)


def test_the_effective_sample_size_does_not_exceed_1_by_rounding() -> None:
    rounded_up = math.nextafter(3.0, 4.0)
    stats = ImportanceStats(count=3.0, tokens=3.0, sum_weight=rounded_up, sum_squared_weight=3.0)
    assert stats.metrics()["replay/effective_sample_size"] == 1.0


@pytest.mark.parametrize("level", LEVELS)
def test_no_valid_token_has_no_weight_and_no_metrics(level: Any) -> None:
    nothing = torch.zeros(2, 3, dtype=torch.float64)
    w, metrics = weigh(nothing, nothing, ImportanceConfig(level=level))
    assert torch.equal(w, nothing)
    assert metrics == {}


@settings(deadline=None)
@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    owner=st.lists(st.integers(0, 3), min_size=9, max_size=9),
    level=st.sampled_from(LEVELS),
    clip=st.sampled_from(list(CLIPS)),
    normalize=st.booleans(),
)
def test_weights_and_metrics_do_not_depend_on_how_rows_are_split(
    rows: int, width: int, seed: int, owner: list[int], level: Any, clip: str, normalize: bool
) -> None:
    config, (log_probs, old, mask) = importance(level, clip, normalize), batch(rows, width, seed)
    log_ratio = log_ratios(log_probs, old, mask)
    shards = [[i for i in range(rows) if owner[i] == rank] for rank in range(4)]  # some may be empty
    advantages = batch(rows, width, seed + 1)[0] + 1.5  # of both signs
    whole, expected = weigh(log_ratio, mask, config, advantages=advantages)
    parts, metrics = weigh_shards(log_ratio, mask, config, shards, advantages)
    for shard, part in zip(shards, parts, strict=True):
        torch.testing.assert_close(part, whole[shard], rtol=1e-12, atol=0)
    assert metrics == pytest.approx(expected, rel=1e-12)
    assert 0 < metrics["replay/effective_sample_size"] <= 1


def test_statistics_travel_as_tensors_to_be_reduced() -> None:
    parts: list[ImportanceStats] = []
    for seed in (6, 7):
        log_probs, old, mask = batch(3, 4, seed)
        log_ratio = log_ratios(log_probs, old, mask)
        units = importance_ratios(log_ratio, mask, "token")
        parts.append(ImportanceStats.of(units, log_ratio, mask, ImportanceConfig()))
    (sums, maximum), (other_sums, other_maximum) = (part.as_tensors() for part in parts)
    assert sums.dtype == maximum.dtype == torch.float64
    reduced = ImportanceStats.from_tensors(sums + other_sums, torch.maximum(maximum, other_maximum))
    assert reduced == parts[0] + parts[1]
    assert reduced.max_ratio == max(part.max_ratio for part in parts)
    assert parts[0] + ImportanceStats() == parts[0]


# ---- the loss against a closed form ----

ROWS, WIDTH, FEATURES, VOCABULARY = 5, 4, 3, 6
KL_COEF = 0.3
# The last row has no valid token; the first has a hole where a tool has spoken.
MASK = [[1, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
LENGTHS = [sum(marks) for marks in MASK if any(marks)]
VALID = [(i, t) for i in range(ROWS) for t in range(WIDTH) if MASK[i][t]]
# Rows of each micro-batch or rank, unequal and out of order too.
SPLITS = {
    "whole": [[0, 1, 2, 3, 4]],
    "single rows": [[0], [1], [2], [3], [4]],
    "unequal": [[3, 0], [4, 2, 1]],
}
AGGREGATES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
CASES = list(itertools.product(LEVELS, CLIPS, [True, False], [True, False], AGGREGATES))


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
    current = log_probs_of(policy["parameters"], policy)
    return policy | {"old": current + 0.5 * normal(ROWS, WIDTH), "ref": current + 0.5 * normal(ROWS, WIDTH)}


def log_probs_of(parameters: Tensor, policy: dict[str, Tensor]) -> Tensor:
    return (policy["features"] @ parameters).log_softmax(-1).gather(-1, policy["actions"][..., None])[..., 0]


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


def hand_log_ratios() -> reference.Rows:
    policy, probabilities = softmax_policy(), hand_probabilities()
    rows: reference.Rows = [[] for _ in LENGTHS]
    for i, t in VALID:
        current = math.log(probabilities[i, t][int(policy["actions"][i, t])])
        rows[i].append(current - float(policy["old"][i, t]))
    return rows


def hand_loss_and_gradient(config: ImportanceConfig, aggregate: str, with_kl: bool) -> tuple[float, Tensor]:
    """The closed form, one token at a time: d log pi(a) / d W[f, v] = x[f] ([v = a] - pi(v))."""
    policy, probabilities = softmax_policy(), hand_probabilities()
    ratios, advantages = hand_log_ratios(), policy["advantages"]
    of_rows = [[float(advantages[i, 0])] * length for i, length in enumerate(LENGTHS)]
    rho = dict(zip(VALID, itertools.chain(*reference.weights(ratios, config, of_rows)), strict=True))
    loss, gradient = 0.0, torch.zeros(FEATURES, VOCABULARY, dtype=torch.float64)
    for i, t in VALID:
        action, share = int(policy["actions"][i, t]), reference.share(aggregate, LENGTHS, i)
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


@pytest.mark.parametrize(("level", "clip", "normalize", "with_kl", "aggregate"), CASES)
def test_the_gradient_is_the_closed_form(
    level: Any, clip: str, normalize: bool, with_kl: bool, aggregate: str
) -> None:
    """However the rows are split."""
    config, policy, mask = importance(level, clip, normalize), softmax_policy(), torch.tensor(MASK)
    expected_loss, expected = hand_loss_and_gradient(config, aggregate, with_kl)
    for name, split in SPLITS.items():
        parameters = policy["parameters"].clone().requires_grad_()
        log_probs = log_probs_of(parameters, policy)
        ratios = log_ratios(log_probs, policy["old"], mask)
        parts, _ = weigh_shards(ratios, mask, config, split, policy["advantages"])
        aggregator, losses = functools.partial(shard_aggregate, aggregate), []
        for rows, w in zip(split, parts, strict=True):
            extra = {"ref_log_probs": policy["ref"][rows], "kl_coef": KL_COEF} if with_kl else {}
            given = (log_probs[rows], w, policy["advantages"][rows], mask[rows], aggregator)
            losses.append(replay_loss(*given, **extra).total)
        total = torch.stack(losses).sum()
        total.backward()
        assert total.item() == pytest.approx(expected_loss, rel=1e-10), name
        assert parameters.grad is not None
        assert float((parameters.grad - expected).norm() / expected.norm()) < 1e-10, name


@pytest.mark.parametrize("level", LEVELS)
def test_the_cases_truncate(level: Any) -> None:
    """Guards the gradients above: with nothing to cut, both clip ranges would be the same case."""
    ratios = list(itertools.chain(*reference.ratios(hand_log_ratios(), level)))
    assert min(ratios) < 0.8
    assert max(ratios) > 1.3


PLANES = ("log_probs", "weights", "advantages", "ref_log_probs")


def simple_inputs() -> dict[str, Any]:
    policy = softmax_policy()
    planes = (
        log_probs_of(policy["parameters"], policy),
        policy["old"].exp(),
        policy["advantages"],
        policy["ref"],
    )
    others = {"mask": torch.tensor(MASK), "aggregate": token_mean, "kl_coef": KL_COEF}
    return {**{name: plane.clone() for name, plane in zip(PLANES, planes, strict=True)}, **others}


def test_the_total_is_the_sum_of_its_parts_and_the_kl_is_reported_without_its_factor() -> None:
    inputs = simple_inputs()
    loss = replay_loss(**inputs)
    assert float(loss.total) == pytest.approx(float(loss.policy_gradient + KL_COEF * loss.kl), rel=1e-15)
    d = (inputs["ref_log_probs"] - inputs["log_probs"])[inputs["mask"].bool()]
    assert float(loss.kl) == pytest.approx(float((d.exp() - d - 1).mean()), rel=1e-14)


def test_the_loss_ignores_what_is_off_the_mask_even_nan() -> None:
    inputs = simple_inputs()
    clean, off = replay_loss(**inputs), ~inputs["mask"].bool()
    for name in PLANES:
        inputs[name] = torch.where(off, math.nan, inputs[name])
    inputs["log_probs"].requires_grad_()
    dirty = replay_loss(**inputs)
    assert [part.item() for part in dirty] == [part.item() for part in clean]
    dirty.total.backward()
    assert (inputs["log_probs"].grad[off] == 0).all()
    assert torch.isfinite(inputs["log_probs"].grad).all()


def test_the_gradient_flows_through_the_log_probs_alone() -> None:
    inputs = simple_inputs()
    for name in PLANES:
        inputs[name].requires_grad_()
    replay_loss(**inputs).total.backward()
    assert [name for name in PLANES if inputs[name].grad is not None] == ["log_probs"]


def test_a_kl_coefficient_without_reference_is_refused() -> None:
    with pytest.raises(ValueError, match=r"replay loss is 0\.3 but ref_log_probs are missing"):
        replay_loss(**{**simple_inputs(), "ref_log_probs": None})


def test_the_bounded_kl_and_the_mean_over_tokens_by_hand() -> None:
    ref = float64(0.0, math.log(2), 9.0)
    assert low_var_kl(torch.zeros_like(ref), ref).tolist() == pytest.approx(
        [0, 1 - math.log(2), 10], abs=1e-15
    )
    far = torch.tensor([-100.0, -1.0], requires_grad=True)
    low_var_kl(far, torch.tensor([-1.0, -2.0])).sum().backward()
    assert far.grad.tolist() == pytest.approx([0, 1 - math.exp(-1)])  # 1 - exp(d); none above the bound
    values, mask = torch.tensor([[1.0, 2.0, 3.0], [4.0, 50.0, 50.0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert float(token_mean(values, mask)) == float(token_mean(values, mask.bool())) == 10 / 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_keeps_the_precision_of_the_log_probs(dtype: torch.dtype) -> None:
    log_probs, ones = torch.full((1, 2), -1.0, dtype=dtype), torch.ones(1, 2, dtype=dtype)
    loss = replay_loss(log_probs, ones.double(), ones, ones, token_mean)
    assert loss.total.dtype == dtype
    assert [float(part) for part in loss] == [1.0, 1.0, 0.0]


# ---- the off-policy identity, by enumeration ----

LENGTH, END = 3, 2
RESPONSES = [
    (*body, END)[:LENGTH]
    for length in range(LENGTH + 1)
    for body in itertools.product(range(END), repeat=length)
]
"""All responses of at most LENGTH tokens: a response ends with END or at the limit."""


def log_probs_of_responses(logits: Tensor) -> Tensor:
    """[responses, LENGTH] of a policy with logits [place, token before, token]."""
    rows = []
    for response in RESPONSES:
        before = (END, *response)
        places = [
            torch.log_softmax(logits[place, before[place]], -1)[token] for place, token in enumerate(response)
        ]
        rows.append(torch.stack([*places, *[logits.new_zeros(())] * (LENGTH - len(response))]))
    return torch.stack(rows)


@pytest.mark.parametrize(("level", "holds"), [("sequence_sum", True), ("token", False)])
def test_the_gradient_under_the_old_policy_is_that_under_the_new_one(level: Any, holds: bool) -> None:
    """Without clipping and normalisation E_old[rho A grad log pi] = E_theta[A grad log pi], where rho is the
    ratio of whole responses (the paper's equation of J_off)."""
    torch.manual_seed(7)
    old, logits = (torch.randn((LENGTH, END + 1, END + 1), dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    advantages = torch.randn(len(RESPONSES), 1, dtype=torch.float64).expand(-1, LENGTH)
    mask = torch.tensor([[place < len(response) for place in range(LENGTH)] for response in RESPONSES])
    behaviour, current = log_probs_of_responses(old), log_probs_of_responses(logits)
    chance = behaviour.sum(-1).exp()
    assert float(chance.sum()) == pytest.approx(1, abs=1e-15)

    on_policy = current.detach().sum(-1).exp() * advantages[:, 0] * current.sum(-1)
    (expected,) = torch.autograd.grad(-on_policy.sum(), logits, retain_graph=True)

    rho, _ = weigh(log_ratios(current, behaviour, mask), mask, importance(level, "none", normalize=False))
    loss = replay_loss(current, rho, advantages, mask, lambda values, _: (chance[:, None] * values).sum())
    (found,) = torch.autograd.grad(loss.total, logits)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12) == holds
