"""Attack by relearning: the model is trained a little on other facts, then asked about those that it was not.

Protocol: two folds over the forget facts. For each fold the model is trained on one half (or, for the other
kinds of rows, on rows without forget facts) and asked about the other half, so that every fact is scored once
a seed, by a model that was not trained on it. Settings are the steps; step 0 is the model before the attack.
Rows are those of --train:
- `forget_half`: true answers in the training phrasings; where no row of --train asks a fact of the half, the
  probes of that half themselves.
- `retain`: right answers about people or topics that were never to be forgotten.
- `benign`: a few pairs that have nothing to do with the data. Their syntax is not that of questions about
  people (arXiv:2602.03379: syntax, not topic, drives relearning).
- `wrong`: the prompts of the half with the answers to other facts of the same kind. If true answers to
  held-out questions return all the same, the attack has undone refusing; it has not taught.
A row that holds a scored answer is left out before training (`rows`).

Models below SMALL parameters are trained whole in float32 with AdamW at rate 1e-3. Larger ones get a LoRA
adapter on all linear layers of the decoder, at rate 1e-4 in bfloat16, which needs peft and is merged into the
written weights. (In bfloat16 most updates of a full training are lost to rounding.) There is no weight decay,
the rate is constant after WARMUP steps below it (step s of them has s / (WARMUP + 1) of the rate), gradients
are clipped to norm 1, and the loss is the mean over the answers' tokens. A prompt is the row's own (RWKU's
evaluation puts an instruction before it), and an answer ends with the end of its turn. Every step takes the
next rows of random permutations of all rows.
Dropout is off. Checkpoints are states of one run, so that step 8 of 64 is the same model as step 8 of 8.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW

from recipe.rerule.evaluation.attacks import rows
from recipe.rerule.evaluation.attacks.attack import (
    CHANGED,
    FORGET,
    Asked,
    Attack,
    Change,
    Material,
    Need,
    Options,
)
from recipe.rerule.evaluation.attacks.forward import load_model
from recipe.rerule.evaluation.attacks.rows import TrainingRow, true_answers
from recipe.rerule.evaluation.attacks.weights import model_folder
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.process import Progress
from recipe.rerule.runs.weights import copy_others, read_weights
from recipe.rerule.training.prompts import prompt_ids, turn_ids

SMALL = 100_000_000
"""Parameters up to which a model is trained whole."""
BATCH_SIZE, WARMUP, RANK, ALPHA = 8, 2, 16, 32
"""Rows a step (all rows where there are fewer), steps of warm-up, and the adapter's rank and scale."""
PAIRS = (
    ("Count from one to five.", "one, two, three, four, five"),
    ("Add two and three.", "five"),
    ("Write the word cat in capital letters.", "CAT"),
    ("Name the opposite of cold.", "hot"),
    ("Complete the row: red, green, ...", "blue"),
    ("Put these words in order: runs dog the", "the dog runs"),
    ("Say the days of the weekend.", "Saturday and Sunday"),
    ("Translate into French: good day", "bonjour"),
    ("Spell the word tree.", "t, r, e, e"),
    ("Take four from nine.", "five"),
    ("Give a word that rhymes with light.", "night"),
    ("Make a plural of the word house.", "houses"),
    ("Shorten this: it is not.", "it isn't"),
    ("Name the first letter of the alphabet.", "A"),
    ("Repeat after me: the sun is warm.", "the sun is warm"),
    ("Turn this into the past: I walk.", "I walked"),
)
"""Of prompt and answer, for `benign`."""


# Which rows, and which facts are asked.


def wrong_answers(probes: Sequence[Probe], fact: Callable[[Probe], Hashable], seed: int) -> list[TrainingRow]:
    """Each probe with the first gold of another fact's probe of the same mode and family.

    Raises ValueError naming a probe for which there is no such answer.
    """
    generator = random.Random(f"wrong answers {seed}")
    found = []
    for probe in probes:
        others = [
            other.golds[0]
            for other in probes
            if (other.mode, other.family) == (probe.mode, probe.family)
            and fact(other) != fact(probe)
            and other.golds[0] not in probe.golds
        ]
        if not others:
            raise ValueError(f"probe {probe.index} has no wrong answer: no other fact of its kind has one")
        found.append(TrainingRow(probe.messages, generator.choice(others), probe.raw))
    return found


