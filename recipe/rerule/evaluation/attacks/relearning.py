"""Attack by relearning: train an unlearned model a little, and look at what comes back.

Protocol: AdamW without weight decay, a constant rate after WARMUP steps below it (step s of them has s /
(WARMUP + 1) of the rate), gradients clipped to norm 1, the mean over the answers' tokens as loss. Prompts are
those of evaluation, and an answer ends with the end of its turn. Every step takes the next rows of random
permutations of all rows. Dropout is off. Checkpoints are states of one run, so that step 8 of 64 is the same
model as step 8 of 8. Either all weights are trained, or a LoRA adapter on all linear layers of the decoder,
which needs peft and is merged into the written weights.

Rows come from `relearning_rows`. One that holds an answer that is scored afterwards is refused (`leaks`).
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW

from recipe.rerule import io
from recipe.rerule.evaluation.attacks.leaks import refuse_leaks
from recipe.rerule.evaluation.attacks.relearning_rows import Row
from recipe.rerule.io import Kind, check_apart, check_writable, new_folder, stamp_folder
from recipe.rerule.process import Progress
from recipe.rerule.runs.weights import read_weights
from recipe.rerule.training.prompts import prompt_ids, turn_ids
from recipe.rerule.training.template_arguments import Template, bind

KIND = Kind("rerule/relearned_model", "relearning.json")
"""The folder of one checkpoint; its marker is the record of the protocol."""
WARMUP = 2
_MASKED = -100
_LARGEST_NORM = 1.0


class RelearningError(ValueError):
    """Relearning cannot begin or go on; the message is one line."""


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

    Raises:
        RelearningError: a rate that is negative or not finite, or a batch without rows.
    """

    learning_rate: float
    batch_size: int = 8
    seed: int = 0
    lora: Lora | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    template: Template = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate >= 0):
            raise RelearningError(f"learning_rate is {self.learning_rate}; give a number from 0 on")
        if self.batch_size < 1:
            raise RelearningError(f"batch_size is {self.batch_size}; at least 1 is needed")


def relearn(
    model: Any, tokenizer: Any, rows: Sequence[Row], settings: Settings, at: Sequence[int]
) -> Iterator[tuple[int, float]]:
    """Train `model` in place; yields (step, loss of that step) each time that a step of `at` is reached.

    Step 0, before any training, has the loss NaN. Where an adapter is to be trained, the model is one that
    `adapted` gave.

    Raises:
        RelearningError: there are no rows or steps, or the loss is not a finite number.
        PromptError: a row cannot be turned into tokens.
    """
    wanted = _steps(at)
    encoded = [_encoded(tokenizer, row) for row in rows]
    batches = _batches(encoded, settings)
    optimizer = AdamW(_trained(model), settings.learning_rate, weight_decay=0.0)
    model.eval()
    with Progress("relearning", wanted[-1], "steps") as progress:
        if wanted[0] == 0:
            yield 0, math.nan
        for step in range(1, wanted[-1] + 1):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1.0, step / (WARMUP + 1))
            loss = _update(model, optimizer, next(batches), step)
            progress.advance()
            progress.doing(f"loss {loss:.3f}")
            if step in wanted:
                yield step, loss


