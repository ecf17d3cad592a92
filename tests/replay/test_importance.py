from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recipe.rerule.replay import ImportanceConfig
from recipe.rerule.replay import weigh as weigh_whole
from recipe.rerule.replay.loss import ImportanceStats, importance_ratios, log_ratios, weights

LEVELS = ["token", "sequence", "sequence_sum"]
CLIPS: dict[str, dict[str, Any]] = {"clip": {}, "none": {"clip_low": 0.0, "clip_high": math.inf}}


def batch(rows: int, width: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random log-probs, old log-probs (close and far), and masks with holes and at least one valid token."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, width)
    log_probs = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    old = log_probs + 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[0, 0] = True
    return log_probs, old, mask


def moments_of(log_ratio: Tensor, mask: Tensor, config: ImportanceConfig) -> ImportanceStats:
    units = importance_ratios(log_ratio, mask, config.level)
    return ImportanceStats.of(units, log_ratio, mask, config)


def weigh(log_probs: Tensor, old: Tensor, mask: Tensor, config: ImportanceConfig) -> Tensor:
    log_ratio = log_ratios(log_probs, old, mask)
    units = importance_ratios(log_ratio, mask, config.level)
    return weights(units, mask, config, ImportanceStats.of(units, log_ratio, mask, config))


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_ratio_by_hand_at_every_level() -> None:
    log_probs = torch.tensor([[2.0, 99.0, 8.0], [99.0, 99.0, 99.0], [0.5, 99.0, 99.0]]).log()
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 0, 0]])
    log_ratio = log_ratios(log_probs, torch.zeros(3, 3), mask)
    expected: dict[Any, list[float]] = {
        "token": [2, 8, 0.5],
        "sequence": [4, 0.5],  # sqrt(2 * 8)
        "sequence_sum": [16, 0.5],
    }
    for level, values in expected.items():
        torch.testing.assert_close(
            importance_ratios(log_ratio, mask, level), float64(*values), rtol=1e-6, atol=0
        )


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_values_off_the_mask_are_ignored_even_nan(poison: float) -> None:
    log_probs, old, mask = batch(4, 5, seed=0)
    clean = log_ratios(log_probs, old, mask)
    dirty = log_ratios(torch.where(mask, log_probs, poison), torch.where(mask, old, poison), mask)
    assert torch.equal(dirty, clean)
    assert (dirty[~mask] == 0).all()
    assert torch.equal(dirty[mask], (log_probs - old)[mask])


def test_log_ratios_are_the_difference_in_float64() -> None:
    log_ratio = log_ratios(torch.tensor([[1e-9]]), torch.tensor([[1.0]]), torch.ones(1, 1))
    assert log_ratio.dtype == torch.float64
    assert float(log_ratio) == float(torch.tensor(1e-9)) - 1.0  # float32 would round it to -1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("difference", "limited"), [(1000.0, 20.0), (-1000.0, -20.0), (-math.inf, -20.0)])
def test_huge_log_ratios_stay_finite(level: Any, difference: float, limited: float) -> None:
    one = torch.ones(1, 1)
    log_ratio = log_ratios(torch.tensor([[difference]]), torch.zeros(1, 1), one)
    assert float(importance_ratios(log_ratio, one, level)) == math.exp(limited)
    metrics = moments_of(log_ratio, one, ImportanceConfig(level=level)).metrics()
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["replay/kl_old_current"] == pytest.approx(math.exp(limited) - 1 - limited, rel=1e-14)


def test_the_limit_is_on_the_sum_at_level_sequence_sum() -> None:
    log_ratio, mask = float64(25, -24)[None], torch.ones(1, 2)
    assert float(importance_ratios(log_ratio, mask, "sequence_sum")) == math.e


