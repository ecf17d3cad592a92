"""The mixed batch and its loss without a cluster, against slopes worked out token by token in float64.

Through the worker: tests/e2e/test_mixed_replay.py.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding

from recipe.rerule.replay import ReplayConfig, RolloutGroup, pad_groups
from recipe.rerule.replay.mixed import Part
from recipe.rerule.training.mixed_batches import (
    MIXED,
    REPLAYED,
    FreshPrompts,
    Mixture,
    dealt,
    mixed_batch,
)
from recipe.rerule.training.mixed_update import MixedUpdate
from tests.replay.groups import make_group

KL = 0.5
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "token-sum"]
PAD = 7


def own_groups() -> list[RolloutGroup]:
    return [make_group(index, 5, rewards=(0.0, 1.0), advantages=(-1.0, 0.5)) for index in range(3)]


def stored_groups() -> list[RolloutGroup]:
    """Longer prompts and responses than the step's own."""
    lengths = [[4, 1], [5, 2]]
    return [
        make_group(
            10 + index, 2, lengths=lengths[index], prompt_length=4 + index, advantages=(1.5, -0.25 - index)
        )
        for index in range(2)
    ]


def sent(groups: list[RolloutGroup]) -> DataProto:
    """The step's rows as workers get them."""
    rows = pad_groups(groups, pad_token_id=PAD)
    del rows["rewards"]
    rows["returns"] = torch.zeros_like(rows["advantages"])  # no worker needs it
    return DataProto.from_dict(tensors=rows, meta_info={"temperature": 0.7, "global_token_num": [1]})


def joint(ranks: int = 1, kept: list[int] | None = None, **settings: Any) -> DataProto:
    rows = sent(own_groups())
    config = ReplayConfig(update="mixed", **settings)
    kept = list(range(len(rows))) if kept is None else kept
    return mixed_batch(rows, kept, stored_groups(), config, PAD, ranks)


def test_the_rows_of_a_mixed_batch_are_those_of_both_kinds() -> None:
    """Each row, without its padding, is that of its group; what verl derives of a row fits it."""
    batch = joint(kept=[0, 1, 4, 5])
    groups = [own_groups()[0], own_groups()[2], *stored_groups()]
    assert batch.batch[REPLAYED].tolist() == [False] * 4 + [True] * 4
    rows = [(group, row) for group in groups for row in range(2)]
    for number, (group, row) in enumerate(rows):
        start = int(group.lengths[:row].sum())
        response = slice(start, start + int(group.lengths[row]))
        of_row = {name: batch.batch[name][number] for name in batch.batch.keys()}  # noqa: SIM118
        attended, length = of_row["attention_mask"].bool(), int(group.lengths[row])
        ids = torch.cat([group.prompt_ids, group.response_ids[response]])
        assert of_row["input_ids"][attended].tolist() == ids.tolist()
        assert of_row["input_ids"][~attended].tolist() == [PAD] * int((~attended).sum())
        assert of_row["position_ids"][attended].tolist() == list(range(len(ids)))
        assert of_row["response_mask"].sum() == length
        for name, plane in (
            ("old_log_probs", group.old_log_probs),
            ("advantages", group.advantages),
            ("ref_log_prob", group.ref_log_probs),
        ):
            assert plane is not None
            assert of_row[name][:length].tolist() == plane[response].tolist()
            assert not of_row[name][length:].any()
    assert "returns" not in batch.batch
    mixture = batch.meta_info[MIXED]
    tokens = [sum(int(group.lengths.sum()) for group in part) for part in (groups[:2], groups[2:])]
    assert (mixture.fresh, mixture.replayed) == (Part(4, tokens[0]), Part(4, tokens[1]))
    assert batch.meta_info["global_token_num"] == batch.batch["attention_mask"].sum(-1).tolist()
    assert batch.meta_info["temperature"] == 0.7


def test_each_rank_gets_as_many_rows_of_each_kind() -> None:
    batch = joint(ranks=2)
    whole = joint(ranks=1)
    halves = batch.batch[REPLAYED].view(2, -1)
    assert halves.sum(dim=1).tolist() == [2, 2]
    assert dealt(6, 4, 2).tolist() == [0, 1, 2, 6, 7, 3, 4, 5, 8, 9]
    assert sorted(dealt(0, 4, 2).tolist()) == [0, 1, 2, 3]
    assert batch.batch["input_ids"].sum() == whole.batch["input_ids"].sum()


def test_rows_that_stored_groups_cannot_join_are_refused() -> None:
    rows = sent(own_groups())
    rows.non_tensor_batch["multi_modal_inputs"] = np.array([{}] * len(rows), dtype=object)
    with pytest.raises(ValueError, match="the rows of the step have multi_modal_inputs"):
        mixed_batch(rows, [0], stored_groups(), ReplayConfig(update="mixed"), PAD, 1)
    bare = [make_group(1, 2, with_ref=False)]
    with pytest.raises(ValueError, match="the stored rollouts lack ref_log_prob"):
        mixed_batch(sent(own_groups()), [0], bare, ReplayConfig(update="mixed"), PAD, 1)