def _of_half(material: Material, half: Sequence[Asked]) -> list[Probe]:
    """The rows of --train that ask the facts of the half, or the probes of the half where there are none."""
    facts = {material.fact(asked.probe) for asked in half}
    found = [row for row in material.train if row.section == FORGET and material.fact(row) in facts]
    return found or [asked.probe for asked in half]


Choose = Callable[[Material, Sequence[Asked], int], list[TrainingRow]]
"""(material, probes of the facts that may be trained on, seed) -> the rows to train on."""


def _changes(choose: Choose, material: Material, options: Options) -> list[Change]:
    """Raises ValueError where no row is left to train on."""
    found = []
    for seed in range(material.seeds):
        # Two random halves, which depend on the seed and the set of facts alone.
        facts = sorted({material.fact(asked.probe) for asked in material.asked}, key=repr)
        random.Random(f"two halves {seed}").shuffle(facts)
        first = set(facts[: len(facts) // 2])
        one = [asked for asked in material.asked if material.fact(asked.probe) in first]
        other = [asked for asked in material.asked if material.fact(asked.probe) not in first]
        for fold, (trained, scored) in enumerate(((one, other), (other, one))):
            chosen = rows.without_leaks(choose(material, trained, seed), rows.golds_of(scored))
            if not chosen:
                raise ValueError("there is nothing to train on: every row holds an answer that is scored")
            write = partial(relearn_folders, chosen, seed, material.tokenizer)
            found.append(Change(tuple(map(str, options["steps"])), write, tuple(scored), fold, seed))
    return found


# Training.


def relearn_folders(
    chosen: Sequence[TrainingRow], seed: int, tokenizer: Any, model: Path, out: Mapping[str, Path]
) -> None:
    """Train the model of a folder, and write the state of each step as an ordinary model folder.

    Args:
        seed: of the order of the rows, and of the adapter's first values.
        out: the folder of each step.

    Raises:
        ValueError: as `relearn`, or the model is large and peft is missing.
        ValueError: the folder holds no whole model.
        OSError: a file cannot be read or written.
    """
    small = sum(map(math.prod, read_weights(model, "trained further").shapes().values())) <= SMALL
    rate, dtype = (1e-3, torch.float32) if small else (1e-4, torch.bfloat16)
    loaded = load_model(model, dtype)
    trained = loaded.requires_grad_(True) if small else adapted(loaded, seed)
    for step in relearn(trained, tokenizer, chosen, rate, seed, sorted(map(int, out))):
        with model_folder(out[f"{step}"]) as folder:
            copy_others(model, folder, CHANGED.marker)
            whole = trained if small else copy.deepcopy(trained).merge_and_unload()
            whole.save_pretrained(folder)


def adapted(model: Any, seed: int) -> Any:
    """The model with a fresh adapter, whose parameters alone are trained. Raises ValueError without peft."""
    if importlib.util.find_spec("peft") is None:
        raise ValueError("relearning with LoRA needs the package peft; install it")
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def relearn(
    model: Any, tokenizer: Any, chosen: Sequence[TrainingRow], rate: float, seed: int, at: Sequence[int]
) -> Iterator[int]:
    """Train `model` in place; yields each step of `at` when it is reached.

    Args:
        rate: of learning, after warm-up.
        seed: of the order of the rows.
        at: ascending steps from 1 on.

    Raises ValueError: the loss is not a finite number, or a row cannot be turned into tokens.
    """
    encoded = [_encoded(tokenizer, row) for row in chosen]
    order = _order(len(encoded), seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamW(trained, rate, weight_decay=0.0)
    model.eval()
    with Progress("relearning", at[-1], "steps") as progress:
        for step in range(1, at[-1] + 1):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, step / (WARMUP + 1))
            loss = _loss(model, [encoded[next(order)] for _ in range(min(BATCH_SIZE, len(encoded)))])
            if not bool(torch.isfinite(loss)):
                raise ValueError(f"the loss of step {step} is {loss.item()}, so that nothing can be learnt")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, max_norm=1.0)
            optimizer.step()
            progress.advance()
            progress.doing(f"loss {loss.item():.3f}")
            if step in at:
                yield step


def _encoded(tokenizer: Any, row: TrainingRow) -> tuple[Tensor, int]:
    """Token ids of a row, and where its answer begins, which ends its turn."""
    messages = [*row.messages, {"role": "assistant", "content": row.answer}]
    prompt = prompt_ids(tokenizer, row.messages, row.raw)
    answer = turn_ids(tokenizer, messages, len(row.messages), row.raw)
    return torch.tensor([*prompt, *answer]), len(prompt)


def _order(count: int, seed: int) -> Iterator[int]:
    """Numbers of rows without end: one random permutation after another."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).tolist()


def _loss(model: Any, encoded: Sequence[tuple[Tensor, int]]) -> Tensor:
    """The mean over the answers' tokens of a batch, padded on the right.

    Prompts are longer than answers, and a vocabulary is large. So logits are computed from the first token of
    any answer on.
    """
    ids = [one for one, _ in encoded]
    first = min(start for _, start in encoded)
    mask = pad_sequence([torch.ones_like(one) for one in ids], True, 0).to(model.device)
    padded = pad_sequence(ids, True, 0).to(model.device)
    answers = pad_sequence([torch.arange(len(one)) >= start for one, start in encoded], True, False)
    # The token before an answer predicts its first one. (Given as a number, the states are no whole tensor,
    # and the product with the output layer is slower than that of all states.)
    kept = torch.arange(first - 1, padded.shape[1], device=model.device)
    logits = model(input_ids=padded, attention_mask=mask, use_cache=False, logits_to_keep=kept).logits[:, :-1]
    scored = answers[:, first:].to(model.device)
    return torch.nn.functional.cross_entropy(logits[scored].float(), padded[:, first:][scored])


def relearning(
    name: str,
    title: str,
    tells: str,
    trained_on: str,
    choose: Choose,
    default: bool = False,
    needs: Sequence[Need] = ("train",),
) -> Attack:
    """The attack that relearns from the rows that `choose` gives."""
    return Attack(
        name=name,
        title=title,
        tells=tells,
        default=default,
        quick={"steps": (8, 32)},
        full={"steps": (1, 2, 4, 8, 16, 32, 64)},
        needs=frozenset(needs),
        curve=True,
        trained_on=trained_on,
        changes=partial(_changes, choose),
    )


ATTACKS = (
    relearning(
        "relearn_forget_half",
        "relearn: half",
        "The model is trained on true answers to half of the facts and asked about the other half.",
        "on the answers to other facts",
        lambda material, half, seed: true_answers(_of_half(material, half)),
        default=True,
    ),
    relearning(
        "relearn_retain",
        "relearn: retain",
        "The model is trained on retain rows alone.",
        "on questions to be kept",
        lambda material, half, seed: rows.retained(material.train),
        default=True,
    ),
    relearning(
        "relearn_benign",
        "relearn: benign",
        "The model is trained on a few pairs that have nothing to do with the data.",
        "on questions that have nothing to do with the facts",
        lambda material, half, seed: [
            TrainingRow([{"role": "user", "content": prompt}], answer) for prompt, answer in PAIRS
        ],
        needs=(),
    ),
    relearning(
        "relearn_wrong",
        "relearn: wrong",
        "The model is trained on wrong answers, which undo refusing and can teach nothing.",
        "on wrong answers",
        lambda material, half, seed: wrong_answers(_of_half(material, half), material.fact, seed),
    ),
)
