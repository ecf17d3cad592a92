"""The actor worker of replay.update=mixed: verl's on-policy update, in which some rows are stored ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.utils.profiler.performance import simple_timer
from verl.workers.config import ActorConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from recipe.rerule.replay.mixed import Part, part_weights
from recipe.rerule.training.mixed_batches import MIXED, REPLAYED, Mixture
from recipe.rerule.training.worker import (
    WEIGHTS,
    ReplayActorWorker,
    ReplayUpdate,
    _current_log_probs,
    _replay_metrics,
    is_one_micro_batch,
    micro_batch_size,
    replay_batch_loss,
)

Loss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]
"""A loss as verl's engines call it: (model_output, data, dp_group) to the loss and its metrics."""


class MixedActorWorker(ReplayActorWorker):
    """An update without the mark MIXED is that of `ReplayActorWorker`."""

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict:
        """verl's on-policy update, one optimiser step and one step of the schedule, with the mixed loss.

        Args:
            data: this rank's rows, as verl makes them of a `mixed_batches.mixed_batch`.

        Returns:
            "metrics": verl's, of the step's own rows where they are of rows; and under MIXED {name: float} of
            the stored rows over the whole batch.
        """
        mixture = tu.pop(data, MIXED, default=None)
        if mixture is None:
            return super().update_actor(data)
        with self._loaded(stay=False):
            update = self._prepared(data, mixture)
            with _loss_of(self.actor, update.loss):
                output = super().update_actor(data)
        metrics = tu.get(output, "metrics")
        own = {name: value for name, value in metrics.items() if not name.startswith("replay/")}
        return tu.get_tensordict({}, non_tensor_dict={"metrics": own | {MIXED: update.metrics(metrics)}})

    def _prepared(self, data: TensorDict, mixture: Mixture) -> MixedUpdate:
        """The update of these rows, weighed where that takes a pass; `data` becomes one mini-batch."""
        worker, limit = self.actor, self.actor.engine_config.micro_batch_size_per_gpu
        update = MixedUpdate(
            mixture, self._actor_config, worker.engine.get_data_parallel_group(), worker.loss_fn
        )
        if not is_one_micro_batch(worker.engine_config, data):
            update.weigh_first(worker, data)
        tu.assign_non_tensor(
            data,
            disable_auto_offload=True,
            global_batch_size=mixture.rows,
            mini_batch_size=mixture.rows,
            micro_batch_size_per_gpu=micro_batch_size(len(data), limit),
        )
        return update


@contextmanager
def _loss_of(worker: TrainingWorker, loss: Loss) -> Iterator[None]:
    """`loss` in the place of the worker's own."""
    own = worker.loss_fn
    worker.set_loss_fn(loss)
    try:
        yield
    finally:
        worker.set_loss_fn(own)


class MixedUpdate(ReplayUpdate):
    """The loss of one mixed update: see `replay.mixed`; the stored rows are weighed among themselves.

    They are weighed under the policy before the update, since there is no other update of the step.
    """

    def __init__(self, mixture: Mixture, actor_config: ActorConfig, group: Any, on_policy_loss: Loss) -> None:
        super().__init__(mixture.config, actor_config, group)
        self.mixture, self.on_policy_loss = mixture, on_policy_loss
        self.part_weights = part_weights(
            mixture.fresh, mixture.replayed, actor_config.loss_agg_mode, mixture.config.mixed_weight
        )

    def weigh_first(self, worker: TrainingWorker, data: TensorDict) -> None:
        """Weigh by the log-probs of a pass without gradient over the stored rows alone."""
        places = data[REPLAYED].nonzero()[:, 0]
        rows = tu.index_select_tensor_dict(data, places)
        log_probs = torch.zeros_like(data["old_log_probs"], dtype=torch.float32)
        with simple_timer("replay/seconds/log_prob", self.seconds):
            log_probs[places] = _current_log_probs(worker, rows)
        self._weigh(data, log_probs)

    def loss(
        self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[torch.Tensor, dict[str, Metric]]:
        """Loss and metrics of one micro-batch, in the form that verl's engines call."""
        log_probs = no_padding_2_padding(model_output["log_probs"], data)
        if WEIGHTS not in data.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
            self._weigh(data, log_probs.detach().float())
        fresh = of_part(data, ~data[REPLAYED], self.mixture.fresh)
        own, own_metrics = self.on_policy_loss(model_output=model_output, data=fresh, dp_group=dp_group)
        stored = of_part(data, data[REPLAYED], self.mixture.replayed)
        replayed, metrics = replay_batch_loss(self.actor_config, self.use_kl, stored, log_probs)
        return self.part_weights[0] * own + self.part_weights[1] * replayed, own_metrics | metrics

    def metrics(self, output: dict[str, Any]) -> dict[str, float]:
        """What there is to log of the stored rows, given verl's metrics of the update."""
        weight = {"replay/mixed_weight": self.part_weights[1]}
        return {
            **(self.ratio_metrics or {}),
            **_replay_metrics(output, self.use_kl),
            **weight,
            **self.seconds,
        }

    def _mask(self, data: TensorDict) -> torch.Tensor:
        return data["response_mask"] * data[REPLAYED][:, None]


def of_part(data: TensorDict, rows: torch.Tensor, part: Part) -> TensorDict:
    """The micro-batch as a loss sees it that is to be the mean over one kind of rows.

    Args:
        rows: bool [rows], those of the kind; no token of the others is valid.
        part: how much of the whole batch is of the kind.
    """
    seen = data.copy()
    seen["response_mask"] = data["response_mask"] * rows[:, None]
    # A part without any row has no loss; the divisor only must not be 0.
    tu.assign_non_tensor(seen, batch_num_tokens=max(1, part.tokens), global_batch_size=max(1, part.rows))
    return seen
