"""Where stage 1 stands as the start of stage 2, seen from sampled responses, and which step is the best.

GRPO compares the responses to one prompt. Where all earn the same, as before the model has learnt any refusal
and after it refuses always, stage 2 learns nothing from the prompt. The best start is where most prompts of
the forget side have responses of different rewards, while the retain side still answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from data_prep.contract import Row
from recipe.rerule import io
from reward import score

FILE = Path("records", "signal.jsonl")
"""In a run folder: a `Signal` a line."""
ANSWERS = 0.8
"""The retain side still answers while it is right at least this often, as a share of the untrained model."""
Sampled = tuple[Row, list[str]]
"""An RL row, and responses to its prompt."""


@dataclass(frozen=True)
class Signal:
    """What responses to some prompts of both sides say of the model after a step; 0 is before training.

    Attributes:
        forget_refused, retain_refused: shares of the responses that are refusals.
        retain_right: share of the retain side's responses that say a gold and are no refusal.
        forget_mixed, retain_mixed: shares of the prompts whose responses earn different rewards.
        seconds: that the sampling took.
        elapsed: seconds since the command began, this sampling included.
    """

    step: int
    forget_refused: float
    forget_mixed: float
    retain_refused: float
    retain_right: float
    retain_mixed: float
    seconds: float = 0.0
    elapsed: float = 0.0

    def __str__(self) -> str:
        return (
            f"forget refused {_percent(self.forget_refused)}, retain right {_percent(self.retain_right)} and "
            f"refused {_percent(self.retain_refused)}, {_percent(self.forget_mixed)} of forget and "
            f"{_percent(self.retain_mixed)} of retain groups mixed"
        )

    @property
    def metrics(self) -> dict[str, float]:
        """By the names under which the run logs them."""
        values = asdict(self)
        del values["step"], values["elapsed"]
        return {f"signal/{name.replace('_', '/')}": value for name, value in values.items()}


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def best(signals: Sequence[Signal]) -> Signal:
    """The step that stage 2 should start from, of at least one after the start, which is `signals[0]`.

    Of the steps at which the retain side still answers (`ANSWERS`), the one with the most mixed forget
    prompts; where several have as many, the one with the highest mean of forget refused and retain right,
    then the earliest. Where the retain side answers at no step, the one at which it is right most often.
    """
    start, *trained = signals

    def value(signal: Signal) -> tuple[bool, float, float]:
        answers = still_answers(signal, start)
        mean = (signal.forget_refused + signal.retain_right) / 2
        return answers, signal.forget_mixed if answers else signal.retain_right, mean

    return max(trained, key=value)


def still_answers(signal: Signal, start: Signal) -> bool:
    """Whether the retain side is right at least `ANSWERS` times as often as at the start."""
    return signal.retain_right >= ANSWERS * start.retain_right


def judge(row: Row, text: str, options: Mapping[str, Any]) -> tuple[dict[str, float], bool]:
    """The parts of a response's reward, and whether it says a gold and is no refusal (retain side).

    options: of the reward function; null and missing ones are the benchmark's own.
    """
    source, truth = row["data_source"], row["reward_model"]["ground_truth"]
    parts = score.compute_score(source, text, truth, row["extra_info"], **options)
    return parts, bool(parts["right"] and not parts["refused"])


def measured(step: int, sampled: Sequence[Sampled], options: Mapping[str, Any]) -> Signal:
    """The signal of responses to prompts of both sides, `options` being those of the reward function."""
    refused: dict[str, list[float]] = {"forget": [], "retain": []}
    right, mixed = list[bool](), {"forget": list[bool](), "retain": list[bool]()}
    for row, texts in sampled:
        side = row["reward_model"]["ground_truth"]["type"]
        judged = [judge(row, text, options) for text in texts]
        refused[side] += [parts["refused"] for parts, _ in judged]
        mixed[side].append(len({parts["score"] for parts, _ in judged}) > 1)
        right += [is_gold for _, is_gold in judged if side == "retain"]
    return Signal(
        step,
        fmean(refused["forget"]),
        fmean(mixed["forget"]),
        fmean(refused["retain"]),
        fmean(right),
        fmean(mixed["retain"]),
    )


def chosen_prompts(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """At most `count` rows of each side, drawn at random."""
    sides = {"forget": list[Row](), "retain": list[Row]()}
    for row in rows:
        sides[row["reward_model"]["ground_truth"]["type"]].append(row)
    return [row for own in sides.values() for row in random.Random(seed).sample(own, min(count, len(own)))]


def append(run_folder: str, signal: Signal) -> None:
    """Add a line to the run's file."""
    io.append_line(Path(run_folder) / FILE, asdict(signal))


