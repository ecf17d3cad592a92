"""Models that are compared with and never trained, each in an engine of verl that only passes forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from recipe.rerule.unlearning import hidden


class FrozenModel:
    """A frozen model; between passes it is in the host's memory. `load` comes before the first pass."""

    def __init__(self, config: DictConfig, path: str | None, layer: int | None = None) -> None:
        """Build the engine.

        Args:
            config: of the command.
            path: of the model; None is the model that is trained, as it is at the start.
            layer: whose output `hidden` gives.
        """
        self._worker = TrainingWorker(worker_config(config, path))
        self._layer = layer
        self._found: dict[bytes, Tensor] = {}

    def load(self) -> None:
        self._worker.reset()
        if self._layer is not None:
            hidden.add_to_output(self._worker.engine, self._layer)

    def log_probs(self, data: TensorDict, rows: Tensor) -> Tensor:
        """As of `loss.Frozen`; a row passes once, on whichever rank has it first, and is then remembered."""
        ids = data["input_ids"].unbind()
        keys = [ids[row].cpu().numpy().tobytes() for row in rows.tolist()]

        def passed() -> dict[bytes, Tensor]:
            output = self._forward(data, rows, None, distillation_use_topk=False)
            return dict(zip(keys, (one.cpu() for one in output["log_probs"].unbind()), strict=True))

        remember(self._found, keys, passed, self._worker.engine.get_data_parallel_group())
        return torch.cat([self._found[key] for key in keys]).to(rows.device)

    def logits(self, data: TensorDict, rows: Tensor) -> Tensor:
        """As of `loss.Frozen`."""
        kept: list[Tensor] = []

        def keep(student_logits: Tensor | None = None, **_: Any) -> Any:
            if student_logits is None:
                return torch.zeros(()), {}
            kept.append(student_logits[0])
            return {}

        self._forward(data, rows, keep, distillation_use_topk=True, distillation_only=True)
        return kept[0]

    def hidden(self, data: TensorDict, rows: Tensor) -> Tensor:
        """As of `loss.Frozen`."""
        return self._forward(data, rows, None, distillation_use_topk=False)["hidden"].values()

    def _forward(
        self, data: TensorDict, rows: Tensor, function: Callable[..., Any] | None, **flags: bool
    ) -> dict[str, Tensor]:
        chosen = tu.index_select_tensor_dict(data, rows.cpu())
        tu.assign_non_tensor(chosen, **flags)
        engine = self._worker.engine
        with torch.no_grad(), engine.eval_mode():
            _, output = engine.forward_step(chosen, loss_function=function, forward_only=True)
        return output["model_output"]


def remember(
    found: dict[bytes, Tensor], keys: list[bytes], passed: Callable[[], dict[bytes, Tensor]], group: Any
) -> None:
    """Have `found` hold every key of every rank; collective, because a pass gathers weights from all ranks.

    Args:
        passed: the pass of this rank's rows, made by all ranks or by none.
        group: of the ranks.
    """
    parts: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(parts, any(key not in found for key in keys), group)
    if any(parts):
        torch.distributed.all_gather_object(parts, passed(), group)
        for part in parts:
            found.update(part)


def worker_config(config: DictConfig, path: str | None) -> TrainingWorkerConfig:
    """Without an optimiser and an adapter, which does nothing yet at the start."""
    own: dict[str, Any] = {"lora_rank": 0, "lora_adapter_path": None}
    if path is not None:
        own |= {"path": path, "tokenizer_path": None}
    model = OmegaConf.merge(config.model, own)
    engine: dict[str, Any] = {"forward_only": True}
    if (OmegaConf.select(config, "engine.mixed_precision.param_dtype") or "bf16") == "bf16":
        engine["model_dtype"] = "bf16"  # it is on the host and copied for each pass, which is in bfloat16
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=omega_conf_to_dataclass(model),
        engine_config=omega_conf_to_dataclass(OmegaConf.merge(config.engine, engine)),
        optimizer_config=None,
        checkpoint_config=omega_conf_to_dataclass(config.checkpoint),
        profiler_config=omega_conf_to_dataclass(config.profiler),
    )
