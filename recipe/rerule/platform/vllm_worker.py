"""vLLM worker extension of the CPU platform: receives the trainer's weights.

verl's own extension calls `model.load_weights`, which fails after vLLM's CPU linear layers have repacked
theirs. vLLM's `model_runner.reload_weights` handles repacked layers.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from recipe.rerule.platform.sent_weights import without_missing_head


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """Named in `rollout.engine_kwargs.vllm.worker_extension_cls` by config/platform/cpu.yaml."""

    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Load one round of weights sent by the trainer rank of this replica.

        All buckets are received before loading, so a failure while loading reaches the trainer as this
        call's error: its sender has its last acknowledgement and does not wait for ever.
        LoRA arrives merged; `preflight.settings` refuses unmerged adapters on this platform.
        """
        weights: dict[str, torch.Tensor] = {}

        def keep(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            # The buffer behind a bucket is reused by the next one.
            weights.update((name, tensor.clone()) for name, tensor in bucket)

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=keep)
        loaded = without_missing_head(weights, self.model_runner.model)
        self.model_runner.reload_weights(weights_iterator=iter(loaded.items()))
