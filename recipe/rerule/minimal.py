"""Stage 2 of RULE and ReRULE in one process: GRPO on a refusal boundary, and replay of hard groups.

`train` is the method, from top to bottom and with the paper's symbols; what it calls stands below it. It and
`recipe.rerule.main` give the same losses and gradients on the same batch. What that command has in addition:
 1. Ray, verl and vLLM. Here transformers generates and torch updates, in float32.
 2. Micro-batches and several devices. Here the responses of a step are one batch.
 3. PPO's clip. Here each batch is updated on once, where the ratio to the policy that responded is 1.
 4. The default replay (quantile threshold, newest groups, signal required). Here it is the paper's.
 5. Other losses and KLs, schedules, critics, LoRA, stop strings, limits to the length of prompts.
 6. Checkpoints, resuming and records. Nothing is written here but the embedded world and its stage-1 model.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from data_prep.contract import Row, read_rows
from data_prep.world import stage1
from data_prep.world.config import WorldConfig
from recipe.rerule import io, process
from recipe.rerule.preflight import rows as checks
from recipe.rerule.runs import model_checks
from recipe.rerule.training.prompts import prompt_ids, require_chat_template
from reward.score import compute_score

Batch = dict[str, Tensor]
DESCRIPTION = """\
Stage 2 of RULE and ReRULE in one process, for small models; recipe/rerule/minimal.py is all of the method.
Without --model and --data it makes the embedded world and its stage-1 model first, in the folder of --world,
and uses them again the next time."""


@dataclass(frozen=True)
class Settings:
    """The method's numbers are the paper's; sizes are the embedded world's, with the paper's in brackets."""

    steps: int = 34
    prompts: int = 16  # prompts x of a step [32]
    rollouts: int = 8  # n responses y of a prompt
    response_limit: int = 24  # tokens of a response [1024]
    temperature: float = 1.0
    learning_rate: float = 2e-4  # of AdamW [2e-6]
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    kl_coef: float = 0.01  # beta
    replay: bool = True  # ReRULE, or RULE
    threshold: float = 0.6  # tau: a group is hard when its mean reward is below it
    warmup_steps: int = 10  # T_warm [15]
    min_groups: int = 16  # B_min [100]
    capacity: int = 256  # groups in the buffer B [1200]
    groups_per_update: int = 16  # k groups of one replay update [32]
    clip_low: float = 0.8  # Clip of the importance ratio
    clip_high: float = 1.3
    seed: int = 42


def train(model: Any, tokenizer: Any, rows: Sequence[Row], settings: Settings) -> Iterator[dict[str, float]]:
    """Train `model`, which begins as the stage-1 model, in place; yields the metrics of each step."""
    s, n = settings, settings.rollouts
    reference = copy.deepcopy(model).requires_grad_(False)  # pi_ref
    optimizer = AdamW(model.parameters(), s.learning_rate, weight_decay=s.weight_decay)
    x, x_mask = encode(tokenizer, rows, model.device)  # all prompts
    sides = [row["reward_model"]["ground_truth"]["type"] for row in rows]
    order = random_order(len(rows), s.prompts, s.seed)
    buffer: list[Batch] = []  # B, the oldest group first
    draws = random.Random(f"{s.seed}/sampling")
    is_open = False

    for step in range(1, s.steps + 1):
        # Sample: y_1 .. y_n ~ pi_theta(. | x) for each prompt x. The n responses of a prompt are a group.
        chosen = [place for place in next(order) for _ in range(n)]
        batch = sample(model, tokenizer, x[chosen], x_mask[chosen], s.response_limit, s.temperature)
        mask = batch["mask"]

        # Reward R_i of each response, and its advantage A_i = (R_i - mean R) / std R in its group.
        answers = zip(texts(tokenizer, batch), chosen, strict=True)
        scores = [reward(text, rows[place])["score"] for text, place in answers]
        rewards = torch.tensor(scores).view(-1, n)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
        batch["advantages"] = advantages.flatten().to(mask.device)[:, None] * mask

        # On-policy update: the policy gradient, whose ratio is 1 in value, and KL to the reference.
        log_pi = log_probs(model, batch, s.temperature)
        batch["old_log_probs"] = log_pi.detach()
        with torch.no_grad():
            batch["ref_log_probs"] = log_probs(reference, batch, s.temperature)
        ratio = (log_pi - batch["old_log_probs"]).exp()
        loss = token_mean(-ratio * batch["advantages"] + s.kl_coef * kl(log_pi, batch["ref_log_probs"]), mask)
        norm = descend(optimizer, loss, s.grad_clip)
        metrics = {"loss": loss.item(), "grad_norm": norm}
        for side in ("forget", "retain"):
            own = [score for score, place in zip(scores, chosen, strict=True) if sides[place] == side]
            if own:
                metrics[f"reward/{side}"] = sum(own) / len(own)

        # Store: the groups whose mean reward is below tau, with all that an update needs.
        for group, mean in enumerate(rewards.double().mean(1).tolist()):
            if mean < s.threshold - 1e-6:  # float32 rewards whose mean is tau are not below it
                own_rows = slice(group * n, group * n + n)
                buffer.append({name: plane[own_rows].clone() for name, plane in batch.items()})
        del buffer[: -s.capacity]

        # Gate: |B| >= B_min and step > T_warm. Once open it stays open.
        is_open = is_open or (len(buffer) >= s.min_groups and step > s.warmup_steps)
        if s.replay and is_open:
            # Draw k groups, uniformly and without replacement, as one batch.
            drawn = draws.sample(buffer, min(s.groups_per_update, len(buffer)))
            batch = {name: torch.cat([group[name] for group in drawn]) for name in buffer[0]}
            mask = batch["mask"]

            # Weigh each token: rho = Normalize(Clip(pi_theta / pi_old)), without gradient.
            log_pi = log_probs(model, batch, s.temperature)
            ratio = (log_pi.detach() - batch["old_log_probs"]).clamp(-20, 20).exp()
            rho = ratio.clamp(s.clip_low, s.clip_high)
            rho = rho / token_mean(rho, mask)

            # Replay update: -rho A grad log pi_theta with the stored A, and KL to the reference.
            policy_gradient = -rho * batch["advantages"] * log_pi
            loss = token_mean(policy_gradient + s.kl_coef * kl(log_pi, batch["ref_log_probs"]), mask)
            norm = descend(optimizer, loss, s.grad_clip)
            metrics |= {
                "replay/loss": loss.item(),
                "replay/grad_norm": norm,
                "replay/ratio_mean": token_mean(ratio, mask).item(),
                "replay/effective_sample_size": 1 / token_mean(rho.square(), mask).item(),  # rho has mean 1
            }
        yield metrics


def kl(log_pi: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Schulman's k3 of KL(pi_theta || pi_ref) of each token, with verl's bounds."""
    d = (ref_log_probs - log_pi).clamp(-20, 20)
    return (d.exp() - d - 1).clamp(max=10)


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of [rows, T] over the tokens of the mask."""
    return (values * mask).sum() / mask.sum()


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, clip: float) -> float:
    """One optimiser step; the norm of the gradient before clipping."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(weights, clip)
    optimizer.step()
    return float(norm)


