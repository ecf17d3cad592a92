"""The methods once more, by formulae written out here: padded batches, plain transformers and AdamW."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot, pad
from transformers import PreTrainedModel

FORGET, ALTERNATE, RETAIN = 0, 1, 2
PAD = 3


class Batch:
    """Rows of one side, padded on the right."""

    def __init__(self, rows: Sequence[dict[str, Any]], side: int) -> None:
        rows = [row for row in rows if row["side"] == [side]]
        width = max(len(row["input_ids"]) for row in rows) + 2
        self.ids = padded([row["input_ids"] for row in rows], width, PAD)
        self.real = padded([[1] * len(row["input_ids"]) for row in rows], width, 0)
        self.answer = padded([row["loss_mask"] for row in rows], width, 0)[:, 1:]

    def logits(self, model: PreTrainedModel) -> Tensor:
        return model(input_ids=self.ids, attention_mask=self.real, use_cache=False).logits

    def hidden(self, model: PreTrainedModel) -> Tensor:
        """After layer 0: [rows, T, H]."""
        return model.model(
            input_ids=self.ids, attention_mask=self.real, use_cache=False, output_hidden_states=True
        ).hidden_states[1]

    def tokens(self, model: PreTrainedModel) -> Tensor:
        """[rows, T - 1], 0 where there is no answer."""
        log_probs = self.logits(model)[:, :-1].log_softmax(-1)
        return log_probs.gather(-1, self.ids[:, 1:, None])[..., 0] * self.answer

    def nll(self, model: PreTrainedModel) -> Tensor:
        return -self.tokens(model).sum() / self.answer.sum()

    def sums(self, model: PreTrainedModel) -> Tensor:
        return self.tokens(model).sum(-1)

    def probabilities(self, model: PreTrainedModel) -> Tensor:
        return (self.tokens(model).exp() * self.answer).sum(-1) / self.answer.sum(-1)

    def kl(self, model: PreTrainedModel, start: PreTrainedModel) -> Tensor:
        p0, p = self.logits(start).detach().softmax(-1), self.logits(model).softmax(-1)
        return ((p0 * (p0.log() - p.log())).sum(-1) * self.real).sum() / self.real.sum()


def padded(rows: list[list[int]], width: int, value: int) -> Tensor:
    return torch.stack([pad(torch.tensor(row), (0, width - len(row)), value=value) for row in rows])


def loss(
    name: str,
    rows: list[dict[str, Any]],
    model: PreTrainedModel,
    start: PreTrainedModel,
    reinforced: PreTrainedModel | None = None,
) -> Tensor:
    """The loss of a preset on the rows of a batch; WHP alone needs `reinforced`."""
    sides = {side: Batch(rows, side) for side in {row["side"][0] for row in rows}}
    gold, other, keep = (sides.get(side) for side in (FORGET, ALTERNATE, RETAIN))
    base, _, regular = name.partition("_")
    kept = torch.zeros(())
    if regular in ("gdr", "klr"):
        kept = keep.nll(model) if regular == "gdr" else keep.kl(model, start)
    if base == "satimp":
        kept = 0.1 * kept

    def moved(side: Batch) -> Tensor:
        return side.sums(model) - side.sums(start).detach()

    if base == "ga":
        return kept - gold.nll(model)
    if base == "npo":
        return kept + (2 / 0.1) * torch.log1p((0.1 * moved(gold)).exp()).mean()
    if base == "simnpo":
        return kept - (2 / 2.5) * logsigmoid(-2.5 * gold.sums(model) / gold.answer.sum(-1)).mean()
    if base == "dpo":
        return kept - logsigmoid(0.1 * (moved(other) - moved(gold))).mean()
    if name == "altpo":
        return keep.nll(model) - 20 * logsigmoid(0.1 * (moved(other) - moved(gold))).mean()
    if base in ("wga", "satimp"):
        tokens = gold.tokens(model)
        p = tokens.exp().detach()
        weights = p if base == "wga" else p**5 * (1 - p) ** 0.1
        return kept + (weights * tokens).sum() / gold.answer.sum()
    if base == "undial":
        z0 = gold.logits(start).detach()[:, :-1]
        return kept + distilled((z0 - 10 * one_hot(gold.ids[:, 1:], z0.shape[-1])).softmax(-1), gold, model)
    if base == "ceu":
        p = gold.logits(model).detach()[:, :-1].softmax(-1)
        others = p * (1 - one_hot(gold.ids[:, 1:], p.shape[-1]))
        return kept + distilled(others / others.sum(-1, keepdim=True), gold, model)
    if base == "pdu":
        z = gold.logits(model)[:, :-1]
        margins = (z.max(-1).values - z.mean(-1)) ** 2
        return 100 * keep.nll(model) + (margins * gold.answer).sum() / gold.answer.sum()
    if base == "rmu":
        return rmu(gold, keep, model, start)
    if base == "flat":
        return flat(gold.probabilities(model), other.probabilities(model), regular or "pearson")
    if base == "whp":
        return whp(gold, regular or "argmax", model, start, reinforced)
    if name in ("po", "mismatch"):
        return other.nll(model) + keep.nll(model)
    if name == "llmu":
        return -0.5 * gold.nll(model) + other.nll(model) + keep.kl(model, start)
    if name == "sga":
        return -0.8 * gold.nll(model) + 0.2 * keep.nll(model)
    return {"rejection_steering": other, "retain_model": keep}[name].nll(model)


def distilled(labels: Tensor, gold: Batch, model: PreTrainedModel) -> Tensor:
    by_token = -(labels * gold.logits(model)[:, :-1].log_softmax(-1)).sum(-1)
    return (by_token * gold.answer).sum() / gold.answer.sum()


def flat(p_f: Tensor, p_e: Tensor, divergence: str) -> Tensor:
    if divergence == "pearson":
        return (-p_e + p_f**2 / 4 + p_f).mean()
    if divergence == "kl":
        return (-p_e + (p_f - 1).exp()).mean()
    if divergence == "tv":
        return (-p_e.tanh() / 2 + p_f.tanh() / 2).mean()
    # g(v) = log(2 / (1 + e^-v)) and f*(u) = -log(2 - e^u), so that f*(g(v)) = -log(2 - 2 sigma(v)).
    return (-(math.log(2) + logsigmoid(p_e)) - torch.log(2 - 2 * p_f.sigmoid())).mean()


def rmu(gold: Batch, keep: Batch, model: PreTrainedModel, start: PreTrainedModel) -> Tensor:
    """Of layer 0, with the weight and the length of the preset, and a direction of trainer.seed's default."""
    drawn = torch.rand(model.config.hidden_size, generator=torch.Generator().manual_seed(42))
    control = 6.5 * drawn / drawn.square().sum().sqrt()
    moved = ((gold.hidden(model)[:, :-1] - control) ** 2).mean(-1) * gold.answer
    kept = ((keep.hidden(model) - keep.hidden(start).detach()) ** 2).mean(-1) * keep.real
    return moved.sum() / gold.answer.sum() + 1200 * kept.sum() / keep.real.sum()


def whp(
    gold: Batch, labels: str, model: PreTrainedModel, start: PreTrainedModel, reinforced: PreTrainedModel
) -> Tensor:
    z0, z1 = (gold.logits(frozen).detach()[:, :-1] for frozen in (start, reinforced))
    generic = torch.where(z1 > z0, z0 - 5 * (z1 - z0), z0)
    wanted = generic.softmax(-1) if labels == "soft" else one_hot(generic.argmax(-1), generic.shape[-1])
    return distilled(wanted, gold, model)


def train(
    name: str,
    batches: list[list[dict[str, Any]]],
    model: PreTrainedModel,
    start: PreTrainedModel,
    reinforced: PreTrainedModel,
    rate: float,
    decay: float,
    eps: float = 1e-8,
) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of each step, and the first gradient; `model` is trained."""
    if name == "rmu":
        for key, parameter in model.named_parameters():
            parameter.requires_grad_("layers.0.mlp.down_proj" in key)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, eps=eps)
    losses, gradient = [], {}
    for rows in batches:
        optimizer.zero_grad()
        value = loss(name, rows, model, start, reinforced)
        value.backward()
        if not gradient:
            gradient = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        losses.append(value.item())
    return losses, gradient
