"""RULE and ReRULE in one process and one file: GRPO on a refusal boundary, with replay of rollout groups.

The shortest statement of the method: the same replay and reward packages as the verl recipe, transformers for
generation, plain torch for the updates. One model, no parallelism, float32. It serves studies that need many
runs of a small model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from recipe.rerule.replay import (
    PromptIdentity,
    Replay,
    ReplayConfig,
    RolloutGroup,
    collate,
    is_hard,
    log_ratios,
    low_var_kl,
    replay_loss,
    token_mean,
    uncollate,
    weigh,
)
from reward.score import compute_score

Row = dict[str, Any]
Metrics = dict[str, float]
DUAL_CLIP = 3.0
"""verl's clip_ratio_c: bound on the ratio where the advantage is negative."""


@dataclass(frozen=True)
class Settings:
    """One run. Defaults are RULE's, and `experiment=tiny`'s sizes.

    steps: training steps; not used where compute is given, and the run goes on until it has cost that much
    (see `Cost`). prompts x rollouts responses a step, of at most response_limit tokens.
    hard_below: mean reward below which measures count a group as hard, whatever replay's threshold is.
    reward: options of `reward.score.compute_score`.
    idea: what `trial` changes of the loop, see `ideas.IDEAS`.
    """

    steps: int = 34
    compute: float | None = None
    prompts: int = 16
    rollouts: int = 8
    response_limit: int = 24
    temperature: float = 1.0
    learning_rate: float = 2e-4
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.3
    kl_coef: float = 0.01
    seed: int = 0
    hard_below: float = 0.6
    reward: Mapping[str, Any] = field(default_factory=dict)
    idea: str = ""
    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(enable=False))


@dataclass
class Cost:
    """Tokens through the model, a forward pass as 1 and a backward pass as 2.

    As the verl recipe does it: generation, old and reference log-probs 1 each, an update 3.
    """

    tokens: float = 0.0

    def rollout(self, tokens: int) -> None:
        """Generation and both log-probs of so many tokens, prompts and responses."""
        self.tokens += 3 * tokens

    def update(self, tokens: int) -> None:
        """One update on so many tokens."""
        self.tokens += 3 * tokens


class GumbelNoise(LogitsProcessor):
    """Makes the largest score a sample of softmax(scores / temperature), by independent Gumbel noise.

    In place of `torch.multinomial`, which divides float32 probabilities by float32 exponentials: noise and
    sum are float64, so that the study's chance is exact beyond doubt.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [R, V] with noise, float64."""
        uniform = torch.rand(scores.shape, dtype=torch.float64, device=scores.device)
        return scores.double() / self.temperature - (-uniform.log()).log()


class Policy:
    """A model with its tokenizer: samples responses and gives their log-probs."""

    def __init__(self, model: Any, tokenizer: Any, response_limit: int, temperature: float) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.response_limit, self.temperature = response_limit, temperature

    def encode(self, rows: Sequence[Row]) -> Any:
        """The rows' prompts in the chat template: input_ids and attention_mask, int64 [G, P], left-padded."""
        texts = [
            self.tokenizer.apply_chat_template(
                list(row["prompt"]), tokenize=False, add_generation_prompt=True
            )
            for row in rows
        ]
        return self.tokenizer(
            texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
        ).to(self.model.device)

    def respond(self, rows: Sequence[Row], copies: int, greedy: bool = False) -> dict[str, Tensor]:
        """`copies` responses to each row's prompt, as padded rows on the model's device.

        Returns:
            prompts int64 [R, P] (left-padded), responses int64 [R, T] (right-padded), attention_mask int64
            [R, P + T] and response_mask int64 [R, T], rows of one prompt as neighbours.
        """
        encoded = self.encode(rows)
        noise = [] if greedy else [GumbelNoise(self.temperature)]
        with torch.no_grad():
            ids = self.model.generate(
                input_ids=encoded.input_ids.repeat_interleave(copies, 0),
                attention_mask=encoded.attention_mask.repeat_interleave(copies, 0),
                max_new_tokens=self.response_limit,
                pad_token_id=self.tokenizer.pad_token_id,
                do_sample=False,
                logits_processor=LogitsProcessorList(noise),
            )
        width = encoded.input_ids.shape[1]
        responses = ids[:, width:]
        ended = responses == self.tokenizer.eos_token_id
        mask = (ended.cumsum(1) - ended.long() == 0).long()  # the end itself belongs to the response
        prompt_mask = encoded.attention_mask.repeat_interleave(copies, 0)
        return {
            "prompts": ids[:, :width],
            "responses": responses.where(mask.bool(), self.tokenizer.pad_token_id),
            "attention_mask": torch.cat([prompt_mask, mask], 1),
            "response_mask": mask,
        }

    def log_probs(self, batch: dict[str, Tensor], model: Any = None) -> Tensor:
        """log pi of each response token at the sampling temperature, float32 [R, T]."""
        ids = torch.cat([batch["prompts"], batch["responses"]], 1)
        mask = batch["attention_mask"]
        length = batch["responses"].shape[1]
        logits = (model or self.model)(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            logits_to_keep=length + 1,
            use_cache=False,
        ).logits[:, :-1].float() / self.temperature
        chosen = logits.gather(-1, batch["responses"][..., None])[..., 0]
        return chosen - logits.logsumexp(-1)

    def texts(self, batch: dict[str, Tensor]) -> list[str]:
        """The responses, special tokens left out."""
        return self.tokenizer.batch_decode(batch["responses"], skip_special_tokens=True)