@torch.no_grad()
def sample(
    model: Any, tokenizer: Any, prompts: Tensor, prompt_mask: Tensor, limit: int, temperature: float | None
) -> Batch:
    """A response to each prompt, greedy without a temperature.

    Returns prompts int64 [R, P] left-padded and prompt_mask, responses int64 [R, limit] right-padded and
    mask, which is 1 for the tokens up to the first end token: the tokenizer's, or one at which the model's
    generation ends.
    """
    own, pad = model.generation_config.eos_token_id or [], tokenizer.pad_token_id
    ends = [tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])]
    how = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    inputs = {"input_ids": prompts, "attention_mask": prompt_mask, "max_new_tokens": limit}
    both = model.generate(**inputs, eos_token_id=ends, pad_token_id=pad, do_sample=bool(how), **how)
    width = prompts.shape[1]
    responses = torch.nn.functional.pad(both[:, width:], (0, width + limit - both.shape[1]), value=pad)
    ended = torch.isin(responses, torch.tensor(ends, device=responses.device)).long()
    mask = (ended.cumsum(1) - ended == 0).long()
    responses = responses.where(mask.bool(), pad)
    return {"prompts": prompts, "prompt_mask": prompt_mask, "responses": responses, "mask": mask}


def log_probs(model: Any, batch: Batch, temperature: float) -> Tensor:
    """log pi of each response token at the sampling temperature, [R, T]."""
    ids = torch.cat([batch["prompts"], batch["responses"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["mask"]], 1)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    width = batch["responses"].shape[1]
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": places, "use_cache": False}
    logits = model(**inputs, logits_to_keep=width + 1).logits[:, :-1] / temperature
    return logits.gather(-1, batch["responses"][..., None])[..., 0] - logits.logsumexp(-1)


def encode(tokenizer: Any, rows: Sequence[Row], device: Any) -> tuple[Tensor, Tensor]:
    """Token ids and mask of the rows' prompts, int64 [rows, P], left-padded."""
    ids = [torch.tensor(prompt_ids(tokenizer, row["prompt"], row["extra_info"]["raw"])) for row in rows]
    prompts = pad_sequence(ids, True, tokenizer.pad_token_id, "left")
    mask = pad_sequence([torch.ones_like(one) for one in ids], True, 0, "left")
    return prompts.to(device), mask.to(device)


def texts(tokenizer: Any, batch: Batch) -> list[str]:
    """The responses, special tokens left out."""
    return tokenizer.batch_decode(batch["responses"], skip_special_tokens=True)


def reward(text: str, row: Row) -> dict[str, float]:
    """The recipe's reward of a response, and its parts."""
    return compute_score(row["data_source"], text, row["reward_model"]["ground_truth"], row["extra_info"])


def random_order(count: int, size: int, seed: int) -> Iterator[list[int]]:
    """Endless epochs over `count` places, `size` at a time, without each epoch's incomplete last batch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=generator).tolist()
        yield from (order[start : start + size] for start in range(0, count - size + 1, size))


# ---- the command ----


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the means of greedy answers before and after.

    Exit codes: 0 finished, 1 training failed, 2 an option, the model or the data were refused before, 130 and
    143 stopped by SIGINT and SIGTERM.
    """
    with process.stoppable():
        options = parser().parse_args(arguments)
        with io.one_line(ValueError, OSError, code=2):
            model, tokenizer, rows, probes = load(options)
        given = {name: value for name, value in vars(options).items() if hasattr(Settings, name)}
        for name in ("min_groups", "capacity", "groups_per_update"):  # they grow with the prompts of a step
            given[name] = round(getattr(Settings, name) * options.prompts / Settings.prompts)
        settings = Settings(**given)
        with io.one_line(Exception, code=1):
            print(f"greedy answers to {len(probes)} prompts before training ...", flush=True)
            before = measure(model, tokenizer, probes, settings.response_limit)
            start = time.perf_counter()
            for step, metrics in enumerate(train(model, tokenizer, rows, settings), 1):
                shown = ("reward/forget", "reward/retain", "replay/effective_sample_size")
                line = "  ".join(f"{name} {metrics[name]:.3f}" for name in shown if name in metrics)
                seconds, start = time.perf_counter() - start, time.perf_counter()
                print(f"step {step}/{settings.steps}  {line}  {seconds:.1f} s", flush=True)
            after = measure(model, tokenizer, probes, settings.response_limit)
            print("before -> after " + "".join(f"{name:>18}" for name in ("recall", "refused", "reward")))
            for section in before:
                cells = zip(before[section], after[section], strict=True)
                print(f"{section:16}" + "".join(f"{f'{one:.3f} -> {two:.3f}':>18}" for one, two in cells))


def measure(model: Any, tokenizer: Any, rows: Sequence[Row], limit: int) -> dict[str, list[float]]:
    """Mean recall (ROUGE-L), refusal and reward of one greedy answer to each row, by section."""
    found: dict[str, list[list[float]]] = {}
    for first in range(0, len(rows), 256):
        part = rows[first : first + 256]
        batch = sample(model, tokenizer, *encode(tokenizer, part, model.device), limit, None)
        for row, text in zip(part, texts(tokenizer, batch), strict=True):
            answer = reward(text, row)
            parts = [answer["rouge"], answer["refused"], answer["score"]]
            found.setdefault(row["extra_info"]["section"], []).append(parts)
    return {name: torch.tensor(found[name]).double().mean(0).tolist() for name in sorted(found)}


def load(options: argparse.Namespace) -> tuple[Any, Any, list[Row], list[Row]]:
    """The stage-1 model, its tokenizer, the rows to train on and those to measure.

    Raises ValueError, OSError: the options, a file or the model cannot be used.
    """
    name, data, probes = options.model, options.data, options.probes
    if (name is None) != (data is None):
        raise ValueError("--model and --data go together: give both, or neither for the embedded world")
    if options.rollouts < 2:
        raise ValueError("--rollouts is 1: an advantage compares at least 2 responses to a prompt")
    if not 0 < options.learning_rate < 1:
        raise ValueError(f"--learning-rate is {options.learning_rate}, not between 0 and 1")
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"--device is {options.device}, which torch cannot use here") from None
    if name is None:
        if not (options.world / "stage1").exists():
            print(f"making the embedded world and its stage-1 model in {options.world}, once ...", flush=True)
        world, name = stage1.prepare(options.world, WorldConfig())
        data, probes = world / "train.parquet", probes or world / "probes.parquet"
    rows = read_rows(data)
    files = [(str(data), rows)]
    checks.refuse_probes(files)
    for line in (*checks.stage2_warnings(files), *checks.warnings(files, [])):
        io.warn(line)
    if len(rows) < options.prompts:
        raise ValueError(
            f"{data} holds {len(rows)} rows, and a step takes {options.prompts}; lower --prompts"
        )
    asked = read_rows(probes) if probes else rows
    asked = random.Random(0).sample(asked, 600) if len(asked) > 600 else asked
    model_checks.check(str(name), "--model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = io.describe(error)[:200]
        raise ValueError(f"--model is {name}, whose tokenizer cannot be read: {reason}") from error
    if any(not row["extra_info"]["raw"] for row in [*rows, *asked]):
        require_chat_template(tokenizer)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {name} has no end-of-sequence token, which ends a response")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval().to(options.device)
    # Of a folder's own generation config only the end tokens count: the rest may bend the distribution.
    model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
    torch.manual_seed(options.seed)
    return model, tokenizer, rows, asked


def parser() -> process.ArgumentParser:
    """The command line."""
    found = process.ArgumentParser(prog="python -m recipe.rerule.minimal", description=DESCRIPTION)
    add, n, n0 = found.add_argument, process.positive, process.not_negative
    options: list[tuple[str, Any, str, Any, str]] = [
        ("--model", str, "MODEL", None, "the stage-1 model: a Hugging Face folder or name"),
        ("--data", Path, "FILE", None, "its train.parquet of data_prep (data.train_files)"),
        ("--probes", Path, "FILE", None, "rows for the table (default: the rows it trains on)"),
        ("--world", Path, "FOLDER", Path("outputs/minimal"), "where the embedded world is made, or is"),
        ("--device", str, "DEVICE", "cpu", "cpu, cuda, cuda:1"),
        ("--steps", n, "N", Settings.steps, "training steps"),
        ("--warmup-steps", n0, "N", Settings.warmup_steps, "steps before replay (replay.warmup_steps)"),
        ("--prompts", n, "N", Settings.prompts, "prompts a step"),
        ("--rollouts", n, "N", Settings.rollouts, "responses a prompt"),
        ("--response-limit", n, "N", Settings.response_limit, "most tokens of a response"),
        ("--learning-rate", float, "R", Settings.learning_rate, "of AdamW"),
        ("--seed", n0, "N", Settings.seed, "of data order, responses and draws"),
    ]
    for name, kind, shown, default, meaning in options:
        text = meaning if default is None else f"{meaning} (default: %(default)s)"
        add(name, type=kind, metavar=shown, default=default, help=text)
    add("--replay", action=argparse.BooleanOptionalAction, default=True, help="ReRULE (default), or RULE")
    return found


if __name__ == "__main__":
    main()
