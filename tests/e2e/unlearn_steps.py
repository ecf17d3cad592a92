"""Ranks of torch's launcher: some steps of many configurations, each with a trainer of its own.

torchrun unlearn_steps.py JOB.json: {"cases": {name: [override, ...]}, "out": FOLDER}. Of each case FOLDER
gets NAME.json, the loss of each step and the rows of its batch, and NAME.safetensors, the parameters before
(start/), after (end/) and the first gradient (grad/).
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import save_file

from recipe.rerule import platform

platform.select("cpu")

from recipe.rerule.platform import patches  # noqa: E402  (the platform comes first)

patches.install_in_engine()

from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.distributed import initialize_global_process_group  # noqa: E402

from recipe.rerule.unlearning.trainer import UnlearningTrainer  # noqa: E402


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    initialize_global_process_group()
    for name, overrides in job["cases"].items():
        run(name, composed(overrides), Path(job["out"]))
    torch.distributed.destroy_process_group()


def composed(overrides: list[str]) -> DictConfig:
    with initialize_config_module("recipe.rerule.config.unlearn", version_base=None):
        config = compose("unlearn_trainer", overrides)
    OmegaConf.resolve(config)
    return config


def run(name: str, config: DictConfig, out: Path) -> None:
    trainer = UnlearningTrainer(config)
    trainer.ckpt_handler.save_checkpoint = lambda step: None
    seen = Seen(trainer)
    start = seen.parameters()
    trainer.fit()
    tensors = {
        f"{kind}/{key}": value
        for kind, found in {"start": start, "end": seen.parameters(), "grad": seen.gradient}.items()
        for key, value in found.items()
    }
    rows = [gathered(batch) for batch in seen.batches]
    if torch.distributed.get_rank() == 0:
        save_file(tensors, out / f"{name}.safetensors")
        record = {"losses": seen.losses, "batches": rows}
        (out / f"{name}.json").write_text(json.dumps(record))


class Seen:
    """What a trainer does: the loss of each step, the rows of its batch on this rank, the first gradient."""

    def __init__(self, trainer: UnlearningTrainer) -> None:
        self.losses: list[float] = []
        self.batches: list[list[dict[str, Any]]] = []
        self.gradient: dict[str, torch.Tensor] = {}
        self._engine = trainer.engine
        self._train, trainer.training_client.train_batch = trainer.training_client.train_batch, self._watched
        self._step, self._engine.optimizer_step = self._engine.optimizer_step, self._kept

    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: whole(value) for name, value in self._engine.module.named_parameters()}

    def _watched(self, data: Any) -> Any:
        columns = ("input_ids", "loss_mask", "side")
        self.batches.append(
            [
                dict(zip(columns, (part.tolist() for part in row), strict=True))
                for row in zip(*(data[column].unbind() for column in columns), strict=True)
            ]
        )
        output = self._train(data=data)
        self.losses.append(tu.get(output, "metrics")["loss"])
        return output

    def _kept(self) -> Any:
        if not self.gradient:
            self.gradient = {
                name: whole(value.grad)
                for name, value in self._engine.module.named_parameters()
                if value.grad is not None
            }
        return self._step()


def whole(value: torch.Tensor) -> torch.Tensor:
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return value.detach().clone()


def gathered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, rows)
    return [row for part in found for row in part]


if __name__ == "__main__":
    main()
