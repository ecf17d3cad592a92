"""The replay loss in verl's form, and its metrics, without a cluster; through the worker: tests/e2e."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.padding import no_padding_2_padding

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.training.worker import (
    ReplayUpdate,
    _reduced,
    _replay_metrics,
    is_one_micro_batch,
    micro_batch_size,
)


@pytest.mark.parametrize(
    ("rows", "limit", "size"), [(128, 8, 8), (40, 16, 10), (7, 4, 1), (6, 99, 6), (12, None, None)]
)
def test_micro_batches_are_equal_and_as_large_as_allowed(
    rows: int, limit: int | None, size: int | None
) -> None:
    assert micro_batch_size(rows, limit) == size


@pytest.mark.parametrize(
    ("settings", "one"),
    [
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 14}, True),
        ({"use_dynamic_bsz": True, "max_token_len_per_gpu": 13}, False),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 4}, True),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 9}, True),
        ({"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 3}, False),
    ],
)
def test_one_micro_batch_is_told_from_several(settings: dict[str, Any], one: bool) -> None:
    """4 rows on each of two ranks: 12 tokens on this one, 14 on the other."""
    _, data = micro_batch(slice(0, 4), tokens=7)
    tu.assign_non_tensor_data(data, "global_token_num", [3, 3, 3, 3, 2, 4, 3, 5])
    assert is_one_micro_batch(SimpleNamespace(**settings), data, ranks=2) == one


def test_a_batch_weighed_as_one_must_not_be_split() -> None:
    """The second micro-batch would be normalised by its own weights alone."""
    update = ReplayUpdate(ReplayConfig(), actor_config(), group=None)
    update.loss(*not_weighed(slice(0, 2)))
    assert update.ratio_metrics is not None
    assert update.ratio_metrics["replay/ratio_mean"] == pytest.approx(math.exp(0.1))
    with pytest.raises(RuntimeError, match="was split into micro-batches"):
        update.loss(*not_weighed(slice(2, 4)))


def test_a_batch_without_weights_is_weighed_by_its_own_log_probs() -> None:
    """All ratios are exp(0.1), within the clip range: normalised, every weight is 1."""
    output, data = not_weighed(slice(0, 4))
    update = ReplayUpdate(ReplayConfig(), actor_config(), group=None)
    loss, _ = update.loss(output, data)
    assert data["replay_weights"].tolist() == [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    assert "replay/seconds/weigh" in update.seconds
    weighed, same = micro_batch(slice(0, 4), tokens=7)
    same["replay_weights"] = data["replay_weights"]
    expected, _ = ReplayUpdate(ReplayConfig(), actor_config(), group=None).loss(weighed, same)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)


def not_weighed(rows: slice) -> tuple[dict[str, torch.Tensor], TensorDict]:
    """As `micro_batch`, before it is weighed; every log ratio is 0.1."""
    output, data = micro_batch(rows, tokens=7)
    del data["replay_weights"]
    log_probs = no_padding_2_padding(output["log_probs"], data)
    data["old_log_probs"] = log_probs.detach().float() - 0.1
    return output, data


def actor_config(loss_agg_mode: str = "token-mean") -> FSDPActorConfig:
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=2,
        ppo_mini_batch_size=2,
        ppo_micro_batch_size_per_gpu=2,
        loss_agg_mode=loss_agg_mode,
        use_kl_loss=True,
        kl_loss_coef=0.5,
        kl_loss_type="low_var_kl",
    )


def micro_batch(rows: slice, tokens: int, dp_size: int = 1) -> tuple[dict[str, torch.Tensor], TensorDict]:
    """Rows of a batch of 4 with 1-token prompts and 2-token responses; row 3 has 1 response token."""
    generator = torch.Generator().manual_seed(1)

    def random() -> torch.Tensor:
        return torch.randn(4, 2, generator=generator, dtype=torch.float64)

    log_probs, weights, advantages, ref = -random().abs(), random().abs(), random(), -random().abs()
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]])
    data = TensorDict(
        {
            "prompts": torch.ones(4, 1, dtype=torch.long),
            "responses": torch.ones(4, 2, dtype=torch.long),
            "attention_mask": torch.cat([torch.ones(4, 1, dtype=torch.long), mask], dim=1),
            "response_mask": mask,
            "replay_weights": weights,
            "advantages": advantages,
            "ref_log_prob": ref,
        },
        batch_size=[4],
    )[rows].clone()
    tu.assign_non_tensor(data, dp_size=dp_size, batch_num_tokens=tokens, global_batch_size=4)
    flat = []
    for row in range(4)[rows]:
        length = int(mask[row].sum())
        # verl's model output: one value a position, the response's shifted left by one.
        flat.append(torch.cat([log_probs[row, :length], torch.zeros(1, dtype=torch.float64)]))
    output = torch.nested.as_nested_tensor(flat, layout=torch.jagged).requires_grad_()
    return {"log_probs": output}, data


def engine_loss(
    config: FSDPActorConfig, use_kl: bool, output: dict[str, torch.Tensor], data: TensorDict
) -> tuple[torch.Tensor, dict[str, Metric]]:
    """The loss as verl's engine calls it."""
    return ReplayUpdate(ReplayConfig(use_kl_loss=use_kl), config, group=None).loss(output, data)


