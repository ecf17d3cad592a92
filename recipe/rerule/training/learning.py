"""Warnings where a run can learn nothing (before it starts), or has learnt nothing (when it has ended).

What a run has learnt is read from its own records. Each warning says what to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from recipe.rerule import io
from recipe.rerule.runs import run_log
from recipe.rerule.runs.history import mean, read_metrics, read_run, replay_start_step
from recipe.rerule.training import sizes
from recipe.rerule.training.health import SCORE

LEAST_RATE_SUM = 1e-6
"""AdamW moves a weight by about the learning rate a step; weights of language models are about 0.02."""
LEAST_LOSS_FALL = 0.05
LEAST_REWARD_RISE, HIGH_REWARD, FEWEST_STEPS = 0.02, 0.5, 8


def rate_warnings(config: DictConfig, section: str) -> Iterator[str]:
    """What to say where the learning rates of a checked configuration cannot move the model.

    section: where the optimiser's settings stand. Of a cosine half of its peak counts on average.
    """
    optim, count = OmegaConf.select(config, section), sizes.planned_steps(config)
    warmup = optim.lr_warmup_steps or 0
    if warmup <= 0:
        warmup = int((optim.lr_warmup_steps_ratio or 0) * count)
    rising = sum(step / warmup for step in range(min(count, warmup)))
    after = max(0, count - warmup) * (0.5 if optim.lr_scheduler_type == "cosine" else 1.0)
    total = optim.lr * (rising + after)
    if total < LEAST_RATE_SUM and optim.lr > 0:  # of 0 the settings have their own warning
        yield (
            f"the learning rates of the {count} steps add up to {total:.1e} ({section}.lr is {optim.lr:g}), "
            f"which moves no weight enough to change an answer; raise {section}.lr, train for more steps, or "
            "take experiment=custom"
        )


def never_replays(config: DictConfig) -> Iterator[str]:
    """Why a run of a resolved configuration of stage 2 has no replay update, where it has none.

    Of a threshold that is a quantile, that share of the groups is taken to be stored; of a fixed one all, and
    of 0 none, because no mean reward is below it.
    """
    replay, count = config.replay, sizes.planned_steps(config)
    if not replay.enable:
        return
    raise_steps = "train for more steps (trainer.total_epochs, trainer.total_training_steps)"
    shares = {"quantile": replay.threshold_quantile, "fixed": float(replay.threshold != 0)}
    share = 1.0 if replay.admission == "all" else shares.get(replay.threshold_rule, 1.0)
    kept = count if replay.max_staleness is None else min(count, replay.max_staleness + 1)
    most = math.floor(share * kept * config.data.train_batch_size)
    if (first := replay.warmup_steps + 1) > count:
        yield (
            f"replay starts at step {first} of {count}, so this run is RULE without replay; lower "
            f"replay.warmup_steps ({replay.warmup_steps}), or {raise_steps}"
        )
    elif most < replay.min_groups:
        ways = "raise replay.max_staleness" if kept < count else raise_steps
        ways = f"lower replay.min_groups, or {ways}" if share else "raise the threshold"
        yield (
            f"replay waits for {replay.min_groups} groups (replay.min_groups), and the buffer of this run "
            f"holds about {most} at most, so it is RULE without replay; {ways}"
        )


def warn_after(config: DictConfig, stage: int) -> None:
    """Warn where the records of a finished stage 1 or 2 show that nothing was learnt.

    A run without metrics (trainer.logger without file) says nothing; a finished run does not fail here.
    """
    folder = Path(config.trainer.default_local_dir)
    if not run_log.metrics_files(folder):
        return
    try:
        for text in _of_stage1(folder) if stage == 1 else _of_stage2(folder):
            io.warn(text)
    except ValueError as error:
        io.warn(f"what the run has learnt is not known: {error}")


def _of_stage1(folder: Path) -> Iterator[str]:
    losses = [data["train/loss"] for data in read_metrics(folder).values() if "train/loss" in data]
    first, last = _quarters(losses) if losses else (0.0, 0.0)
    if last > (1 - LEAST_LOSS_FALL) * first:
        yield (
            f"the loss of stage 1 hardly changed: {first:.3g} in the first quarter of the steps, {last:.3g} "
            "in the last; the model has learnt no refusals: raise optim.lr or trainer.total_epochs"
        )


def _of_stage2(folder: Path) -> Iterator[str]:
    run = read_run(folder.name, folder)
    count, forget = len(run.steps), run.groups[run.groups["side"] == "forget"]
    rewards = forget.groupby("step")["mean_reward"].mean().tolist()
    refused = run.series("refused/forget/mean")
    first, last = _quarters(rewards) if rewards else (math.nan, math.nan)
    if rewards and max(rewards) <= 0:
        yield (
            f"no response to a forget prompt earned any reward in {count} steps, so nothing was "
            "forgotten; stage 1 must teach some refusals first: raise its optim.lr or trainer.total_epochs"
        )
    elif rewards and len(refused) and refused.max() <= 0:
        yield (
            f"no response to a forget prompt was a refusal in {count} steps; stage 1 must teach "
            "some first: raise its optim.lr or trainer.total_epochs"
        )
    elif len(rewards) >= FEWEST_STEPS and last < min(HIGH_REWARD, first + LEAST_REWARD_RISE):
        yield (
            f"the reward of forget prompts did not rise: {first:.2f} in the first quarter of the steps, "
            f"{last:.2f} in the last; raise actor_rollout_ref.actor.optim.lr or trainer.total_epochs"
        )
    if run.logged(["replay/zero_signal_share"]).eq(1).all(axis=None):
        yield (
            "in no step did the responses to one prompt earn different rewards, so no advantage was other "
            "than 0 and the policy could not learn; look at records/rollouts, and at stage 1"
        )
    replays = run.setting("replay.enable") and run.setting("replay.update") == "stored"
    if replays and replay_start_step(run) is None:
        yield (
            f"replay.enable is true, but no replay update happened in {count} steps: the buffer held "
            f"{max(run.series('replay/size'), default=0):.0f} groups at most, where replay.min_groups is "
            f"{run.setting('replay.min_groups')} and replay.warmup_steps "
            f"{run.setting('replay.warmup_steps')}; lower them, or train for more steps"
        )
    scores = run.validations.reindex(columns=[SCORE])[SCORE].dropna().to_dict()
    start = scores.pop(0, None)
    if start is not None and scores and max(scores.values()) <= start:
        best = max(scores, key=lambda step: scores[step])
        yield (
            "no validation was better than the one before training: (forget refused + retain right) / 2 was "
            f"{start:.2f} there and {scores[best]:.2f} at best, at step {best}; the stage-1 model is the "
            "better one: lower actor_rollout_ref.actor.optim.lr, or read the warnings of the run"
        )


def _quarters(values: Sequence[float]) -> tuple[float, float]:
    """The means of the first and the last quarter, rounded up."""
    quarter = -(-len(values) // 4)
    return mean(values[:quarter]), mean(values[-quarter:])