def test_moments_and_weights_by_hand() -> None:
    log_ratio = float64(0.5, 1.0, 1.0, 2.0, 1.0, 1.0).log().reshape(2, 3)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    units, config = importance_ratios(log_ratio, mask, "token"), ImportanceConfig()
    moments = ImportanceStats.of(units, log_ratio, mask, config)
    assert moments.metrics() == pytest.approx(
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
    normalised = weights(units, mask, config, moments)
    torch.testing.assert_close(normalised, clipped * 3 / 3.1, rtol=1e-14, atol=0)
    plain = weights(units, mask, ImportanceConfig(normalize=False), moments)
    torch.testing.assert_close(plain, clipped, rtol=1e-14, atol=0)


@pytest.mark.parametrize("level", ["sequence", "sequence_sum"])
def test_sequence_weights_are_one_a_row_on_its_valid_tokens(level: Any) -> None:
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0]])
    units = float64(1.2, 0.9)
    config = ImportanceConfig(level=level, normalize=False, **CLIPS["none"])
    w = weights(units, mask, config, ImportanceStats())
    assert torch.equal(w, float64(1.2, 0, 1.2, 0, 0, 0, 0, 0.9, 0).reshape(3, 3))


@pytest.mark.parametrize("level", ["sequence", "sequence_sum"])
def test_sequence_moments_count_each_row_once_but_the_kl_counts_tokens(level: Any) -> None:
    log_ratio = float64(0.1, 0.2, 0.3, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0).reshape(3, 3)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    moments = moments_of(log_ratio, mask, ImportanceConfig(level=level))
    first = math.exp(0.2 if level == "sequence" else 0.6)
    assert (moments.count, moments.tokens) == (2, 4)
    assert moments.sum_ratio == pytest.approx(first + math.exp(-2), rel=1e-14)
    kl = sum(math.exp(value) - 1 - value for value in (0.1, 0.2, 0.3, -2.0)) / 4
    assert moments.metrics()["replay/kl_old_current"] == pytest.approx(kl, rel=1e-13)


def test_kl_is_that_of_old_to_current() -> None:
    """Its mean under pi_old, exact over all actions, is KL(pi_old || pi_theta), not the reverse."""
    old, now = [0.5, 0.3, 0.2], [0.2, 0.7, 0.1]
    exact = sum(p * math.log(p / q) for p, q in zip(old, now, strict=True))
    estimates = []
    for p, q in zip(old, now, strict=True):
        log_ratio, one = float64(math.log(q / p))[None], torch.ones(1, 1)
        estimates.append(moments_of(log_ratio, one, ImportanceConfig()).metrics()["replay/kl_old_current"])
    mean = sum(p * estimate for p, estimate in zip(old, estimates, strict=True))
    assert mean == pytest.approx(exact, rel=1e-14)


def test_kl_of_a_policy_that_hardly_moved_keeps_its_digits() -> None:
    """exp(l) - 1 - l is l^2/2 + l^3/6 for small l; its terms cancel to nothing when just added up."""
    log_ratio, one = float64(1e-7)[None], torch.ones(1, 1)
    kl = moments_of(log_ratio, one, ImportanceConfig()).metrics()["replay/kl_old_current"]
    assert kl == pytest.approx(5e-15, rel=1e-6, abs=0)