def actor_config(mode: str) -> FSDPActorConfig:
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=2,
        ppo_mini_batch_size=2,
        ppo_micro_batch_size_per_gpu=2,
        loss_agg_mode=mode,
        use_kl_loss=True,
        kl_loss_coef=KL,
        kl_loss_type="low_var_kl",
        clip_ratio_low=0.2,
        clip_ratio_high=0.3,
    )


class Outcome:
    """The mixed loss over a batch's micro-batches, and its derivative by each token's log-prob."""

    def __init__(self, batch: DataProto, mode: str, micro_batches: list[list[int]], dp_size: int = 1) -> None:
        mixture = batch.meta_info[MIXED]
        self.data = left_right_2_no_padding(batch.to_tensordict())
        self.log_probs = made_log_probs(self.data)
        config = actor_config(mode)
        on_policy = functools.partial(ppo_loss, config=config)
        self.update = MixedUpdate(mixture, config, None, on_policy)
        if len(micro_batches) > 1:
            self._weigh_first()
        self.loss = 0.0
        self.metrics: list[dict[str, Any]] = []
        for rows in micro_batches:
            self._step(rows, mixture, dp_size)

    def _weigh_first(self) -> None:
        """What `weigh_first` does with the worker's pass."""
        padded = torch.zeros_like(self.data["old_log_probs"])
        for row, values in enumerate(self.log_probs):
            padded[row, : len(values)] = values.detach().float()
        self.update._weigh(self.data, padded)

    def _step(self, rows: list[int], mixture: Mixture, dp_size: int) -> None:
        data = tu.index_select_tensor_dict(self.data, torch.tensor(rows))
        tokens = mixture.fresh.tokens + mixture.replayed.tokens
        tu.assign_non_tensor(data, dp_size=dp_size, batch_num_tokens=tokens, global_batch_size=mixture.rows)
        outputs = []
        for row in rows:
            prompt = len(self.data["input_ids"][row]) - len(self.log_probs[row])
            ends = [torch.zeros(prompt - 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
            outputs.append(torch.cat([ends[0], self.log_probs[row], ends[1]]))
        output = {"log_probs": torch.nested.as_nested_tensor(outputs, layout=torch.jagged)}
        loss, metrics = self.update.loss(model_output=output, data=data)
        loss.backward()
        self.loss += float(loss.detach())
        self.metrics.append(metrics)

    @property
    def slopes(self) -> list[torch.Tensor]:
        return [row.grad for row in self.log_probs]


def made_log_probs(data: TensorDict) -> list[torch.Tensor]:
    """float64 leaves, a row each: the step's own rows are of the policy as it is, stored ones of another."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for row, length in enumerate(data["response_mask"].sum(-1).tolist()):
        moved = 0.4 * torch.randn(length, generator=generator, dtype=torch.float64)
        values = data["old_log_probs"][row, :length].double() + moved * data[REPLAYED][row]
        found.append(values.requires_grad_())
    return found


def expected_slopes(outcome: Outcome, mode: str, weight: float | None) -> list[torch.Tensor]:
    """Token by token from the formulae: w_part * share * (-ratio or rho~ * A + kl * (1 - exp(ref - now)))."""
    data, rows = outcome.data, range(len(outcome.log_probs))
    stored = data[REPLAYED].tolist()
    lengths = [len(values) for values in outcome.log_probs]
    config = outcome.update.importance
    ratios, slopes = {}, []
    for row in rows:
        old = data["old_log_probs"][row, : lengths[row]].double()
        ratios[row] = (outcome.log_probs[row].detach() - old).exp()
    clipped = {row: ratios[row].clamp(config.clip_low, config.clip_high) for row in rows if stored[row]}
    mean = torch.cat(list(clipped.values())).mean()
    for row in rows:
        kind = [other for other in rows if stored[other] == stored[row]]
        tokens = sum(lengths[other] for other in kind)
        share = {
            "token-mean": 1 / tokens,
            "seq-mean-token-sum": 1 / len(kind),
            "seq-mean-token-mean": 1 / (len(kind) * lengths[row]),
            "token-sum": 1.0,
        }[mode]
        if weight is not None:
            of_part = weight if stored[row] else 1 - weight
        else:
            sizes = {"token-mean": tokens / sum(lengths), "token-sum": 1.0}
            of_part = sizes.get(mode, len(kind) / len(lengths))
        advantages = data["advantages"][row, : lengths[row]].double()
        ref = data["ref_log_prob"][row, : lengths[row]].double()
        factor = clipped[row] / mean if stored[row] else ratios[row]
        slope = -factor * advantages + KL * (1 - (ref - outcome.log_probs[row].detach()).exp())
        slopes.append(of_part * share * slope)
    return slopes


@pytest.mark.parametrize("weight", [None, 0.5, 0.2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "micro_batches",
    [[list(range(10))], [[0, 6], [1, 2, 3, 7], [4, 5], [8, 9]]],
    ids=["one", "some of one kind"],
)
def test_the_derivative_is_that_of_both_losses_with_their_weights(
    mode: str, weight: float | None, micro_batches: list[list[int]]
) -> None:
    outcome = Outcome(joint(mixed_weight=weight), mode, micro_batches)
    wanted = expected_slopes(outcome, mode, weight)
    for found, slope in zip(outcome.slopes, wanted, strict=True):
        assert torch.allclose(found, slope, rtol=2e-6, atol=1e-9)


def test_stored_rows_of_the_policy_as_it_is_are_rows_of_the_step() -> None:
    """Ratios of 1, weight by share: the derivative of verl's own loss on the whole batch."""
    batch = joint()
    mixture = batch.meta_info[MIXED]
    outcome = Outcome(batch, "token-mean", [list(range(10))])
    data = outcome.data.copy()
    same = [row.detach().clone().requires_grad_() for row in outcome.log_probs]
    for row, values in enumerate(same):
        data["old_log_probs"][row, : len(values)] = values.detach().float()
    again = object.__new__(Outcome)
    again.data, again.log_probs, again.loss, again.metrics = data, same, 0.0, []
    config = actor_config("token-mean")
    on_policy = functools.partial(ppo_loss, config=config)
    again.update = MixedUpdate(mixture, config, None, on_policy)
    again._step(list(range(10)), mixture, 1)
    mixed_slopes = [row.grad.clone() for row in same]
    for row in same:
        row.grad = None
    again.update = SimpleNamespace(loss=on_policy)
    again._step(list(range(10)), mixture, 1)
    for found, wanted in zip(mixed_slopes, again.slopes, strict=True):
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_the_metrics_are_of_the_stored_rows_and_the_losses_their_own_means() -> None:
    outcome = Outcome(joint(), "token-mean", [list(range(10))])
    data, lengths = outcome.data, [len(row) for row in outcome.log_probs]
    stored = [row for row in range(10) if data[REPLAYED][row]]
    ratios = torch.cat(
        [
            (outcome.log_probs[row].detach() - data["old_log_probs"][row, : lengths[row]].double()).exp()
            for row in stored
        ]
    )
    found = outcome.update.metrics({**outcome.metrics[0], "grad_norm": 2.0})
    assert found["replay/ratio_mean"] == pytest.approx(float(ratios.mean()), rel=1e-6)
    assert found["replay/ratio_max"] == pytest.approx(float(ratios.max()), rel=1e-6)
    tokens = [sum(lengths[row] for row in range(10) if (row in stored) == kind) for kind in (False, True)]
    assert found["replay/mixed_weight"] == pytest.approx(tokens[1] / sum(tokens))
    own = [row for row in range(10) if row not in stored]
    # The policy has not moved, so the ratio is 1, and the loss the mean of -A.
    mean = -sum(float(data["advantages"][row, : lengths[row]].double().sum()) for row in own) / tokens[0]
    assert outcome.metrics[0]["actor/pg_loss"].aggregate() == pytest.approx(mean, rel=1e-5)
    parts = [1 - found["replay/mixed_weight"], found["replay/mixed_weight"]]
    total = parts[0] * (mean + KL * outcome.metrics[0]["kl_loss"].aggregate())
    total += parts[1] * (found["replay/pg_loss"] + KL * found["replay/kl_loss"])
    assert outcome.loss == pytest.approx(total, rel=1e-5)
    assert not math.isnan(outcome.loss)


def test_without_a_row_of_the_step_the_stored_rows_are_the_loss() -> None:
    outcome = Outcome(joint(kept=[]), "token-mean", [[0, 1, 2, 3]])
    wanted = expected_slopes(outcome, "token-mean", None)
    for found, slope in zip(outcome.slopes, wanted, strict=True):
        assert torch.allclose(found, slope, rtol=2e-6, atol=1e-9)


def test_only_the_first_prompts_of_a_batch_are_given_and_the_order_is_the_loaders() -> None:
    class Loader:
        saved = "place in the order"

        def __iter__(self) -> Any:
            for start in (0, 4):
                numbers = list(range(start, start + 4))
                yield {"ids": torch.tensor(numbers), "raw_prompt": np.array(numbers, dtype=object)}

        def __len__(self) -> int:
            return 2

        def state_dict(self) -> str:
            return self.saved

    wanted = iter([None, 2])
    loader = FreshPrompts(Loader(), lambda: next(wanted))
    batches = list(loader)
    assert [batch["ids"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert [batch["raw_prompt"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert len(loader) == 2
    assert loader.state_dict() == "place in the order"
