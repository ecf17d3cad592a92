"""verl's SFT trainer with a method's loss, its groups of rows, and whole checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from omegaconf import DictConfig
from tensordict import TensorDict
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import SFTTensorCollator
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

from data_prep.contract import read_sft_rows
from recipe.rerule.runs import checkpoints, written_model
from recipe.rerule.schema import plain
from recipe.rerule.training import fsdp2
from recipe.rerule.unlearning import hidden
from recipe.rerule.unlearning.frozen import FrozenModel
from recipe.rerule.unlearning.loss import MethodLoss, counts
from recipe.rerule.unlearning.losses import dual_ascent
from recipe.rerule.unlearning.method import Method
from recipe.rerule.unlearning.rows import GroupDataset, GroupSampler

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in `training.stage1`


_WEIGHT = "retain_weight.txt"
"""In a checkpoint: the weight of the retain term for the next step, where it moves."""


class UnlearningWorker(TrainingWorker):
    """verl's worker, which says of each batch what the method's terms are averaged over.

    After a step it moves the weight of the retain term, where the method does that.

    Attributes:
        steps: how many the run has made.
        dual_begins: the number of steps that the weight rests.
    """

    loss_fn: MethodLoss

    def __init__(self, config: TrainingWorkerConfig, method: Method) -> None:
        super().__init__(config)
        self._method = method
        self.steps = self.dual_begins = 0

    def train_batch(self, data: TensorDict) -> TensorDict:
        """One optimiser step over the whole batch; `data` as of `GroupDataset`."""
        tu.assign_non_tensor(
            data,
            force_group_size=len(self._method.layout),
            distillation_use_topk=self._method.needs_logits,
            **self._batch_counts(data),
        )
        output = super().train_batch(data)
        self.steps += 1
        if output is not None:
            metrics = tu.get(output, "metrics")
            for name, parts in metrics.items():
                if name.startswith("loss/"):  # the term's parts, of each rank and micro-batch
                    metrics[name] = sum(map(sum, parts)) / len(parts)
            if self._method.dual_rate is not None:
                self._move_weight(metrics)
        return output

    def _move_weight(self, metrics: dict[str, Any]) -> None:
        """Of the retain term, alike on all ranks; the metrics get the weight of this step."""
        method, weights = self._method, self.loss_fn.weights
        metrics["weight/retain"] = weights["retain"]
        if self.steps > self.dual_begins:
            assert method.dual_rate is not None
            assert method.retain_limit is not None
            weights["retain"] = dual_ascent(
                weights["retain"], metrics["loss/retain"], method.retain_limit, method.dual_rate
            )

    def _batch_counts(self, data: TensorDict) -> dict[str, int]:
        """Rows and tokens of the batch over all ranks."""
        found = counts(data, self._method.retain_positions)
        found["groups"] = len(data) // len(self._method.layout)
        total = torch.tensor(list(found.values()), device=self.device_name)
        torch.distributed.all_reduce(total, group=self.engine.get_data_parallel_group())
        return dict(zip(found, map(int, total.tolist()), strict=True))


class UnlearningTrainer(SFTTrainer):
    """verl's SFT trainer on groups of rows with the loss of the configuration's `method`."""

    def __init__(self, config: DictConfig) -> None:
        self._method = Method(**plain(config, "method"))
        torch.manual_seed(config.trainer.seed)  # of a new adapter's weights
        super().__init__(config)
        # A loader restored at the end of an epoch would first give that epoch's nothing.
        if self.resume_global_step and self.resume_global_step % self.steps_per_epoch == 0:
            self._build_dataloader()
            self.ckpt_handler.train_dataloader = self.train_dataloader
        self.training_client.steps = self.resume_global_step
        self.training_client.dual_begins = self._method.dual_warmup * self.steps_per_epoch
        if self.resume_global_step and self._method.dual_rate is not None:
            folder = checkpoints.resumed(config.trainer)
            assert folder is not None
            self.loss_fn.weights["retain"] = float((folder / _WEIGHT).read_text("utf-8"))

    def fit(self) -> None:
        """Train to the last step; a run that was stopped after its last checkpoint has nothing left to do."""
        if self.resume_global_step < self.total_training_steps:
            super().fit()

    def _build_dataset(self) -> None:
        data = self.config.data
        self.train_dataset = GroupDataset(
            {side: read_sft_rows(data[side]) for side in self._method.data},
            self._method,
            self.model_config.tokenizer,
            data.max_length,
            self.config.trainer.seed,
            data.apply_chat_template_kwargs,
        )
        self.val_dataset = None

    def _build_dataloader(self) -> None:
        config, ranks = self.config, self.engine.get_data_parallel_size()
        self.global_batch_size = config.data.train_batch_size
        self.train_batch_size_per_dp = self.global_batch_size // ranks
        self.train_sampler = GroupSampler(
            self.train_dataset,
            num_replicas=ranks,
            rank=self.engine.get_data_parallel_rank(),
            seed=config.trainer.seed,
            drop_last=True,
        )
        self.train_dataloader = StatefulDataLoader(
            self.train_dataset,
            batch_size=self.train_batch_size_per_dp,
            sampler=self.train_sampler,
            collate_fn=SFTTensorCollator(config.data.pad_mode),
            num_workers=config.data.num_workers,
            drop_last=True,
        )
        self.val_dataloader = None

    def _build_engine(self) -> None:
        config = TrainingWorkerConfig(
            model_type="language_model",
            model_config=self.model_config,
            engine_config=self.engine_config,
            optimizer_config=self.optimizer_config,
            checkpoint_config=self.checkpoint_config,
            profiler_config=self.profiler_config,
        )
        self.training_client = UnlearningWorker(config, self._method)
        self.engine = self.training_client.engine
        needed = {"reference": self._method.referenced, "reinforced": self._method.reinforced}
        layer = self._method.layer if self._method.needs_hidden else None
        self._frozen = {
            name: FrozenModel(self.config, self.config[name].path, layer)
            for name, sides in needed.items()
            if sides
        }
        self.loss_fn = MethodLoss(
            self._method,
            self._frozen.get("reference"),
            self._frozen.get("reinforced"),
            self.config.trainer.seed,
        )
        self.training_client.set_loss_fn(self.loss_fn)

    def _init_engine(self) -> None:
        super()._init_engine()
        method = self._method
        if method.layer is not None and method.trained_layers is not None:
            chosen = (method.layer, method.trained_layers, method.trained_module)
            hidden.train_alone(self.engine.module, hidden.trained(self.engine.module, *chosen))
        if method.layer is not None and method.needs_hidden:
            hidden.add_to_output(self.engine, method.layer)
        for model in self._frozen.values():
            model.load()

    def _build_ckpt_handler(self) -> None:
        super()._build_ckpt_handler()
        save, limit = self.ckpt_handler.save_checkpoint, self.ckpt_handler.max_ckpt_to_keep
        # verl would delete old checkpoints before the new one is whole.
        self.ckpt_handler.max_ckpt_to_keep = None

        def save_whole(step: int) -> None:
            folder = self.config.trainer.default_local_dir
            self._on_first_rank(lambda: checkpoints.begin(folder, step))
            save(step)
            self._on_first_rank(lambda: self._settle(checkpoints.step_folder(folder, step)))
            self._on_first_rank(lambda: checkpoints.finish(folder, step))
            self._on_first_rank(lambda: checkpoints.keep(folder, limit))

        self.ckpt_handler.save_checkpoint = save_whole

    def _settle(self, checkpoint: Path) -> None:
        """Merge an adapter into the written weights, give them the dtype of save.weights_dtype, and keep the
        weight of the retain term, where it moves."""
        written_model.settle(checkpoint / "huggingface", self.config.model, self.config.save.weights_dtype)
        if self._method.dual_rate is not None:
            (checkpoint / _WEIGHT).write_text(f"{self.loss_fn.weights['retain']!r}\n", "utf-8")

    def _on_first_rank(self, act: Callable[[], None]) -> None:
        if self.rank == 0:
            act()
        torch.distributed.barrier()


def run(config: DictConfig) -> None:
    """Train as one rank of torch's launcher; `config` is resolved and checked."""
    from verl.utils import distributed

    fsdp2.install()
    distributed.initialize_global_process_group()
    UnlearningTrainer(config).fit()
    distributed.destroy_global_process_group()
