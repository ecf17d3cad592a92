"""The actor worker of stage 2: verl's, with one method more."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.trainer.ppo.core_algos import agg_loss, kl_penalty
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.metric import AggregationType, Metric
from verl.utils.profiler.performance import simple_timer
from verl.workers.config import ActorConfig, EngineConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from recipe.rerule.platform import sdpa
from recipe.rerule.replay import ImportanceStats, ReplayConfig, log_ratios, replay_loss, weigh
from recipe.rerule.training import fsdp2
from recipe.rerule.training.cluster import SOCKET_NUMBER
from recipe.rerule.training.sizes import largest_divisor

if os.environ.get("VERL_PLATFORM") == "cpu":
    from recipe.rerule.platform import patches

    patches.install_in_engine()

STAY_LOADED = "rerule_stay_loaded"
"""Mark in an update's data: another update of the same step follows."""
WEIGHTS = "replay_weights"
"""Column of a weighed replay batch, [rows, T]."""


class ReplayActorWorker(ActorRolloutRefWorker):
    """Actor, rollout and reference in one worker, as verl's, plus the extra updates of a step.

    With parameter or optimiser offload, verl loads and offloads around every update. Here all updates of a
    step share one round trip: each but the last carries the mark STAY_LOADED.
    """

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        if sdpa.is_chosen(config.model):
            sdpa.install()
        fsdp2.install()
        super().__init__(config, *args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """verl's, with a seed, nccl_timeout, and a weight-transfer socket that no other run here has.

        verl reads its engine's seed with full_determinism alone. It leaves nccl_timeout unread, so that ranks
        would wait at most ten minutes for one that writes a checkpoint.
        """
        torch.manual_seed(self.config.actor.fsdp_config.seed)  # of a new adapter's weights
        initialize_global_process_group_ray(timeout_second=self.config.nccl_timeout)
        super().init_model()
        if (handle := getattr(self.rollout, "zmq_handle", None)) is not None:
            self.rollout.zmq_handle = own_socket(handle, int(os.environ.get(SOCKET_NUMBER, "0")))

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict:
        """verl's on-policy update; without our mark in `data` it is nothing else."""
        if not tu.pop(data, STAY_LOADED, default=False):
            return super().update_actor(data)
        tu.assign_non_tensor(data, disable_auto_offload=True)
        with self._loaded(stay=True):
            return super().update_actor(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor_replay(self, data: TensorDict) -> TensorDict:
        """One optimiser step on stored groups; the learning-rate schedule does not move.

        `data`: this rank's rows, as `batches.replay_batch` makes them, with the ReplayConfig as
        `replay_config`.

        Returns:
            "metrics": {name: float} over the whole replay batch, equal on every rank but for the seconds.
        """
        config = tu.pop(data, "replay_config")
        with self._loaded(tu.pop(data, STAY_LOADED, default=False)):
            metrics = replay_update(self.actor, data, config, self._actor_config)
        return tu.get_tensordict({}, non_tensor_dict={"metrics": metrics})

    @functools.cached_property
    def _actor_config(self) -> ActorConfig:
        return omega_conf_to_dataclass(self.config.actor)

    @contextlib.contextmanager
    def _loaded(self, stay: bool) -> Iterator[None]:
        """Parameters and optimiser on the device for an update, and after it while `stay`."""
        if not hasattr(self, "_step_context"):
            self._step_context = self.actor.engine.train_mode()
            self._step_context.__enter__()
        try:
            yield
        finally:
            if not stay:
                self._step_context.__exit__(None, None, None)
                del self._step_context


def own_socket(handle: str, number: int) -> str:
    """The address at which verl's rollout engine asks for weights, given its own and SOCKET_NUMBER."""
    return re.sub(r"(?<=-rank-)\d+(?=\.sock$)", lambda rank: str(int(rank[0]) + number), handle)


def replay_update(
    worker: TrainingWorker, data: TensorDict, config: ReplayConfig, actor_config: ActorConfig
) -> dict[str, float]:
    """The replay update of one rank: weigh under the policy as it is, then one optimiser step.

    Parameters and optimiser must be on the device. Collective: every rank must call it.
    """
    update = ReplayUpdate(config, actor_config, worker.engine.get_data_parallel_group())
    if not is_one_micro_batch(worker.engine_config, data, worker.engine.get_data_parallel_size()):
        update.weigh_first(worker, data)
    limit = worker.engine_config.micro_batch_size_per_gpu
    tu.assign_non_tensor(
        data, disable_auto_offload=True, micro_batch_size_per_gpu=micro_batch_size(len(data), limit)
    )
    on_policy_loss = worker.loss_fn
    worker.set_loss_fn(update.loss)
    try:
        with simple_timer("replay/seconds/train", update.seconds):
            output = worker.train_batch(data)
    finally:
        worker.set_loss_fn(on_policy_loss)
    trained = _replay_metrics(tu.get(output, "metrics"), update.use_kl)
    return {**(update.ratio_metrics or {}), **trained, **update.seconds}


class ReplayUpdate:
    """The loss of one replay update, and what is measured on the way.

    Normalised weights need the log-probs of the whole replay batch before the first gradient, hence a pass
    for them alone (`weigh_first`); where the batch is one micro-batch on every rank, the training pass has
    them all itself, and `loss` weighs by those.

    Attributes:
        ratio_metrics: of the importance ratios; None until the batch is weighed, which happens once.
        seconds: replay/seconds/PART.
    """

    def __init__(self, config: ReplayConfig, actor_config: ActorConfig, group: Any) -> None:
        self.importance, self.actor_config = config.importance, actor_config
        self.use_kl = config.use_kl_loss and actor_config.use_kl_loss
        self.group = group
        self.ratio_metrics: dict[str, float] | None = None
        self.seconds: dict[str, float] = {}

    def weigh_first(self, worker: TrainingWorker, data: TensorDict) -> None:
        """Weigh by the log-probs of a pass without gradient."""
        # A shallow copy, because infer_batch leaves its own micro-batch settings in what it gets.
        rows, limit = data.copy(), worker.engine_config.infer_micro_batch_size_per_gpu
        size = micro_batch_size(len(data), limit)
        tu.assign_non_tensor(
            rows, compute_loss=False, disable_auto_offload=True, micro_batch_size_per_gpu=size
        )
        with simple_timer("replay/seconds/log_prob", self.seconds):
            output = worker.infer_batch(rows)
            log_probs = no_padding_2_padding(tu.get(output, "log_probs"), data).float()
        self._weigh(data, log_probs)

    def loss(
        self, model_output: dict[str, torch.Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[torch.Tensor, dict[str, Metric]]:
        """Loss and metrics of one micro-batch, in the form that verl's engines call."""
        log_probs = no_padding_2_padding(model_output["log_probs"], data)
        if WEIGHTS not in data.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
            self._weigh(data, log_probs.detach().float())
        return replay_batch_loss(self.actor_config, self.use_kl, data, log_probs)

    def _weigh(self, data: TensorDict, log_probs: torch.Tensor) -> None:
        """Put the weights [rows, T] float32 into `data`, normalised over all ranks.

        Raises RuntimeError: the batch was weighed before: a second micro-batch would be normalised apart.
        """
        if self.ratio_metrics is not None:
            raise RuntimeError(
                "the replay batch was split into micro-batches after it had been weighed as one"
            )
        mask = data["response_mask"]
        with simple_timer("replay/seconds/weigh", self.seconds):
            log_ratio = log_ratios(log_probs, data["old_log_probs"], mask)
            found, self.ratio_metrics = weigh(
                log_ratio, mask, self.importance, self._total, data["advantages"]
            )
            data[WEIGHTS] = found.float()

    def _total(self, stats: ImportanceStats) -> ImportanceStats:
        """Summed over all ranks."""
        if self.group is None:
            return stats
        sums, maximum = (tensor.to(get_device_name()) for tensor in stats.as_tensors())
        torch.distributed.all_reduce(sums, group=self.group)
        torch.distributed.all_reduce(maximum, op=torch.distributed.ReduceOp.MAX, group=self.group)
        return ImportanceStats.from_tensors(sums, maximum)


def is_one_micro_batch(engine_config: EngineConfig, data: TensorDict, ranks: int) -> bool:
    """Whether verl trains on each rank's rows as one micro-batch; the same answer on every rank."""
    if engine_config.use_dynamic_bsz:
        tokens = tu.get(data, "global_token_num")  # of all ranks' rows, in order
        shares = (sum(tokens[at : at + len(data)]) for at in range(0, ranks * len(data), len(data)))
        return max(shares) <= engine_config.max_token_len_per_gpu
    return micro_batch_size(len(data), engine_config.micro_batch_size_per_gpu) == len(data)


def micro_batch_size(rows: int, limit: int | None) -> int | None:
    """The largest size up to `limit` that divides `rows`.

    verl wants equal micro-batches, and a replay batch has fewer rows while the buffer is small. None, for
    dynamic batch sizes, stays None.
    """
    return limit and largest_divisor(rows, limit)


def replay_batch_loss(
    actor_config: ActorConfig, use_kl: bool, data: TensorDict, log_probs: torch.Tensor
) -> tuple[torch.Tensor, dict[str, Metric]]:
    """The replay loss of one micro-batch of a replay batch, and its metrics.

    Aggregation is the actor's own `loss_agg_mode` over the whole replay batch, so that micro-batches and
    ranks do not matter; the KL term is the actor's own estimator and coefficient.

    Args:
        data: the rows, already weighed.
        log_probs: log pi_theta of their responses, [rows, T].
    """
    dp_size = data["dp_size"]
    aggregate = functools.partial(
        agg_loss,
        loss_agg_mode=actor_config.loss_agg_mode,
        dp_size=dp_size,
        batch_num_tokens=data["batch_num_tokens"],
        global_batch_size=data["global_batch_size"],
        loss_scale_factor=actor_config.loss_scale_factor,
    )
    loss = replay_loss(
        log_probs,
        data[WEIGHTS],
        data["advantages"],
        data["response_mask"],
        aggregate,
        ref_log_probs=data["ref_log_prob"] if use_kl else None,
        kl_coef=actor_config.kl_loss_coef if use_kl else 0.0,
        kl=functools.partial(kl_penalty, kl_penalty=actor_config.kl_loss_type),
    )
    metrics = {
        "replay/pg_loss": Metric(AggregationType.SUM, loss.policy_gradient),
        "replay/kl_loss": Metric(AggregationType.SUM, loss.kl),
        "replay/pg_signal_squared": Metric(
            AggregationType.SUM, _squared_signal(loss.policy_gradient, log_probs, dp_size)
        ),
    }
    return loss.total, metrics


def _squared_signal(policy_gradient: torch.Tensor, log_probs: torch.Tensor, dp_size: int) -> torch.Tensor:
    """Squared norm of the policy-gradient loss's derivative by log pi, of this micro-batch's rows.

    Each rank's loss is scaled by dp_size and verl averages metrics over ranks, hence one division.
    """
    if not log_probs.requires_grad:
        return torch.zeros(())
    (derivative,) = torch.autograd.grad(policy_gradient, log_probs, retain_graph=True)
    return derivative.square().sum() / dp_size


def _replay_metrics(output: dict[str, Any], use_kl: bool) -> dict[str, float]:
    """verl's training output as replay/... metrics; where there are several ranks, a `Metric` of each."""

    def summed(name: str) -> float:
        found = output[name]
        return float(Metric.aggregate_dp(found) if isinstance(found, list) else found.aggregate())

    metrics = {
        "replay/pg_loss": summed("replay/pg_loss"),
        "replay/pg_signal_norm": summed("replay/pg_signal_squared") ** 0.5,
        "replay/grad_norm": float(output["grad_norm"]),
    }
    return metrics | ({"replay/kl_loss": summed("replay/kl_loss")} if use_kl else {})
