"""What ReRULE adds to both of verl's trainers: extra updates, records, and whether the run goes well."""

from __future__ import annotations

import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from verl.utils import tensordict_utils as tu

from recipe.rerule import io
from recipe.rerule.replay import ReplayConfig, ReplayHook, RolloutGroup
from recipe.rerule.replay.group import SIDES
from recipe.rerule.replay.log import timed
from recipe.rerule.runs import checkpoints, run_log
from recipe.rerule.runs.history import read_metrics
from recipe.rerule.training.batches import Rollouts, replay_batch
from recipe.rerule.training.health import SCORE, Health, validation_metrics
from recipe.rerule.training.saved_run import SavedRun
from recipe.rerule.training.worker import STAY_LOADED

_IF_ANY = ("named", "leaked_thought", "empty", "cut")
_SHARES = ("refused", "leaked", "right", "mixed", *_IF_ANY)
"""Shares in the line, in this order; the last ones only where they are not 0, to keep the line short."""


class HookedTrainer(SavedRun):
    """Stands before a trainer of verl among the bases of a class.

    Attributes:
        hook: what decides which groups are stored and drawn.
        health: what decides whether the run goes well.
    """

    def __init__(self, *args: Any, replay_config: ReplayConfig, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replay_config = replay_config
        self.hook = ReplayHook(replay_config)
        self.replay = self.hook.replay
        self.health = Health(self.config.health.stop_after)
        self._said: Mapping[str, Any] | None = None
        self._validated_start: Mapping[str, float] = {}
        self._asked: list[Mapping[str, Any]] = []

    def is_finished(self) -> bool:
        """As `SavedRun`'s, or `health.stop_after` made the newest step the last one.

        With trainer.val_only it never is, since its end is what is to be validated.
        """
        if self.config.trainer.val_only:
            return False
        auto, folder = self.config.trainer.resume_mode == "auto", self.config.trainer.default_local_dir
        newest = (checkpoints.newest_complete(folder) or 0) if auto else 0
        ended = self._health_until(newest).over_at
        return super().is_finished() or (ended is not None and newest == ended + 1)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        self.health = self._health_until(self.global_steps)
        if self.health.over_at == self.global_steps < self.total_training_steps:
            self.total_training_steps = self.global_steps + 1  # the run was to end after this step
        else:
            self.health.over_at = None  # whoever goes on has seen it

    def _health_until(self, step: int) -> Health:
        """Of the run's records up to a step, as far as there are any that can be read."""
        health, folder = Health(self.config.health.stop_after), Path(self.config.trainer.default_local_dir)
        if step < 1 or not run_log.metrics_files(folder):
            return health
        with contextlib.suppress(ValueError):
            for number, metrics in read_metrics(folder).items():
                if number <= step:
                    health.note(number, metrics)
        return health

    def _say(self, metrics: Mapping[str, Any]) -> None:
        """Print the step's line and warnings; end the run where a fault has held for too long."""
        step, self._said = self.global_steps, metrics
        if step == 1 and (line := start_line(self._validated_start, metrics)) is not None:
            print(line, flush=True)
        print(progress_line(step, self.total_training_steps, metrics), flush=True)
        for text in self.health.note(step, metrics):
            io.warn(text)
        if self.health.over_at == step and step + 1 < self.total_training_steps:
            self.total_training_steps = step + 1  # `fit` saves, validates and ends at its last step
            print(
                f"step {step}: the run ends after step {step + 1}, because health.stop_after is "
                f"{self.config.health.stop_after} and this has held for so many steps: {self.health.over_by}",
                flush=True,
            )

    def _validate(self, *args: Any, **kwargs: Any) -> Any:
        """verl's, with the metrics by side; the step's checkpoint is kept where it is the best so far."""
        loader, self._asked = self.val_dataloader, []
        self.val_dataloader = self._noted(loader)
        try:
            metrics = super()._validate(*args, **kwargs)
        finally:
            self.val_dataloader = loader
        if self.global_steps == 0:
            self._validated_start = metrics
        elif self.config.save.best and self._save_freq > 0:
            self._keep_if_best(metrics)
        return metrics

    def _noted(self, loader: Any) -> Iterator[dict[str, Any]]:
        """The batches of validation, each with ids by which `_val_metrics_update` finds the rows again.

        V0 takes the ids that a batch has, and V1 puts its own there.
        """
        for rows in loader:
            rows["uid"] = np.array([str(uuid.uuid4()) for _ in rows["reward_model"]], dtype=object)
            self._asked.append(rows)
            yield rows

    def _val_metrics_update(
        self, data_sources: Any, uids: Any, parts: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, float]:
        metrics: dict[str, float] = super()._val_metrics_update(data_sources, uids, parts, *args, **kwargs)
        asked = {
            uid: {"index": int(info["index"]), "type": label["ground_truth"]["type"]}
            | {name: info[name] for name in ("mode", "subject", "query")}
            for rows in self._asked
            for uid, label, info in zip(rows["uid"], rows["reward_model"], rows["extra_info"], strict=True)
        }
        prompts = [asked[uid] for uid in uids]
        run_folder = self.config.trainer.default_local_dir
        run_log.append_validation(run_folder, self.global_steps, prompts, parts["reward"])
        return metrics | validation_metrics([prompt["type"] for prompt in prompts], parts)

    def _keep_if_best(self, metrics: Mapping[str, float]) -> None:
        """Keep the checkpoint of the validated step where no step of the run was as good."""
        folder, step = self.config.trainer.default_local_dir, self.global_steps
        if SCORE not in metrics:
            return
        names = ("forget/refused", "retain/right", "retain/refused")
        found = checkpoints.Best(step, metrics[SCORE], *(metrics[f"val-health/{name}"] for name in names))
        if not found.better_than(checkpoints.best(folder)):
            return
        if checkpoints.problem(checkpoints.step_folder(folder, step)) is not None:
            if self._said is None:
                return  # before the first step of a run that goes on from another run's checkpoint
            # As while `fit` saves: the engine's memory is free, and it gets the weights again afterwards.
            self.checkpoint_manager.sleep_replicas()
            self._save(interim=True)
            self._saved_at = time.monotonic()
            self.checkpoint_manager.update_weights(step)
        checkpoints.note_best(folder, found)
        checkpoints.keep(folder, self._checkpoints_to_keep)

    def _keep_metrics(self) -> None:
        """Of the step's update. What verl adds of the step comes after the checkpoint, in its log alone."""
        if self._said is not None:  # as in a step of trainer.critic_warmup
            step = self.global_steps
            run_log.keep_metrics(step, {**self._said, "training/global_step": step})

    def _update_with_replay(
        self, rollouts: Rollouts, sent: dict[str, Any], seconds: dict[str, float], update: Callable[[], Any]
    ) -> Any:
        """verl's on-policy `update`, of which the result is returned, then the replay updates.

        sent: what goes to the worker beside the rows. seconds: gets what the parts took.
        """
        draws = self.hook.before_update(rollouts.groups, self.global_steps)
        if draws:
            sent[STAY_LOADED] = True
        try:
            output = update()
        finally:
            sent.pop(STAY_LOADED, None)
        self.hook.after_update(draws, functools.partial(self._replay_update, seconds))
        with timed("record", seconds):
            self._record(rollouts)
        return output

    def _replay_update(
        self, seconds: dict[str, float], drawn: list[RolloutGroup], more_follow: bool
    ) -> dict[str, float]:
        """One replay update after the on-policy update."""
        temperature, ranks = self.config.actor_rollout_ref.rollout.temperature, self.hook.multiple_of
        with timed("collate", seconds):
            data = replay_batch(drawn, self.replay_config, self.tokenizer.pad_token_id, temperature, ranks)
            if more_follow:
                tu.assign_non_tensor(data, **{STAY_LOADED: True})
        with timed("update", seconds):
            output = self.actor_rollout_wg.update_actor_replay(data)
        return dict(tu.get(output, "metrics"))

    def _record(self, rollouts: Rollouts) -> None:
        run_folder, groups, prompts = self.config.trainer.default_local_dir, rollouts.groups, rollouts.prompts
        subjects = {index: label.subject for index, label in prompts.items()}
        run_log.append_prompts(run_folder, self.global_steps, groups, subjects)
        if self.config.records.rollouts:
            queries = {index: label.query for index, label in prompts.items()}
            run_log.write_rollouts(run_folder, self.global_steps, groups, queries, self.tokenizer)
        if self.replay is not None:
            run_log.append_replay(run_folder, self.hook.log)


def progress_line(step: int, total: int, metrics: Mapping[str, Any]) -> str:
    """One line a step for a person: each side, the KL, hard groups and tau, buffer, extra updates."""
    parts = [f"step {step}/{total}", *filter(None, (_side(side, metrics) for side in SIDES))]
    if (kl := metrics.get("actor/kl_loss")) is not None:
        parts.append(f"KL {np.mean(kl):.2g}")
    if (hard := metrics.get("replay/hard_share")) is not None:
        parts.append(f"hard groups {hard:.0%} (below {metrics['replay/threshold']:.2g})")
    if "replay/size" in metrics:
        parts.append(f"buffer {metrics['replay/size']:.0f}")
    if metrics.get("replay/drawn_groups"):
        parts.append(f"replayed {metrics['replay/drawn_groups']:.0f} groups")
    elif metrics.get("replay/updates"):
        parts.append("updated on the step's own groups")
    return "  ".join(parts)


def start_line(validation: Mapping[str, float], metrics: Mapping[str, float]) -> str | None:
    """Where a stage 2 starts: of its validation before training where it had one, else of its first step.

    None where the reward function does not say what is refused and right.
    """
    refused = validation.get("val-health/forget/refused", metrics.get("refused/forget/mean"))
    right = validation.get("val-health/retain/right", metrics.get("right/retain/mean"))
    if refused is None or right is None:
        return None
    where = "by validation" if validation else "in step 1"
    return (
        f"start: forget refused {refused:.0%}, retain right {right:.0%} ({where}), "
        f"{metrics['mixed/mean']:.0%} of groups mixed"
    )


def _side(side: str, metrics: Mapping[str, float]) -> str:
    """A side's part of the line; "" where the step had no prompt of the side."""
    if (reward := metrics.get(f"reward/{side}/mean")) is None:
        return ""
    words = [f"{side}: reward {reward:.2f}"]
    for name in _SHARES:
        share = metrics.get(f"{name}/{side}/mean")
        if share is not None and (share > 0 or name not in _IF_ANY):
            words.append(f"{name.replace('_', ' ')} {share:.0%}")
    if (tokens := metrics.get(f"tokens/{side}/mean")) is not None:
        words.append(f"{tokens:.0f} tokens")
    return " ".join(words)
