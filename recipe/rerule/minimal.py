"""RULE and ReRULE in one file: GRPO on a refusal boundary, with replay of hard rollout groups.

    python -m recipe.rerule.minimal                                on the embedded world, made first and kept
    python -m recipe.rerule.minimal --model STAGE1 --data TRAIN    on a stage-1 model and rows of data_prep

`Run.step` is the algorithm; what it calls follows in the order of its lines. Prompts, rewards and all that
replay stores, draws and weighs are the recipe's own code. Compared with `recipe.rerule.main` it leaves out:
 1. Ray, verl and vLLM: one process; transformers generates and torch updates, in float32.
 2. Micro-batches and several devices: the responses of a step are one batch.
 3. PPO's clip: each batch is updated on once, where the ratio to the policy that responded is 1.
 4. Other losses than RULE's (GRPO, token mean, low_var_kl), schedules, critics, LoRA and stop strings.
 5. The control `replay.update=on_policy`; limits to the length of prompts.
 6. Checkpoints, resuming and records: nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW

from data_prep.contract import Row
from recipe.rerule import replay
from recipe.rerule.replay import Replay, ReplayConfig, RolloutGroup
from recipe.rerule.training.prompts import prompt_ids
from reward.score import compute_score

Batch = dict[str, Tensor]
Metrics = dict[str, float]
TINY = ReplayConfig(threshold_window=64, min_groups=16, warmup_steps=10, capacity=256, groups_per_update=16)


@dataclass(frozen=True)
class Settings:
    """One run. Defaults are those of `experiment=tiny`, under the keys that stand behind each."""

    steps: int = 34  # trainer.total_training_steps
    prompts: int = 16  # data.train_batch_size
    rollouts: int = 8  # actor_rollout_ref.rollout.n
    response_limit: int = 24  # data.max_response_length, in tokens
    temperature: float = 1.0  # actor_rollout_ref.rollout.temperature
    learning_rate: float = 2e-4  # actor_rollout_ref.actor.optim.lr
    weight_decay: float = 0.01  # actor_rollout_ref.actor.optim.weight_decay
    grad_clip: float = 1.0  # actor_rollout_ref.actor.optim.clip_grad
    kl_coef: float = 0.01  # actor_rollout_ref.actor.kl_loss_coef
    seed: int = 42  # data.seed
    reward: Mapping[str, Any] = field(default_factory=dict)  # reward.custom_reward_function.reward_kwargs
    replay: ReplayConfig = TINY  # replay


class Run:
    """A run of stage 2, step by step: trains `model`; `reference` is the stage-1 model."""

    def __init__(self, model: Any, reference: Any, tokenizer: Any, settings: Settings) -> None:
        self.settings, self.reference = settings, reference
        self.policy = Policy(model, tokenizer, settings.response_limit, settings.temperature)
        self.optimizer = AdamW(model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
        self.replay = Replay(settings.replay) if settings.replay.enable else None

    def step(self, rows: Sequence[Row], step: int) -> tuple[Metrics, list[RolloutGroup]]:
        """One training step on these prompts; its metrics and rollout groups."""
        batch = self.policy.respond(rows, self.settings.rollouts)  # respond
        log_probs = self.policy.log_probs(batch)  # with gradient; detached they are the old log-probs
        groups, answers = self._rollouts(batch, log_probs.detach(), rows, step)  # reward, advantages
        self._update(batch, log_probs)  # on-policy update
        metrics = self._metrics(groups, answers)
        if self.replay is not None:
            self.replay.offer(groups, step)  # store
            for _ in range(self.settings.replay.updates_per_step):
                drawn = self.replay.draw(step)  # gate, draw
                metrics |= self._extra_update(drawn, batch)  # weigh, replay update
        return metrics, groups

    def _rollouts(
        self, batch: Batch, log_probs: Tensor, rows: Sequence[Row], step: int
    ) -> tuple[list[RolloutGroup], list[Row]]:
        """The batch's groups, and the parts of its rewards; log-probs and advantages join the batch."""
        batch["old_log_probs"] = log_probs
        with torch.no_grad():
            batch["ref_log_prob"] = self.policy.log_probs(batch, self.reference)
        answers = rewards_of(self.policy.texts(batch), rows, self.settings.reward)
        rewards = torch.tensor([answer["score"] for answer in answers])
        advantages = group_advantages(rewards.view(len(rows), -1)).flatten().to(log_probs.device)
        batch["advantages"] = advantages[:, None] * batch["response_mask"]
        identities = [identity(row) for row in rows]
        return replay.unpad_rows(identities, step, {**batch, "rewards": rewards}), answers

    def _update(self, batch: Batch, log_probs: Tensor) -> float:
        """The on-policy update; `log_probs` with gradient."""
        return self._descend(self._loss(batch, log_probs))

    def _loss(self, batch: Batch, log_probs: Tensor) -> Tensor:
        """RULE's: weights are 1, since the policy is the one that responded."""
        return self._weighted_loss(batch, log_probs, torch.ones_like(log_probs), self.settings.kl_coef)

    def _weighted_loss(self, batch: Batch, log_probs: Tensor, weights: Tensor, kl_coef: float) -> Tensor:
        """The policy gradient, weighed token by token, and KL to the reference."""
        terms = (log_probs, weights, batch["advantages"], batch["response_mask"], replay.token_mean)
        return replay.replay_loss(*terms, batch["ref_log_prob"], kl_coef, replay.low_var_kl).total

    def _descend(self, loss: Tensor) -> float:
        """One optimiser step; the norm of the gradient before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.settings.grad_clip)
        self.optimizer.step()
        return float(norm)

    def _metrics(self, groups: Sequence[RolloutGroup], answers: Sequence[Row]) -> Metrics:
        """Mean reward by side."""
        rewards = {s: [g.mean_reward for g in groups if g.side == s] for s in ("forget", "retain")}
        return {f"reward/{side}": sum(own) / len(own) for side, own in rewards.items() if own}

    def _extra_update(self, drawn: list[RolloutGroup], batch: Batch) -> Metrics:
        """The update that follows a draw; nothing while the gate is closed."""
        return self._replay_update(drawn) if drawn else {}

    def _replay_update(self, drawn: list[RolloutGroup]) -> Metrics:
        """One optimiser step on the drawn groups."""
        loss, moments = self._replay_loss(drawn)
        return moments | {"replay/grad_norm": self._descend(loss), "replay/updates": 1.0}

    def _replay_loss(self, drawn: list[RolloutGroup]) -> tuple[Tensor, Metrics]:
        """The loss of the drawn groups, weighed as one batch, and the moments of their ratios."""
        padded = replay.pad_groups(drawn, self.policy.tokenizer.pad_token_id)
        batch = {name: plane.to(self.policy.model.device) for name, plane in padded.items()}
        log_probs = self.policy.log_probs(batch)
        log_ratio = replay.log_ratios(log_probs, batch["old_log_probs"], batch["response_mask"])
        weights, moments = self._weigh(batch, log_ratio)
        kl_coef = self.settings.kl_coef if self.settings.replay.use_kl_loss else 0.0
        return self._weighted_loss(batch, log_probs, weights, kl_coef), moments

    def _weigh(self, batch: Batch, log_ratio: Tensor) -> tuple[Tensor, Metrics]:
        """The weights [R, T] of the drawn tokens, and what there is to log of their ratios."""
        return replay.weigh(log_ratio, batch["response_mask"], self.settings.replay.importance)


class Policy:
    """A model with its tokenizer: samples responses and gives their log-probs."""

    def __init__(self, model: Any, tokenizer: Any, response_limit: int, temperature: float) -> None:
        self.model, self.tokenizer, self.temperature = model, tokenizer, temperature
        self.ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        self.ends["max_new_tokens"] = response_limit
        self.sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}

    def respond(self, rows: Sequence[Row], copies: int, greedy: bool = False) -> Batch:
        """`copies` responses to each prompt, as neighbours: int64 [R, P] left-padded, [R, T] right-padded."""
        prompts, prompt_mask = (plane.repeat_interleave(copies, 0) for plane in self.encode(rows))
        how = {"do_sample": False} if greedy else self.sampling
        with torch.no_grad():
            ids = self.model.generate(input_ids=prompts, attention_mask=prompt_mask, **how, **self.ends)
        return self.masked(prompts, prompt_mask, ids[:, prompts.shape[1] :])

    def masked(self, prompts: Tensor, prompt_mask: Tensor, responses: Tensor) -> Batch:
        """Prompts int64 [R, P] and responses [R, T] with their masks; what follows an end is padding."""
        ended = responses == self.tokenizer.eos_token_id
        mask = (ended.cumsum(1) - ended.long() == 0).long()  # the end itself belongs to the response
        responses = responses.where(mask.bool(), self.tokenizer.pad_token_id)
        both = torch.cat([prompt_mask, mask], 1)
        return {"prompts": prompts, "responses": responses, "attention_mask": both, "response_mask": mask}

    def encode(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask of the rows' prompts, int64 [G, P], left-padded."""
        ids = [torch.tensor(prompt_ids(self.tokenizer, r["prompt"], r["extra_info"]["raw"])) for r in rows]
        prompts = pad_sequence(ids, True, self.tokenizer.pad_token_id, "left")
        mask = pad_sequence([torch.ones_like(row) for row in ids], True, 0, "left")
        return prompts.to(self.model.device), mask.to(self.model.device)

    def log_probs(self, batch: Batch, model: Any = None) -> Tensor:
        """log pi of each response token at the sampling temperature, float32 [R, T]."""
        ids, mask = torch.cat([batch["prompts"], batch["responses"]], 1), batch["attention_mask"]
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
        kept = batch["responses"].shape[1] + 1
        logits = (model or self.model)(**inputs, logits_to_keep=kept, use_cache=False).logits
        logits = logits[:, :-1].float() / self.temperature
        return logits.gather(-1, batch["responses"][..., None])[..., 0] - logits.logsumexp(-1)

    def texts(self, batch: Batch) -> list[str]:
        """The responses, special tokens left out."""
        return self.tokenizer.batch_decode(batch["responses"], skip_special_tokens=True)


