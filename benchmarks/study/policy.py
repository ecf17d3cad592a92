"""The study's policy: `minimal.Policy` with exact noise, and without work that is done twice or on padding.

On one core, most of a run's time is arithmetic. More than half of a padded batch is padding, and the
responses of a group have one prompt. What is left out here changes nothing but the rounding: the same noise
is drawn, in the same order, as for whole batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

from data_prep.contract import Row
from recipe.rerule import minimal
from recipe.rerule.minimal import Batch

LOOP = "prompts once, without padding"
"""Kept with a run: its seconds are not those of a run of the first loop, which computed padding too."""
STAGE = 8
"""Tokens after which responses that have ended leave the batch."""
TOGETHER = 16
"""Responses of similar length whose log-probs are computed as one batch."""


class GumbelNoise(LogitsProcessor):
    """Makes the largest score a sample of softmax(scores / temperature), by independent Gumbel noise.

    In place of `torch.multinomial`, which divides float32 probabilities by float32 exponentials: noise and
    sum are float64, so that the study's chance is exact beyond doubt.

    Attributes:
        rows: how many responses a token is drawn for, ended ones included.
        going_on: int64, which of these are in the batch; None where all are.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.rows = 0
        self.going_on: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [R, V] with noise, float64."""
        rows = scores.shape[0] if self.going_on is None else self.rows
        uniform = torch.rand((rows, scores.shape[1]), dtype=torch.float64, device=scores.device)
        if self.going_on is not None:
            uniform = uniform[self.going_on]
        return scores.double() / self.temperature - (-uniform.log()).log()


class Policy(minimal.Policy):
    """Samples by Gumbel noise; reads each prompt once, and leaves out ended responses and padding."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.noise = GumbelNoise(self.temperature)
        self.sampling = {"do_sample": False, "logits_processor": LogitsProcessorList([self.noise])}

    def respond(self, rows: Sequence[Row], copies: int, greedy: bool = False) -> Batch:
        """As `minimal.Policy.respond`."""
        prompts, prompt_mask = self.encode(rows)
        with torch.no_grad():
            cache = DynamicCache(self._read(prompts, prompt_mask, self.model))
            cache.batch_repeat_interleave(copies)
            prompts, prompt_mask = (plane.repeat_interleave(copies, 0) for plane in (prompts, prompt_mask))
            responses = self._written(prompts, prompt_mask, cache, greedy)
        return self.masked(prompts, prompt_mask, responses)

    def log_probs(self, batch: Batch, model: Any = None) -> Tensor:
        """As `minimal.Policy.log_probs`, for prompts of two tokens or more; 0 after a response's end."""
        model = model or self.model
        prompts, mask, prompt_of = different_prompts(batch)
        read = self._read(prompts, mask, model)
        width = batch["responses"].shape[1]
        order = batch["response_mask"].sum(1).argsort(stable=True)
        parts = []
        for rows in order.split(TOGETHER):
            places = prompt_of[rows]
            cache = DynamicCache([(keys[places], values[places]) for keys, values in read])
            found = self._after_prompts(batch, rows, cache, model)
            parts.append(pad(found, (0, width - found.shape[1])))
        return torch.cat(parts)[order.argsort()]

    def _after_prompts(self, batch: Batch, rows: Tensor, cache: DynamicCache, model: Any) -> Tensor:
        """log pi of these rows' response tokens [R, T]; `cache` has their prompts without the last token."""
        mask = batch["response_mask"][rows]
        mask = mask[:, : max(1, int(mask.sum(1).max()))]
        prompts, responses = batch["prompts"][rows], batch["responses"][rows, : mask.shape[1]]
        every = torch.cat([batch["attention_mask"][rows, : prompts.shape[1]], mask], 1)[:, :-1]
        inputs = {
            "input_ids": torch.cat([prompts[:, -1:], responses[:, :-1]], 1),
            "attention_mask": every,
            "position_ids": (every.cumsum(1) - 1).clamp(min=0)[:, prompts.shape[1] - 1 :],
        }
        logits = model(**inputs, past_key_values=cache).logits.float() / self.temperature
        return (logits.gather(-1, responses[..., None])[..., 0] - logits.logsumexp(-1)) * mask

    def _read(self, prompts: Tensor, mask: Tensor, model: Any) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the prompts [G, P] without their last token, layer by layer."""
        cache = DynamicCache()
        ids, mask = prompts[:, :-1], mask[:, :-1]
        places = (mask.cumsum(1) - 1).clamp(min=0)
        model(
            input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache, logits_to_keep=1
        )
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _written(self, prompts: Tensor, prompt_mask: Tensor, cache: DynamicCache, greedy: bool) -> Tensor:
        """Responses int64 [R, T] to the prompts [R, P], by stages, each of those that have not ended."""
        limit = self.ends["max_new_tokens"]
        responses = prompts.new_full((len(prompts), limit), self.tokenizer.pad_token_id)
        going_on, ids, mask = torch.arange(len(prompts), device=prompts.device), prompts, prompt_mask
        done = 0
        while done < limit and len(going_on):
            self.noise.rows, self.noise.going_on = len(prompts), going_on
            ids = self._stage(ids, mask, cache, min(STAGE, limit - done), greedy)
            new = ids[:, prompts.shape[1] + done :]
            responses[going_on, done : done + new.shape[1]] = new
            done += new.shape[1]
            left = (new != self.tokenizer.eos_token_id).all(1).nonzero()[:, 0]
            going_on, ids = going_on[left], ids[left]
            mask = pad(mask[left], (0, new.shape[1]), value=1)
            cache.batch_select_indices(left)
        return responses[:, :done]

    def _stage(self, ids: Tensor, mask: Tensor, cache: DynamicCache, tokens: int, greedy: bool) -> Tensor:
        """`ids` with at most so many further tokens; a response that ends is filled up with padding."""
        how = {"do_sample": False} if greedy else self.sampling
        ends = self.ends | {"max_new_tokens": tokens}
        found: Tensor = self.model.generate(
            input_ids=ids, attention_mask=mask, past_key_values=cache, **how, **ends
        )
        return found


def different_prompts(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The batch's prompts int64 [G, P], each once, with their masks; and int64 [R], which one a row has."""
    width = batch["prompts"].shape[1]
    both = torch.cat([batch["prompts"], batch["attention_mask"][:, :width]], 1)
    found, prompt_of = torch.unique(both, dim=0, return_inverse=True)
    return found[:, :width], found[:, width:], prompt_of