def rewards_of(texts: Sequence[str], rows: Sequence[Row], options: Mapping[str, Any]) -> list[Row]:
    """The reward function's answer for each text; several texts a row where there are more of them."""
    copies = len(texts) // len(rows)
    return [
        compute_score(
            rows[i // copies]["data_source"],
            text,
            rows[i // copies]["reward_model"]["ground_truth"],
            **options,
        )
        for i, text in enumerate(texts)
    ]


def group_advantages(rewards: Tensor) -> Tensor:
    """GRPO: (r - mean) / (std + 1e-6) within each group, float32 [G, n]."""
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)


def ppo_loss(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, settings: Settings) -> Tensor:
    """PPO's clipped loss with verl's dual clip, mean over tokens. At the first update the ratio is 1."""
    ratio = torch.where(mask.bool(), log_probs - old, 0.0).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    worst = torch.maximum(-advantages * ratio, -advantages * clipped)
    bounded = torch.where(advantages < 0, torch.minimum(worst, -advantages * DUAL_CLIP), worst)
    return token_mean(bounded, mask)


class Run:
    """A run of stage 2: `step` by `step`, with everything a study asks of it."""

    def __init__(self, model: Any, reference: Any, tokenizer: Any, settings: Settings) -> None:
        self.settings, self.reference, self.cost = settings, reference, Cost()
        self.policy = Policy(model, tokenizer, settings.response_limit, settings.temperature)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), settings.learning_rate, (0.9, 0.999), weight_decay=settings.weight_decay
        )
        self.replay = Replay(settings.replay) if settings.replay.enable else None

    def goes_on(self, step: int) -> bool:
        """Whether a step follows this one: by compute where that is given, else by number."""
        limit = self.settings.compute
        return step < self.settings.steps if limit is None else self.cost.tokens < limit

    def step(self, rows: Sequence[Row], step: int) -> tuple[Metrics, list[RolloutGroup]]:
        """One training step on these prompts: respond, update, offer, and where the gate is open replay."""
        start = time.perf_counter()
        batch = self.policy.respond(rows, self.settings.rollouts)
        # Of one pass: old log-probs, and the log-probs that the first update differentiates.
        log_probs = self.policy.log_probs(batch)
        groups, parts = self._rollouts(batch, log_probs.detach(), rows, step)
        self._update(batch, log_probs)
        metrics = reward_metrics(groups, parts, self.settings.hard_below)
        if self.replay is not None:
            self.replay.offer(groups, step)
            for _ in range(self.settings.replay.updates_per_step):
                metrics |= self._extra_update(self.replay.draw(step), batch)
        return metrics | {"compute": self.cost.tokens, "seconds": time.perf_counter() - start}, groups

    def _rollouts(
        self, batch: dict[str, Tensor], log_probs: Tensor, rows: Sequence[Row], step: int
    ) -> tuple[list[RolloutGroup], list[Row]]:
        """The batch's groups and parts of the reward; log-probs and advantages join the batch."""
        batch["old_log_probs"] = log_probs
        with torch.no_grad():
            batch["ref_log_prob"] = self.policy.log_probs(batch, self.reference)
        self.cost.rollout(int(batch["attention_mask"].sum()))
        parts = rewards_of(self.policy.texts(batch), rows, self.settings.reward)
        scores = torch.tensor([part["score"] for part in parts]).view(len(rows), -1)
        advantages = group_advantages(scores).flatten().to(self.policy.model.device)
        batch["advantages"] = advantages[:, None] * batch["response_mask"]
        groups = uncollate(
            [identity(row) for row in rows],
            step,
            rewards=scores.flatten(),
            ref_log_probs=batch["ref_log_prob"],
            **{
                name: batch[name]
                for name in (
                    "prompts",
                    "responses",
                    "attention_mask",
                    "response_mask",
                    "old_log_probs",
                    "advantages",
                )
            },
        )
        return groups, parts

    def _update(self, batch: dict[str, Tensor], log_probs: Tensor) -> float:
        """The on-policy update; `log_probs` with gradient."""
        return self._descend(self._loss(batch, log_probs), batch)

    def _loss(self, batch: dict[str, Tensor], log_probs: Tensor) -> Tensor:
        """RULE's: the clipped loss and KL to the reference."""
        mask = batch["response_mask"]
        loss = ppo_loss(log_probs, batch["old_log_probs"], batch["advantages"], mask, self.settings)
        return loss + self._kl(log_probs, batch)

    def _kl(self, log_probs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        mask = batch["response_mask"]
        return self.settings.kl_coef * token_mean(
            torch.where(mask.bool(), low_var_kl(log_probs, batch["ref_log_prob"]), 0.0), mask
        )

    def _extra_update(self, drawn: list[RolloutGroup], batch: dict[str, Tensor]) -> Metrics:
        """A replay update, or its control; nothing while the gate is closed."""
        if not drawn:
            return {}
        if self.settings.replay.update == "on_policy":
            return {
                "replay/grad_norm": self._update(batch, self.policy.log_probs(batch)),
                "replay/updates": 1.0,
            }
        return self._replay_update(drawn)

    def _replay_update(self, drawn: list[RolloutGroup]) -> Metrics:
        """One step on the drawn groups."""
        loss, batch, moments = self._replay_loss(drawn)
        return moments | {
            "replay/grad_norm": self._descend(loss, batch),
            "replay/updates": 1.0,
            "replay/signal_share": sum(group.has_signal for group in drawn) / len(drawn),
        }

    def _replay_loss(self, drawn: list[RolloutGroup]) -> tuple[Tensor, dict[str, Tensor], Metrics]:
        """`replay_loss` of the drawn groups weighed as one batch; that batch, and its ratios' moments."""
        config, device = self.settings.replay, self.policy.model.device
        batch = {
            name: plane.to(device)
            for name, plane in collate(drawn, self.policy.tokenizer.pad_token_id).items()
        }
        log_probs, mask = self.policy.log_probs(batch), batch["response_mask"]
        weight, moments = self._weigh(batch, log_ratios(log_probs, batch["old_log_probs"], mask))
        loss = replay_loss(
            log_probs,
            weight,
            batch["advantages"],
            mask,
            token_mean,
            ref_log_probs=batch["ref_log_prob"] if config.use_kl_loss else None,
            kl_coef=self.settings.kl_coef if config.use_kl_loss else 0.0,
            kl=low_var_kl,
        )
        return loss.total, batch, moments

    def _weigh(self, batch: dict[str, Tensor], log_ratio: Tensor) -> tuple[Tensor, Metrics]:
        """The weights [R, T] of a replay update's tokens, and what there is to log of their ratios."""
        return weigh(log_ratio, batch["response_mask"], self.settings.replay.importance)

    def _descend(self, loss: Tensor, batch: dict[str, Tensor]) -> float:
        """One optimiser step; returns the gradient's norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.settings.grad_clip)
        self.optimizer.step()
        self.cost.update(int(batch["attention_mask"].sum()))
        return float(norm)


def identity(row: Row) -> PromptIdentity:
    """How replay knows a row's prompt."""
    info = row["extra_info"]
    return PromptIdentity(int(info["index"]), row["reward_model"]["ground_truth"]["type"], info["mode"])


def reward_metrics(groups: Sequence[RolloutGroup], parts: Sequence[Row], threshold: float) -> Metrics:
    """Mean reward by side, and the shares of groups that are hard and that carry a gradient."""
    metrics = {
        "hard_share": mean([is_hard(group.mean_reward, threshold) for group in groups]),
        "signal_share": mean([group.has_signal for group in groups]),
        "refused": mean([part["refused"] for part in parts]),
    }
    for side in ("forget", "retain"):
        own = [group.mean_reward for group in groups if group.side == side]
        if own:
            metrics[f"reward/{side}"] = mean(own)
    return metrics


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; NaN where there are none."""
    return sum(values) / len(values) if values else float("nan")


def batches(rows: Sequence[Row], size: int, seed: int) -> Iterator[list[Row]]:
    """Endless epochs in a random order of their own, without each epoch's incomplete last batch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator).tolist()
        for start in range(0, len(rows) - size + 1, size):
            yield [rows[place] for place in order[start : start + size]]
