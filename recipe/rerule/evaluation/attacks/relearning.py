"""Relearning: train a model a little on some rows, and keep its states at some steps.

Protocol: AdamW without weight decay, a constant rate after WARMUP steps below it (step s of them has s /
(WARMUP + 1) of the rate), gradients clipped to norm 1, the mean over the answers' tokens as loss. Prompts are
those of evaluation, and an answer ends with the end of its turn. Every step takes the next rows of random
permutations of all rows. Dropout is off. Checkpoints are states of one run, so that step 8 of 64 is the same
model as step 8 of 8. Either all weights are trained, or a LoRA adapter on all linear layers of the decoder,
which needs peft and is merged into the written weights.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW

from recipe.rerule.evaluation.attacks.rows import TrainingRow
from recipe.rerule.evaluation.attacks.weights import model_folder
from recipe.rerule.process import Progress
from recipe.rerule.runs.weights import read_weights
from recipe.rerule.training.prompts import prompt_ids, turn_ids
from recipe.rerule.training.template_arguments import Template, bind

WARMUP = 2
_MASKED = -100
_LARGEST_NORM = 1.0


@dataclass(frozen=True)
class Lora:
    """An adapter of this rank on all linear layers of the decoder, scaled by alpha / rank."""

    rank: int = 16
    alpha: int = 32


@dataclass(frozen=True)
class Settings:
    """One run.

    Attributes:
        learning_rate: after warm-up; 0 changes nothing.
        batch_size: rows a step; all rows where there are fewer.
        seed: of the order of the rows, and of the adapter's first values.
        lora: None trains all weights.
        dtype: in which weights are loaded, trained and written. In bfloat16 most updates of a full training
            are lost to rounding.
        template: arguments of the chat template.
    """

    learning_rate: float
    batch_size: int = 8
    seed: int = 0
    lora: Lora | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    template: Template = ()


def relearn(
    model: Any, tokenizer: Any, rows: Sequence[TrainingRow], settings: Settings, at: Sequence[int]
) -> Iterator[tuple[int, float]]:
    """Train `model` in place; yields (step, loss of that step) each time that a step of `at` is reached.

    Where an adapter is to be trained, the model is one that `adapted` gave.

    Args:
        at: ascending steps from 1 on.

    Raises ValueError: the loss is not a finite number, or a row cannot be turned into tokens.
    """
    encoded = [_encoded(tokenizer, row) for row in rows]
    order = _order(len(encoded), settings.seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamW(trained, settings.learning_rate, weight_decay=0.0)
    model.eval()
    with Progress("relearning", at[-1], "steps") as progress:
        for step in range(1, at[-1] + 1):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1.0, step / (WARMUP + 1))
            drawn = [encoded[next(order)] for _ in range(min(settings.batch_size, len(encoded)))]
            loss = _loss(model, drawn)
            if not bool(torch.isfinite(loss)):
                raise ValueError(f"the loss of step {step} is {loss.item()}; give a lower learning rate")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, _LARGEST_NORM)
            optimizer.step()
            progress.advance()
            progress.doing(f"loss {loss.item():.3f}")
            if step in at:
                yield step, loss.item()


def adapted(model: Any, lora: Lora, seed: int) -> Any:
    """The model with a fresh adapter, whose parameters alone are trained. Raises ValueError without peft."""
    if importlib.util.find_spec("peft") is None:
        raise ValueError("relearning with LoRA needs the package peft; install it, or train all weights")
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules="all-linear",
        task_type="CAUSAL_LM",
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def relearn_folders(
    model: Path,
    rows: Sequence[TrainingRow],
    settings: Settings,
    out: Mapping[int, Path],
) -> None:
    """Train the model of a folder, and write the state of each step as an ordinary model folder.

    The folder's record has the protocol, the names of the rows and the loss of its step. The device is an
    accelerator where torch sees one.

    Args:
        out: the folder of each step.

    Raises:
        ValueError: as `relearn` and `adapted`.
        WeightsError: the folder holds no whole model.
        OSError: a file cannot be read or written.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read_weights(model, "trained further")
    tokenizer = bind(AutoTokenizer.from_pretrained(model), settings.template)
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, settings.dtype))
    if torch.accelerator.is_available():
        trained.to(torch.accelerator.current_accelerator())
    if settings.lora is not None:
        trained = adapted(trained, settings.lora, settings.seed)
    base = trained if settings.lora is None else trained.get_base_model()
    protocol = asdict(settings) | {"template": dict(settings.template), "warmup": WARMUP}
    for step, loss in relearn(trained, tokenizer, rows, settings, sorted(out)):
        record = {"model": str(model), "rows": [row.name for row in rows], **protocol}
        with model_folder(out[step], record | {"step": step, "loss": loss}) as folder:
            base.save_pretrained(folder, state_dict=whole_weights(trained))
            tokenizer.save_pretrained(folder)


def whole_weights(model: Any) -> dict[str, Tensor]:
    """A model's weights by name, on the CPU; an adapter is merged into them, and the model is not changed."""
    if not hasattr(model, "get_base_model"):
        return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    base = model.get_base_model()
    layers = {name: layer for name, layer in base.named_modules() if hasattr(layer, "get_delta_weight")}
    weights = {}
    for name, tensor in base.state_dict().items():
        module, wrapped, part = name.partition(".base_layer.")
        if ".lora_" in name:
            continue
        if wrapped and part == "weight":
            tensor = (tensor.float() + layers[module].get_delta_weight("default").float()).to(tensor.dtype)
        weights[f"{module}.{part}" if wrapped else name] = tensor.detach().cpu()
    return weights


def _encoded(tokenizer: Any, row: TrainingRow) -> tuple[Tensor, Tensor]:
    """Token ids and labels of a row, [T] each: the prompt is masked, the answer ends its turn."""
    messages = [*row.messages, {"role": "assistant", "content": row.answer}]
    prompt = prompt_ids(tokenizer, row.messages, row.raw)
    answer = turn_ids(tokenizer, messages, len(row.messages), row.raw)
    return torch.tensor([*prompt, *answer]), torch.tensor([_MASKED] * len(prompt) + answer)


def _order(count: int, seed: int) -> Iterator[int]:
    """Numbers of rows without end: one random permutation after another."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).tolist()


def _loss(model: Any, rows: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean over the answers' tokens of a batch, padded on the right."""
    ids, labels = zip(*rows, strict=True)
    mask = pad_sequence([torch.ones_like(one) for one in ids], True, 0).to(model.device)
    padded = pad_sequence(list(ids), True, 0).to(model.device)
    wanted = pad_sequence(list(labels), True, _MASKED).to(model.device)[:, 1:].flatten()
    logits = model(input_ids=padded, attention_mask=mask, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), wanted, ignore_index=_MASKED)