def rewards_of(texts: Sequence[str], rows: Sequence[Row], options: Mapping[str, Any]) -> list[Row]:
    """The reward function's answer for each text; several texts a row where there are more of them."""
    of = [row for row in rows for _ in range(len(texts) // len(rows))]
    asked = [(row["reward_model"]["ground_truth"], row["extra_info"]) for row in of]
    return [compute_score(of[i]["data_source"], t, *asked[i], **options) for i, t in enumerate(texts)]


def group_advantages(rewards: Tensor) -> Tensor:
    """GRPO: (r - mean) / (std + 1e-6) within each group, float32 [G, n]."""
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)


def identity(row: Row) -> replay.PromptIdentity:
    """How replay knows a row's prompt."""
    index, mode = int(row["extra_info"]["index"]), row["extra_info"]["mode"]
    return replay.PromptIdentity(index, row["reward_model"]["ground_truth"]["type"], mode)


def batches(rows: Sequence[Row], size: int, seed: int) -> Iterator[list[Row]]:
    """Endless epochs in a random order of their own, without each epoch's incomplete last batch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator).tolist()
        for start in range(0, len(rows) - size + 1, size):
            yield [rows[place] for place in order[start : start + size]]


if __name__ == "__main__":
    from recipe.rerule.training.minimal_command import main

    main()
