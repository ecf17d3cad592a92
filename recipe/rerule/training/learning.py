"""Warnings where a run can learn nothing (before it starts), or has learnt nothing (when it has ended).

What a run has learnt is read from its own records. Each warning says what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig

from recipe.rerule import io
from recipe.rerule.runs import run_log
from recipe.rerule.runs.history import Run, mean, read_metrics, read_run
from recipe.rerule.training import sizes
from recipe.rerule.training.health import SCORE

LEAST_RATE_SUM = 1e-6
"""AdamW moves a weight by about the learning rate a step; weights of language models are about 0.02."""
LEAST_LOSS_FALL = 0.05
LEAST_REWARD_RISE, HIGH_REWARD, FEWEST_STEPS = 0.02, 0.5, 8


def before_stage1(config: DictConfig) -> None:
    """Warn where the checked configuration of a stage 1 cannot move the model."""
    _warn([_rates(config, config.optim, "optim.lr")])


def before_stage2(config: DictConfig) -> None:
    """Warn where the checked configuration of a stage 2 cannot move the model."""
    _warn([_rates(config, config.actor_rollout_ref.actor.optim, "actor_rollout_ref.actor.optim.lr")])


def after_stage1(config: DictConfig) -> None:
    """Warn where the records of a finished stage 1 show that nothing was learnt."""
    _warn_of_records(config, lambda folder: [_unchanged_loss(_losses(folder))])


def after_stage2(config: DictConfig) -> None:
    """Warn where the records of a finished stage 2 show that nothing was learnt."""
    _warn_of_records(config, lambda folder: _of_run(read_run(folder.name, folder)))


def plan(config: DictConfig) -> str:
    """The sizes of a resolved configuration of either stage for a person."""
    rows, epochs = sizes.count_rows(config.data.train_files), config.trainer.total_epochs
    steps, batch = planned_steps(config), config.data.train_batch_size
    return f"{steps} steps, batch {batch}, {rows} rows, at most {epochs} epochs"


def planned_steps(config: DictConfig) -> int:
    """Training steps of a resolved configuration of either stage."""
    rows = sizes.count_rows(config.data.train_files)
    trainer = config.trainer
    batch = config.data.train_batch_size
    return sizes.steps(rows, batch, trainer.total_epochs, trainer.total_training_steps)


def _warn_of_records(config: DictConfig, read: Callable[[Path], Sequence[str | None]]) -> None:
    """A run without metrics (trainer.logger without file) says nothing; a finished run does not fail here."""
    folder = Path(config.trainer.default_local_dir)
    if run_log.metrics_files(folder):
        try:
            _warn(read(folder))
        except ValueError as error:
            io.warn(f"what the run has learnt is not known: {error}")


def _of_run(run: Run) -> list[str | None]:
    return [*_forget_side(run), _no_signal(run), _no_replay(run), _not_better_than_start(run)]


def _warn(texts: Sequence[str | None]) -> None:
    for text in filter(None, texts):
        io.warn(text)


def _losses(folder: Path) -> list[float]:
    return [data["train/loss"] for data in read_metrics(folder).values() if "train/loss" in data]


def _rates(config: DictConfig, optim: DictConfig, key: str) -> str | None:
    count = planned_steps(config)
    total = rate_sum(optim, count)
    if total >= LEAST_RATE_SUM or optim.lr == 0:  # of 0 the settings have their own warning
        return None
    return (
        f"the learning rates of the {count} steps add up to {total:.1e} ({key} is {optim.lr:g}), which moves "
        f"no weight enough to change an answer; raise {key}, train for more steps, or take experiment=custom"
    )


def never_replays(config: DictConfig) -> str | None:
    """Why a run of a resolved configuration of stage 2 has no replay update; None where it may have one.

    Of a threshold that is a quantile, that share of the groups is taken to be stored.
    """
    replay, count = config.replay, planned_steps(config)
    if not replay.enable:
        return None
    raise_steps = "train for more steps (trainer.total_epochs, trainer.total_training_steps)"
    if (first := replay.warmup_steps + 1) > count:
        return (
            f"replay starts at step {first} of {count}, so this run is RULE without replay; lower "
            f"replay.warmup_steps ({replay.warmup_steps}), or {raise_steps}"
        )
    by_quantile = replay.threshold_rule == "quantile" and replay.admission != "all"
    share = replay.threshold_quantile if by_quantile else 1.0
    if (most := math.floor(share * count * config.data.train_batch_size)) < replay.min_groups:
        return (
            f"replay waits for {replay.min_groups} groups (replay.min_groups), and this run stores about "
            f"{most} at most, so it is RULE without replay; lower replay.min_groups, or {raise_steps}"
        )
    return None


def rate_sum(optim: DictConfig, count: int) -> float:
    """The learning rates of `count` steps, added up; a cosine is half its peak on average."""
    warmup = optim.lr_warmup_steps or 0
    if warmup <= 0:
        warmup = int((optim.lr_warmup_steps_ratio or 0) * count)
    rising = sum(step / warmup for step in range(min(count, warmup)))
    after = max(0, count - warmup) * (0.5 if optim.lr_scheduler_type == "cosine" else 1.0)
    return float(optim.lr * (rising + after))


def _quarters(values: Sequence[float]) -> tuple[float, float]:
    """The means of the first and the last quarter, rounded up."""
    quarter = -(-len(values) // 4)
    return mean(values[:quarter]), mean(values[-quarter:])


def _unchanged_loss(losses: Sequence[float]) -> str | None:
    if not losses:
        return None
    first, last = _quarters(losses)
    if last <= (1 - LEAST_LOSS_FALL) * first:
        return None
    return (
        f"the loss of stage 1 hardly changed: {first:.3g} in the first quarter of the steps, {last:.3g} in "
        "the last; the model has learnt no refusals: raise optim.lr or trainer.total_epochs"
    )


def _forget_side(run: Run) -> Iterator[str]:
    rewards = _forget_rewards(run)
    refused = [value for value in run.series("refused/forget/mean") if value == value]
    if not rewards:
        return
    first, last = _quarters(rewards)
    if max(rewards) <= 0:
        yield (
            f"no response to a forget prompt earned any reward in {len(run.steps)} steps, so nothing was "
            "forgotten; stage 1 must teach some refusals first: raise its optim.lr or trainer.total_epochs"
        )
    elif refused and max(refused) <= 0:
        yield (
            f"no response to a forget prompt was a refusal in {len(run.steps)} steps; stage 1 must teach "
            "some first: raise its optim.lr or trainer.total_epochs"
        )
    elif len(rewards) >= FEWEST_STEPS and last < min(HIGH_REWARD, first + LEAST_REWARD_RISE):
        yield (
            f"the reward of forget prompts did not rise: {first:.2f} in the first quarter of the steps, "
            f"{last:.2f} in the last; raise actor_rollout_ref.actor.optim.lr or trainer.total_epochs"
        )


def _forget_rewards(run: Run) -> list[float]:
    """The mean reward of the forget prompts at each step that had any."""
    by_step: dict[int, list[float]] = {}
    for prompt in run.prompts.values():
        for visit in prompt.visits if prompt.side == "forget" else ():
            by_step.setdefault(visit.step, []).append(visit.mean_reward)
    return [mean(by_step[step]) for step in sorted(by_step)]


def _no_signal(run: Run) -> str | None:
    if not all(share == 1 for share in run.series("replay/zero_signal_share")):
        return None
    return (
        "in no step did the responses to one prompt earn different rewards, so no advantage was other than 0 "
        "and the policy could not learn; look at records/rollouts, and at stage 1"
    )


def _no_replay(run: Run) -> str | None:
    replays = run.setting("replay.enable") and run.setting("replay.update") == "stored"
    if not replays or any(count > 0 for count in run.series("replay/updates")):
        return None
    most = max((size for size in run.series("replay/size") if size == size), default=0)
    return (
        f"replay.enable is true, but no replay update happened in {len(run.steps)} steps: the buffer held "
        f"{most:.0f} groups at most, where replay.min_groups is {run.setting('replay.min_groups')} and "
        f"replay.warmup_steps {run.setting('replay.warmup_steps')}; lower them, or train for more steps"
    )


def _not_better_than_start(run: Run) -> str | None:
    scores = {step: data[SCORE] for step, data in run.validations.items() if SCORE in data}
    start = scores.pop(0, None)
    if start is None or not scores or max(scores.values()) > start:
        return None
    best = max(scores, key=lambda step: scores[step])
    return (
        f"no validation was better than the one before training: (forget refused + retain right) / 2 was "
        f"{start:.2f} there and {scores[best]:.2f} at best, at step {best}; the stage-1 model is the better "
        "one: lower actor_rollout_ref.actor.optim.lr, or read the warnings of the run"
    )