def test_ratios_on_a_bound_are_not_counted_as_clipped() -> None:
    units, mask = float64(0.8, 1.3), torch.ones(1, 2)
    moments = ImportanceStats.of(units, units.log()[None], mask, ImportanceConfig())
    assert (moments.clipped_low, moments.clipped_high) == (0, 0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clip", CLIPS)
def test_what_holds_of_weights_at_every_level(level: Any, clip: str) -> None:
    config = ImportanceConfig(level=level, **CLIPS[clip])
    log_probs, old, mask = batch(6, 7, seed=3)
    w = weigh(log_probs.requires_grad_(), old.requires_grad_(), mask, config)
    assert not w.requires_grad
    # Their mean over units is 1.
    units = [w[i][mask[i]] for i in range(6) if mask[i].any()]
    values = torch.cat(units) if level == "token" else torch.stack([row[0] for row in units])
    assert float(values.std()) > 0.01
    assert float(values.mean()) == pytest.approx(1.0, abs=1e-12)
    # More padding changes nothing.
    wide = [torch.nn.functional.pad(plane, (0, 6, 0, 3)) for plane in (log_probs, old, mask)]
    padded = weigh(*wide, config)
    torch.testing.assert_close(padded[:6, :7], w, rtol=1e-14, atol=0)
    assert float(padded.sum()) == pytest.approx(float(w.sum()), rel=1e-14)
    # The current policy has weight 1, normalised or not, and no unit has no weight.
    for normalize in (True, False):
        plain = ImportanceConfig(level=level, normalize=normalize, **CLIPS[clip])
        same = weigh(log_probs, log_probs.clone(), mask, plain)
        assert (same[mask] - 1).abs().max() < 1e-12
        assert (same[~mask] == 0).all()
    nothing = torch.zeros(2, 3, dtype=torch.float64)
    assert moments_of(nothing, nothing, config) == ImportanceStats()
    assert ImportanceStats().metrics() == {}
    assert torch.equal(weigh(nothing, nothing, nothing, config), nothing)


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
def test_weights_and_moments_do_not_depend_on_how_rows_are_split(
    rows: int, width: int, seed: int, owner: list[int], level: Any, clip: str, normalize: bool
) -> None:
    log_probs, old, mask = batch(rows, width, seed)
    config = ImportanceConfig(level=level, normalize=normalize, **CLIPS[clip])
    whole = weigh(log_probs, old, mask, config)
    shards = [[i for i in range(rows) if owner[i] == rank] for rank in range(4)]  # some may be empty
    shard_logs = [log_ratios(log_probs[s], old[s], mask[s]) for s in shards]
    shard_units = [importance_ratios(log, mask[s], level) for s, log in zip(shards, shard_logs, strict=True)]
    moments = ImportanceStats()
    for shard, log_ratio, units in zip(shards, shard_logs, shard_units, strict=True):
        moments = moments + ImportanceStats.of(units, log_ratio, mask[shard], config)
    for shard, units in zip(shards, shard_units, strict=True):
        part = weights(units, mask[shard], config, moments)
        torch.testing.assert_close(part, whole[shard], rtol=1e-12, atol=0)
    total = moments_of(log_ratios(log_probs, old, mask), mask, config)
    assert moments.metrics() == pytest.approx(total.metrics(), rel=1e-12)


def test_moments_travel_as_tensors_to_be_reduced() -> None:
    parts = []
    for seed in (6, 7):
        log_probs, old, mask = batch(3, 4, seed)
        parts.append(moments_of(log_ratios(log_probs, old, mask), mask, ImportanceConfig()))
    tensors = [part.as_tensors() for part in parts]
    assert all(sums.dtype == maximum.dtype == torch.float64 for sums, maximum in tensors)
    reduced = ImportanceStats.from_tensors(
        tensors[0][0] + tensors[1][0], torch.maximum(tensors[0][1], tensors[1][1])
    )
    assert reduced == parts[0] + parts[1]
    assert reduced.max_ratio == max(part.max_ratio for part in parts)
    assert parts[0] + ImportanceStats() == parts[0]


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), level=st.sampled_from(LEVELS), clip=st.sampled_from(list(CLIPS)))
def test_effective_sample_size_is_a_share(seed: int, level: Any, clip: str) -> None:
    log_probs, old, mask = batch(4, 5, seed)
    config = ImportanceConfig(level=level, **CLIPS[clip])
    metrics = moments_of(log_ratios(log_probs, old, mask), mask, config).metrics()
    assert 0 < metrics["replay/effective_sample_size"] <= 1


def test_effective_sample_size_does_not_exceed_1_by_rounding() -> None:
    rounded_up = math.nextafter(3.0, 4.0)
    moments = ImportanceStats(count=3.0, tokens=3.0, sum_weight=rounded_up, sum_squared_weight=3.0)
    assert moments.metrics()["replay/effective_sample_size"] == 1.0


def test_weigh_asks_for_the_total_of_all_shards_once() -> None:
    log_probs, old, mask = batch(3, 4, seed=8)
    log_ratio, other = log_ratios(log_probs, old, mask), ImportanceStats(count=2.0, sum_weight=9.0)
    asked = []

    def total(stats: ImportanceStats) -> ImportanceStats:
        asked.append(stats)
        return stats + other

    config = ImportanceConfig()
    alone, _ = weigh_whole(log_ratio, mask, config)
    found, metrics = weigh_whole(log_ratio, mask, config, total)
    (own,) = asked
    assert own == moments_of(log_ratio, mask, config)
    torch.testing.assert_close(found, alone * own.mean_weight / (own + other).mean_weight)
    assert metrics == (own + other).metrics()
