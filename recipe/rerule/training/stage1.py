"""verl's SFT trainer as stage 1: own answers in each batch, sampled responses, the best step's weights."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch.distributed.fsdp import FSDPModule
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.model import get_hf_auto_model_class

from data_prep.contract import read_rows
from recipe.rerule.schema import listed, plain
from recipe.rerule.training import own_answers, signal, sizes
from recipe.rerule.training.prompts import prompt_ids
from recipe.rerule.training.sides import SidesSampler

# verl's trainer sets "true" when it is imported: a forked process that reads rows would then wait for ever
# for the tokenizer's threads, which it does not have.
os.environ["TOKENIZERS_PARALLELISM"] = "false"


class Stage1Trainer(SFTTrainer):
    """Without own answers and prompts to sample from, this is verl's trainer."""

    train_dataloader: Any
    train_sampler: Any

    def __init__(self, config: DictConfig) -> None:
        self._signals: list[signal.Signal] = []
        self._best: list[torch.Tensor] = []
        self._fused: Any = None
        rows = [row for path in listed(config.data.prompt_files) for row in read_rows(path)]
        self._prompts = signal.chosen_prompts(rows, config.signal.prompts, config.trainer.seed)
        torch.manual_seed(config.trainer.seed)  # of a new adapter's weights
        super().__init__(config)
        self._step = self.resume_global_step

    def fit(self) -> None:
        """Train to the last step, which ends with the weights of the kept one."""
        if self._prompts:
            self._sample()
        super().fit()

    def _build_dataset(self) -> None:
        data = self.config.data
        refusals = data.train_files
        self._refusals = sizes.count_rows(refusals)
        if data.retain_share:
            answers = own_answers.file(self.config.trainer.default_local_dir)
            data.train_files = [*listed(refusals), str(answers)]
        super()._build_dataset()
        data.train_files = refusals

    def _build_dataloader(self) -> None:
        super()._build_dataloader()
        data, verls = self.config.data, self.train_dataloader
        if not data.retain_share:
            self.train_sampler.seed = self.config.trainer.seed  # verl's trainer leaves torch's default, 0
            return
        ranks = self.engine.get_data_parallel_size()
        batch = verls.batch_size * ranks
        self.train_sampler = SidesSampler(
            range(self._refusals),
            range(self._refusals, len(self.train_dataset)),
            share=data.retain_share,
            length=self._refusals // batch * batch,
            seed=self.config.trainer.seed,
            rank=self.engine.get_data_parallel_rank(),
            ranks=ranks,
        )
        self.train_dataloader = StatefulDataLoader(
            self.train_dataset,
            batch_size=verls.batch_size,
            sampler=self.train_sampler,
            collate_fn=verls.collate_fn,
            num_workers=verls.num_workers,
            drop_last=True,
        )

    def _build_engine(self) -> None:
        super()._build_engine()
        train_batch = self.training_client.train_batch

        def train_and_sample(data: Any) -> Any:
            output = train_batch(data=data)
            self._step += 1
            last = self._step == self.total_training_steps
            if self._prompts and (last or self._step % self.config.signal.every == 0):
                found = self._sample()
                if output is not None:
                    tu.get(output, "metrics").update(found.metrics)
            if last and self._best:
                with torch.no_grad():
                    for local, kept in zip(self._trained(), self._best, strict=True):
                        local.copy_(kept)
            return output

        self.training_client.train_batch = train_and_sample

    def _init_engine(self) -> None:
        # verl's fused kernels take the place of the model's own forward, which alone gives logits.
        model = self.model_config.hf_config
        if self._prompts and self.config.model.use_fused_kernels:
            self._fused = get_hf_auto_model_class(model)._model_mapping[type(model)]
            self._own_forward = self._fused.forward
        super()._init_engine()

    def _sample(self) -> signal.Signal:
        """Sample, say and record what was found, and keep the weights where they are the best so far."""
        began = time.time()
        options = plain(self.config, "signal.reward_kwargs")
        found = signal.measured(self._step, self._responses(), options)
        ended = time.time()
        found = replace(found, seconds=ended - began, elapsed=ended - psutil.Process().create_time())
        self._signals.append(found)
        if self.rank == 0:
            signal.append(self.config.trainer.default_local_dir, found)
            print(f"step {self._step}: {found}", flush=True)
        if self.config.stop == "signal" and self._step and signal.best(self._signals) is found:
            self._best = [local.detach().to("cpu", copy=True) for local in self._trained()]
        return found

    def _responses(self) -> list[signal.Sampled]:
        """The prompts with their responses; each rank samples its part, and all get all."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        rows, settings, data = self._prompts, self.config.signal, self.config.data
        # Every rank must sample as often as the others: those of a short part take a prompt of another.
        places = [place % len(rows) for place in range(rank, -(-len(rows) // ranks) * ranks, ranks)]
        asked, tokenizer = [rows[place] for place in places], self.model_config.tokenizer
        template = plain(self.config, "data.apply_chat_template_kwargs")
        with self._sampling_model() as module, torch.random.fork_rng():
            torch.manual_seed(
                random.Random(f"{self.config.trainer.seed} {self._step} {rank}").getrandbits(60)
            )
            texts = signal.sample(
                module,
                tokenizer,
                [prompt_ids(tokenizer, row["prompt"], row["extra_info"]["raw"], **template) for row in asked],
                samples=settings.samples,
                temperature=settings.temperature,
                max_tokens=data.max_response_length,
                together=ranks > 1,
            )
        parts: list[Any] = [None] * ranks
        dist.all_gather_object(parts, list(zip(places, texts, strict=True)))
        by_place = {place: texts for part in parts for place, texts in part}
        return [(rows[place], [self._cut(text) for text in by_place[place]]) for place in range(len(rows))]

    def _cut(self, text: str) -> str:
        """A response up to the first of the strings that end one."""
        ends = [place for stop in self.config.data.stop if (place := text.find(stop)) >= 0]
        return text[: min(ends, default=len(text))]

    @contextlib.contextmanager
    def _sampling_model(self) -> Iterator[Any]:
        """The model that is trained, its weights gathered once and not for every token."""
        module, dtype = self.engine.module, self.engine._autocast_dtype
        autocast = torch.autocast(get_device_name(), dtype, enabled=dtype != torch.float32)
        with self.engine.eval_mode(), autocast, self._own_forward_of(module):
            module.set_reshard_after_forward(False)
            try:
                yield module
            finally:
                module.set_reshard_after_forward(self.engine.engine_config.reshard_after_forward)
                for part in module.modules():
                    if isinstance(part, FSDPModule):
                        part.reshard()

    @contextlib.contextmanager
    def _own_forward_of(self, module: Any) -> Iterator[None]:
        """The model's own forward, which gives logits, in place of those that its class and it got."""
        if not self._fused:
            yield
            return
        fused = self._fused.forward
        instances = [part for part in module.modules() if isinstance(part, self._fused)]
        replaced = [(part, vars(part).pop("forward")) for part in instances if "forward" in vars(part)]
        self._fused.forward = self._own_forward
        try:
            yield
        finally:
            self._fused.forward = fused
            for part, forward in replaced:
                part.forward = forward

    def _trained(self) -> list[torch.Tensor]:
        """This rank's part of each weight that is trained, as it lies in memory."""
        weights = [weight for weight in self.engine.module.parameters() if weight.requires_grad]
        return [weight.to_local() for weight in weights]
