"""What ReRULE adds to a training step, the same in both of verl's trainers: extra updates and records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from verl.utils import tensordict_utils as tu

from recipe.rerule.replay import ReplayConfig, ReplayHook, RolloutGroup
from recipe.rerule.replay.log import timed
from recipe.rerule.runs import run_log
from recipe.rerule.training.batches import Rollouts, replay_batch
from recipe.rerule.training.saved_run import SavedRun
from recipe.rerule.training.worker import PAUSE_SCHEDULE, STAY_LOADED

OnPolicyUpdate = Callable[[Mapping[str, bool]], Mapping[str, float]]
"""The step's on-policy update once more, with marks for the worker; returns its metrics by verl's names."""


class HookedTrainer(SavedRun):
    """Stands before a trainer of verl among the bases of a class.

    Attributes:
        hook: what decides which groups are stored and drawn.
    """

    actor_rollout_wg: Any

    def __init__(self, *args: Any, replay_config: ReplayConfig, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replay_config = replay_config
        self.hook = ReplayHook(replay_config)
        self.replay = self.hook.replay

    def _extra_update(
        self, repeat: OnPolicyUpdate, seconds: dict[str, float], drawn: list[RolloutGroup], more_follow: bool
    ) -> dict[str, float]:
        """One update after the on-policy update: a replay update, or its control on the same batch."""
        marks = {STAY_LOADED: True} if more_follow else {}
        if self.replay_config.update == "on_policy":
            with timed("update", seconds):
                metrics = repeat({PAUSE_SCHEDULE: True, **marks})
            return {
                "replay/pg_loss": metrics["actor/pg_loss"],
                "replay/grad_norm": metrics["actor/grad_norm"],
            }
        with timed("collate", seconds):
            data = self._replay_data(drawn, marks)
        with timed("update", seconds):
            output = self.actor_rollout_wg.update_actor_replay(data)
        return dict(tu.get(output, "metrics"))

    def _replay_data(self, drawn: list[RolloutGroup], marks: Mapping[str, bool]) -> Any:
        temperature = self.config.actor_rollout_ref.rollout.temperature
        data = replay_batch(drawn, self.replay_config, self.tokenizer.pad_token_id, temperature)
        tu.assign_non_tensor(data, **marks)
        return data

    def _record(self, rollouts: Rollouts) -> None:
        run_folder, groups, prompts = self.config.trainer.default_local_dir, rollouts.groups, rollouts.prompts
        subjects = {index: label.subject for index, label in prompts.items()}
        run_log.append_prompts(run_folder, self.global_steps, groups, subjects)
        if self.config.records.rollouts:
            queries = {index: label.query for index, label in prompts.items()}
            run_log.write_rollouts(run_folder, self.global_steps, groups, queries, self.tokenizer)
        if self.hook.log.has_replay:
            run_log.append_replay(run_folder, self.hook.log.replay)
