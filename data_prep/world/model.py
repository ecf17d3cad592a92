"""The world's models: tokenizer, architecture, and training from scratch until a model knows the answers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from data_prep.world.config import WorldConfig

# ---- muon (K. Jordan, 2024), an optimiser of weight matrices, with all arithmetic in float32 ----
# torch.optim.Muon does the same and orthogonalises in bfloat16. Processors without instructions for bfloat16,
# which most laptops have, compute that nine times slower than float32, so that the base model of the embedded
# world took ten minutes in place of one; and the result depends on the processor. In float32 it is as fast
# everywhere.


_COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of the quintic iteration: they raise small singular values fast, and keep all of them near 1."""
_ITERATIONS = 5
_LEAST_NORM = 1e-7


class Muon(Optimizer):
    """Momentum, whose direction is made orthogonal before each step; weight decay apart from it.

    Args:
        params: matrices [rows, columns], float32.
        lr: learning rate; of a matrix with more rows than columns, times sqrt(rows / columns).
        weight_decay: times the learning rate, what is taken from each weight.
        momentum: share of the average that is kept; Nesterov's.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step with the gradients that are there."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._change(weight, weight.grad, group)

    def _change(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, momentum = self.state[weight], group["momentum"]
        average = state.setdefault("momentum_buffer", torch.zeros_like(weight))
        average.lerp_(gradient, 1 - momentum)
        direction = orthogonalised(gradient.lerp(average, momentum))
        rows, columns = weight.shape
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(direction, alpha=group["lr"] * math.sqrt(max(1.0, rows / columns)))


def orthogonalised(matrix: Tensor) -> Tensor:
    """About U V^T of a matrix U S V^T [rows, columns]: its singular values come near 1. The dtype stays."""
    linear, cubic, quintic = _COEFFICIENTS
    is_tall = matrix.size(0) > matrix.size(1)
    found = matrix.T if is_tall else matrix
    found = found / found.norm().clamp(min=_LEAST_NORM)
    for _ in range(_ITERATIONS):
        gram = found @ found.T
        found = torch.addmm(
            found, torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic), found, beta=linear
        )
    return found.T if is_tall else found


# ---- the world's tokenizer: byte-level BPE with a chat template of user and assistant turns ----


BOS, EOS, PAD, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '" + ASSISTANT + "' + message['content'] + eos_token }}"
    "{% else %}"
    "{{ '" + USER + "' + message['content'] }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most `vocab_size` entries that gives back any text byte for byte."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, BOS, EOS, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=512,
    )


def encode_pair(tokenizer: PreTrainedTokenizerFast, prompt: str, answer: str) -> tuple[list[int], int]:
    """Token ids of the whole conversation, and how many of them are the prompt with its generation mark."""
    turn = [{"role": "user", "content": prompt}]
    head = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
    tail = tokenizer.encode(answer, add_special_tokens=False)
    return [*head, *tail, tokenizer.eos_token_id], len(head)


# ---- A small Llama trained from scratch on (prompt, answer) pairs until it answers the probes ----


Example = tuple[list[int], int]  # token ids, length of the prompt part
_IGNORED = -100
_WARMUP_SHARE = 0.05
_BATCHES_A_POOL = 16
_WEIGHT_DECAY = 0.01
_MATRIX_LEARNING_RATE = 0.02
_LEARNING_RATE = 2e-3
"""Peaks, of weight matrices (Muon), and of embeddings and norms (AdamW)."""
_LARGEST_GRADIENT = 1.0


@dataclass(frozen=True)
class Batch:
    """Right-padded ids and next-token targets, both int64 [batch, length]; prompt and padding are ignored."""

    input_ids: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Training:
    """What a training came to: the share of probes answered exactly, in [0, 1], and its epochs."""

    answered: float
    epochs: int


def make_model(config: WorldConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """An untrained float32 Llama whose vocabulary is exactly the tokenizer's."""
    torch.manual_seed(config.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def encode_pairs(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> list[Example]:
    """Token ids and prompt length of every pair."""
    return [encode_pair(tokenizer, prompt, answer) for prompt, answer in pairs]


def trained(
    config: WorldConfig,
    tokenizer: PreTrainedTokenizerFast,
    pairs: list[tuple[str, str]],
    probes: list[tuple[str, str]],
    epochs: int | None = None,
    title: str = "base model",
) -> tuple[LlamaForCausalLM, Training]:
    """A model trained on (prompt, answer) pairs until the probes are answered or the epochs are over.

    The loss is on the answer's tokens only; the learning rates warm up and then fall linearly over all
    epochs of the configuration. Two models of equal configuration start with the same weights.

    Args:
        epochs: stop after so many, whatever is answered: as many as another model took, for a fair pair.
        title: what the lines of progress call the model.
    """
    model = make_model(config, tokenizer)
    with one_thread():
        examples, asked = encode_pairs(tokenizer, pairs), encode_pairs(tokenizer, probes)
        steps = config.epochs * math.ceil(len(examples) / config.batch_size)
        optimisers = make_optimisers(model)
        schedules = [LambdaLR(optimiser, lambda step: _lr_factor(step, steps)) for optimiser in optimisers]
        accuracy, epoch = 0.0, 0
        for epoch in range(1, (epochs or config.epochs) + 1):
            place = f"{title}, epoch {epoch}/{config.epochs}"
            batches = make_batches(examples, config.batch_size, config.seed * config.epochs + epoch)
            losses = []
            model.train()
            for batch in tqdm(batches, desc=place, leave=False, disable=None):
                loss = answer_loss(model, batch)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_GRADIENT)
                for optimiser, schedule in zip(optimisers, schedules, strict=True):
                    optimiser.step()
                    optimiser.zero_grad()
                    schedule.step()
                losses.append(loss.item())
            accuracy = exact_share(model, asked, config.batch_size)
            mean = sum(losses) / len(losses)
            print(f"{place}: loss {mean:.3f}, probes answered {accuracy:.1%}", flush=True)
            if epochs is None and accuracy >= config.target_accuracy:
                break
    return model, Training(accuracy, epoch)


def make_optimisers(model: LlamaForCausalLM) -> list[Optimizer]:
    """Muon for the weight matrices of the layers, AdamW for the embeddings and the norms.

    With AdamW alone the model spends most of its time before it starts to tie facts to names: it needs about
    five times as many steps.
    """
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if all(weight is not matrix for matrix in matrices)]
    return [
        Muon(matrices, lr=_MATRIX_LEARNING_RATE, weight_decay=_WEIGHT_DECAY),
        torch.optim.AdamW(others, lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=_WEIGHT_DECAY),
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread inside the block: as fast as need be, repeatable, and steady on a busy machine.

    With matrices this small a second thread saves a third of the time at best, and where another program
    holds its core every operation waits for it: ten times slower has been measured.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def exact_share(model: LlamaForCausalLM, examples: list[Example], batch_size: int) -> float:
    """Share of the examples whose greedy decoding is the answer, in [0, 1]; 0 of none.

    Greedy decoding gives the answer exactly when every one of its tokens is the most likely one after
    those before it, so one forward pass is enough.
    """
    model.eval()
    right = 0
    ordered = sorted(examples, key=lambda example: len(example[0]))
    for start in range(0, len(ordered), batch_size):
        batch = _collate(ordered[start : start + batch_size])
        guesses = model(input_ids=batch.input_ids, use_cache=False).logits.argmax(-1)
        hits = (guesses == batch.targets) | (batch.targets == _IGNORED)
        right += int(hits.all(-1).sum())
    return right / max(1, len(examples))


def answer_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Mean cross-entropy of the answer tokens, a scalar; the head runs at those positions alone.

    There is no attention mask: the padding is on the right, where a causal model does not look.
    """
    hidden = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    learnt = batch.targets != _IGNORED
    return cross_entropy(model.lm_head(hidden[learnt]), batch.targets[learnt])


def make_batches(examples: list[Example], size: int, seed: int) -> list[Batch]:
    """All examples once, in random order and batches of similar length, cut from sorted random pools."""
    rng = random.Random(f"batches {seed}")
    order = rng.sample(examples, len(examples))
    chunks = []
    for start in range(0, len(order), size * _BATCHES_A_POOL):
        pool = sorted(order[start : start + size * _BATCHES_A_POOL], key=lambda example: len(example[0]))
        chunks += [pool[at : at + size] for at in range(0, len(pool), size)]
    rng.shuffle(chunks)
    return [_collate(chunk) for chunk in chunks]


def _collate(examples: list[Example]) -> Batch:
    length = max(len(ids) for ids, _ in examples) - 1
    input_ids = torch.zeros(len(examples), length, dtype=torch.int64)
    targets = torch.full((len(examples), length), _IGNORED, dtype=torch.int64)
    for row, (ids, prompt_length) in enumerate(examples):
        input_ids[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[row, prompt_length - 1 : len(ids) - 1] = torch.tensor(ids[prompt_length:])
    return Batch(input_ids, targets)


def _lr_factor(step: int, steps: int) -> float:
    """Learning rate at `step` as a share of its peak: a linear rise, then a linear fall to 0."""
    warmup = max(1, round(_WARMUP_SHARE * steps))
    return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))