def read(run_folder: str | Path) -> list[Signal]:
    """The signals of a run in order; none where it sampled nothing."""
    path = Path(run_folder) / FILE
    if not path.is_file():
        return []
    return [Signal(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def summary(run_folder: str | Path, keeps: bool) -> list[str]:
    """Where a finished stage 1 is, in a line; more lines warn.

    keeps: whether it kept the best step, not the last.
    """
    signals = read(run_folder)
    if len(signals) < 2:
        return []
    start, last = signals[0], signals[-1]
    kept = best(signals) if keeps else last
    lines = [f"start of stage 2 (step {kept.step} of {last.step}): {kept}"]
    if not still_answers(kept, start):
        lines.append(
            f"the retain side is right in {_percent(kept.retain_right)} of its responses, and was in "
            f"{_percent(start.retain_right)} before stage 1; raise data.retain_share, lower optim.lr, or "
            "train for fewer steps"
        )
    if not kept.forget_mixed:
        lines.append(
            "no forget prompt has responses of different rewards, so that stage 2 learns nothing from them; "
            + ("lower optim.lr" if kept.forget_refused > 0.5 else "raise optim.lr or trainer.total_epochs")
        )
    spent = sum(signal.seconds for signal in signals)
    if spent > last.elapsed / 3:
        lines.append(
            f"sampling took {spent:.0f} of the {last.elapsed:.0f} s of stage 1; raise signal.every, or lower "
            "signal.prompts or signal.samples"
        )
    return lines


def sample(
    module: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    samples: int,
    temperature: float,
    max_tokens: int,
    together: bool = False,
) -> list[list[str]]:
    """Responses to each prompt, sampled with transformers, special tokens left out.

    The prompts are read once; `samples` responses to each continue the same cache.

    Args:
        module: a causal language model of transformers in evaluation mode, with FSDP2 or without.
        prompts: token ids, at least one prompt.
        together: whether other ranks sample at the same time, and weights are gathered from all of them.
    """
    import torch
    from transformers import GenerationConfig

    device = next(module.parameters()).device
    end = module.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(end if isinstance(end, list) else [end])} - {None}
    settings = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        max_new_tokens=max_tokens,
        eos_token_id=sorted(ends),
        pad_token_id=tokenizer.pad_token_id,
    )
    width = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(one)) + [*one] for one in prompts])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
    ids, mask = ids.to(device), mask.to(device)
    with torch.no_grad():
        # Key and value states of the left-padded prompts.
        asked, attended = ids[:, :-1], mask[:, :-1]
        places = (attended.cumsum(1) - 1).clamp(min=0)
        cache = module(
            input_ids=asked, attention_mask=attended, position_ids=places, use_cache=True, logits_to_keep=1
        ).past_key_values
        cache.batch_repeat_interleave(samples)
        written = module.generate(
            input_ids=ids.repeat_interleave(samples, 0),
            attention_mask=mask.repeat_interleave(samples, 0),
            generation_config=settings,
            past_key_values=cache,
            synced_gpus=together,
        )[:, width:]
    texts = tokenizer.batch_decode(written, skip_special_tokens=True)
    return [texts[start : start + samples] for start in range(0, len(texts), samples)]
