"""The hook: what ReRULE adds to one training step of any trainer.

    draws = hook.before_update(groups, step)    offer the step's groups, then draw
    ...                                         the trainer's own on-policy update
    hook.after_update(draws, update_replay)     one call for each draw
    hook.log                                    metrics and record of the step

It knows rollout groups and no trainer. What is drawn never depends on the policy, so that all draws are made
before the on-policy update: the trainer then knows whether more updates of the step follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .config import ReplayConfig
from .group import RolloutGroup
from .log import HookLog, StepLog, timed
from .replay import Replay

UpdateReplay = Callable[[list[RolloutGroup], bool], Mapping[str, float]]
"""One extra update: given the drawn groups and whether another update of the step follows, its metrics.

replay/seconds/PART among them are summed over the step's updates, all other numbers are averaged.
"""


class ReplayHook:
    """Offers, draws, and has the trainer do the extra updates, once a step.

    Attributes:
        replay: the buffer with its rules, to be saved and loaded; None where replay is off.
        multiple_of: data-parallel size, to which the number of drawn groups is rounded down. A trainer sets
            it once it knows.
        log: what happened at the last step.
    """

    def __init__(self, config: ReplayConfig, multiple_of: int = 1) -> None:
        self.config = config
        self.multiple_of = multiple_of
        self._memory = Replay(config)  # without replay, for the threshold alone
        self.replay = self._memory if config.enable else None
        self.log = HookLog(self._memory.log, config.enable)

    def before_update(self, groups: Sequence[RolloutGroup], step: int) -> list[list[RolloutGroup]]:
        """Offer the groups of step ``step`` (counted from 1); the groups of each extra update, in order.

        Raises:
            ValueError: a group was made at another step; nothing is stored then.
        """
        seconds: dict[str, float] = {}
        with timed("offer", seconds):
            log = self._offered(groups, step)
        with timed("draw", seconds):
            draws = self._draws(step)
        self.log = HookLog(log, self.config.enable, seconds)
        return draws

    def after_update(self, draws: Sequence[list[RolloutGroup]], update_replay: UpdateReplay) -> None:
        """Call ``update_replay`` for each draw and note what it reports."""
        for number, drawn in enumerate(draws, start=1):
            self.log.updates.append(update_replay(drawn, number < len(draws)))

    def _offered(self, groups: Sequence[RolloutGroup], step: int) -> StepLog:
        if self.replay is None:
            return StepLog(step, self._memory.threshold.update(groups), groups)
        self.replay.offer(groups, step)
        return self.replay.log

    def _draws(self, step: int) -> list[list[RolloutGroup]]:
        """None while the gate is closed."""
        if self.replay is None:
            return []
        draws = [self.replay.draw(step, self.multiple_of) for _ in range(self.config.updates_per_step)]
        if self.config.update == "on_policy":
            self.replay.log.draws.clear()  # they only tell when replay would have updated
        return [drawn for drawn in draws if drawn]