def adapted(model: Any, lora: Lora, seed: int) -> Any:
    """The model with a fresh adapter, whose parameters alone are trained.

    Raises:
        RelearningError: peft is not installed.
    """
    if importlib.util.find_spec("peft") is None:
        raise RelearningError("relearning with LoRA needs the package peft; install it, or train all weights")
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def relearn_folder(
    model: Path,
    rows: Sequence[Row],
    scored: Sequence[str],
    settings: Settings,
    at: Sequence[int],
    out: Path,
    overwrite: bool = False,
) -> dict[int, Path]:
    """Train the model of a folder, and write each checkpoint as an ordinary model folder OUT/step_N.

    Each is whole or absent after a kill. relearning.json in it has the protocol, the names of the rows and
    the loss of its step. The device is an accelerator where torch sees one.

    Args:
        scored: the answers that will be scored, which no row may hold.
        at: steps to write, 0 for the model before training.

    Returns:
        The folder of each step.

    Raises:
        LeakError: a row holds a scored answer.
        RelearningError: as `relearn` and `adapted`.
        WeightsError: the folder holds no whole model.
        ValueError: a folder may not be written.
        OSError: a file cannot be read or written.
    """
    from transformers import AutoTokenizer

    folders = {step: out / f"step_{step}" for step in _steps(at)}
    refuse_leaks(rows, scored)
    for folder in folders.values():
        check_writable(folder, overwrite, KIND)
        check_apart(folder, ("the model", model))
    read_weights(model, "trained further")
    tokenizer = bind(AutoTokenizer.from_pretrained(model), settings.template)
    trained = _load(model, settings)
    for step, loss in relearn(trained, tokenizer, rows, settings, at):
        with new_folder(folders[step], overwrite, KIND) as folder:
            _save(trained, tokenizer, folder)
            record = _record(model, rows, settings) | {"step": step, "loss": None if step == 0 else loss}
            content = stamp_folder(KIND, folder) | record
            io.write(folder / KIND.marker, json.dumps(content, indent=1).encode() + b"\n")
            io.flush_tree(folder)
    return folders


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


def _steps(at: Sequence[int]) -> list[int]:
    if not at or min(at) < 0:
        raise RelearningError(f"the steps are {list(at)}; give at least one, and none below 0")
    return sorted(set(at))


def _encoded(tokenizer: Any, row: Row) -> tuple[Tensor, Tensor]:
    """Token ids and labels of a row, [T] each: the prompt is masked, the answer ends its turn."""
    messages = [*row.messages, {"role": "assistant", "content": row.answer}]
    prompt = prompt_ids(tokenizer, row.messages, row.raw)
    answer = turn_ids(tokenizer, messages, len(row.messages), row.raw)
    return torch.tensor([*prompt, *answer]), torch.tensor([_MASKED] * len(prompt) + answer)


def _batches(encoded: Sequence[tuple[Tensor, Tensor]], settings: Settings) -> Iterator[dict[str, Tensor]]:
    """Batches without end, padded on the right."""
    if not encoded:
        raise RelearningError("there are no rows to train on")
    order = _order(len(encoded), settings.seed)
    while True:
        chosen = [encoded[next(order)] for _ in range(min(settings.batch_size, len(encoded)))]
        ids, labels = zip(*chosen, strict=True)
        yield {
            "input_ids": pad_sequence(list(ids), True, 0),
            "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], True, 0),
            "labels": pad_sequence(list(labels), True, _MASKED),
        }


def _order(count: int, seed: int) -> Iterator[int]:
    """Numbers of rows without end: one random permutation after another."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).tolist()


def _trained(model: Any) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _update(model: Any, optimizer: AdamW, batch: Mapping[str, Tensor], step: int) -> float:
    """One optimiser step; returns the loss before it. Raises RelearningError."""
    batch = {name: plane.to(model.device) for name, plane in batch.items()}
    labels = batch["labels"][:, 1:].flatten()
    logits = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
    ).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels, ignore_index=_MASKED)
    if not bool(torch.isfinite(loss)):
        raise RelearningError(f"the loss of step {step} is {loss.item()}; give a lower learning rate")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(_trained(model), _LARGEST_NORM)
    optimizer.step()
    return loss.item()


def _load(folder: Path, settings: Settings) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, settings.dtype))
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    return model if settings.lora is None else adapted(model, settings.lora, settings.seed)


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    """An ordinary model folder."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    base.save_pretrained(folder, state_dict=whole_weights(model))
    tokenizer.save_pretrained(folder)


def _record(model: Path, rows: Sequence[Row], settings: Settings) -> dict[str, Any]:
    protocol = asdict(settings) | {"template": dict(settings.template)}
    return {"model": str(model), "rows": [row.name for row in rows], "warmup": WARMUP, **protocol}