def by_hand(tokens: int) -> tuple[float, float]:
    """Policy-gradient and KL part of the whole batch under token-mean, by a loop over the tokens."""
    output, data = micro_batch(slice(0, 4), tokens)
    policy_gradient = kl = 0.0
    for row, values in enumerate(output["log_probs"].unbind()):
        for column, log_prob in enumerate(values[:-1].tolist()):
            weight, advantage, ref = (
                float(data[name][row, column]) for name in ("replay_weights", "advantages", "ref_log_prob")
            )
            policy_gradient -= weight * advantage * log_prob / tokens
            kl += (math.exp(ref - log_prob) - (ref - log_prob) - 1) / tokens
    return policy_gradient, kl


def test_the_loss_is_the_weighted_policy_gradient_plus_kl() -> None:
    loss, metrics = engine_loss(actor_config(), True, *micro_batch(slice(0, 4), tokens=7))
    policy_gradient, kl = by_hand(tokens=7)
    assert float(loss) == pytest.approx(policy_gradient + 0.5 * kl, rel=1e-12)
    assert metrics["replay/pg_loss"].aggregate() == pytest.approx(policy_gradient, rel=1e-12)
    assert metrics["replay/kl_loss"].aggregate() == pytest.approx(kl, rel=1e-12)
    output, data = micro_batch(slice(0, 4), tokens=7)
    del data["ref_log_prob"]  # which is not read without KL
    loss, _ = engine_loss(actor_config(), False, output, data)
    assert float(loss) == pytest.approx(policy_gradient, rel=1e-12)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_micro_batches_add_up(mode: str) -> None:
    whole, _ = engine_loss(actor_config(mode), True, *micro_batch(slice(0, 4), tokens=7))
    parts = [
        engine_loss(actor_config(mode), True, *micro_batch(rows, tokens=7))[0]
        for rows in (slice(0, 1), slice(1, 4))
    ]
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-12)


def test_the_signal_norm_is_the_derivative_by_the_log_probs_on_any_number_of_ranks() -> None:
    """sqrt(sum over tokens of (w A / tokens)^2); two ranks of half the rows give the same."""
    _, data = micro_batch(slice(0, 4), tokens=7)
    factor = (data["replay_weights"] * data["advantages"] * data["response_mask"]) / 7
    expected = float(factor.norm())
    one = engine_loss(actor_config(), True, *micro_batch(slice(0, 4), tokens=7))[1]
    assert signal(one) == pytest.approx(expected, rel=1e-12)
    ranks = [
        engine_loss(actor_config(), True, *micro_batch(rows, tokens=7, dp_size=2))[1]
        for rows in (slice(0, 2), slice(2, 4))
    ]
    squared = Metric.aggregate_dp([metrics["replay/pg_signal_squared"] for metrics in ranks])
    assert squared**0.5 == pytest.approx(expected, rel=1e-12)


def signal(metrics: dict[str, Metric]) -> float:
    output = {**metrics, "grad_norm": 3.0}
    return _replay_metrics(output, use_kl=True)["replay/pg_signal_norm"]


def summed(*values: float) -> Metric:
    """What verl makes of one metric over the micro-batches of a rank."""
    metric = Metric(AggregationType.SUM)
    metric.extend(list(values))
    return metric


@pytest.mark.parametrize(
    ("value", "reduced"),
    [
        (2.5, 2.5),
        ([1.0, 2.0], 1.5),
        ([[1.0, 2.0], [6.0]], 3.0),
        (summed(1.0, 2.0), 3.0),
        ([summed(1.0, 2.0), summed(3.0, 4.0)], 5.0),
    ],
)
def test_metrics_of_ranks_and_micro_batches_are_reduced(value: Any, reduced: float) -> None:
    assert _reduced(value) == reduced
