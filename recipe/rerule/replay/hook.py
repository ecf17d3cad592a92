"""The hook: what ReRULE adds to one training step of any trainer.

    plan = hook.before_update(groups, step)     offer the step's groups, then draw
    ...                                         the trainer's own on-policy update; of a mixed one the metrics
                                                of the stored rows go to hook.note_mixed
    hook.after_update(plan, update_replay)      one call for each draw
    hook.log                                    metrics and record of the step

It knows rollout groups and no trainer. What is drawn never depends on the policy, so that all draws are made
before the on-policy update: the trainer then knows whether more updates of the step follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from . import mixed
from .config import ReplayConfig
from .group import RolloutGroup
from .log import HookLog, StepLog, timed
from .replay import Replay

UpdateReplay = Callable[[list[RolloutGroup], bool], Mapping[str, float]]
"""One extra update: given the drawn groups and whether another update of the step follows, its metrics.

replay/seconds/PART among them are summed over the step's updates, all other numbers are averaged.
"""


@dataclass(frozen=True)
class StepPlan:
    """What a trainer is to do at one step besides its own on-policy update.

    Attributes:
        draws: the groups of each extra update, in order; none while the gate is closed.
        extra_groups: groups whose rows join the on-policy update (of replay.update=mixed alone).
        left_out: places of the step's own groups, in the order given, whose rows are not trained on.
        fresh_prompts: how many new prompts are wanted at the next step; None: all that the trainer takes.
    """

    draws: list[list[RolloutGroup]]
    extra_groups: list[RolloutGroup] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    fresh_prompts: int | None = None


class ReplayHook:
    """Offers, draws, and has the trainer do the extra updates, once a step.

    Attributes:
        replay: the buffer with its rules, to be saved and loaded; None where replay is off.
        multiple_of: data-parallel size, to which the number of drawn groups is rounded down. A trainer sets
            it once it knows.
        prompts: of a batch that is sampled whole, which a mixed update needs to know; set likewise.
        log: what happened at the last step.
    """

    def __init__(self, config: ReplayConfig, multiple_of: int = 1) -> None:
        self.config = config
        self.multiple_of = multiple_of
        self.prompts = 0
        self._memory = Replay(config)  # without replay, for the threshold alone
        self.replay = self._memory if config.enable else None
        self.log = HookLog(self._memory.log, config.enable)

    def before_update(self, groups: Sequence[RolloutGroup], step: int) -> StepPlan:
        """Offer the groups of step ``step`` (counted from 1), and draw those of its extra updates.

        Groups that join the step's own are drawn before these are offered, see ``Replay.draw_ahead``.

        Raises:
            ValueError: a group was made at another step; nothing is stored then.
        """
        seconds: dict[str, float] = {}
        joining: list[RolloutGroup] = []
        if self._is_mixed:
            with timed("draw", seconds):
                joining = self._joining(groups, step)
        with timed("offer", seconds):
            log = self._offered(groups, step)
        with timed("draw", seconds):
            draws = self._draws(step)
        self.log = HookLog(log, self.config.enable, seconds)
        if not self._is_mixed:
            return StepPlan(draws)
        left_out = mixed.left_out(self.config, self.prompts, groups, mixed.filled(groups, joining))
        self.log.fresh = {
            "replay/fresh_groups": float(len(groups)),
            "replay/left_out_groups": float(len(left_out)),
        }
        return StepPlan(draws, joining, left_out, self.fresh_prompts(step + 1))

    def fresh_prompts(self, step: int) -> int | None:
        """How many new prompts are wanted at ``step``, the next one; None: all that the trainer takes.

        Fewer than all only where the buffer will have as many groups as prompts are left out. Follows from
        the saved state, so that a resumed run wants the same.
        """
        fewer = mixed.fresh_prompts(self.config, self.prompts)
        if not self._is_mixed or self.replay is None or fewer >= self.prompts:
            return None
        return fewer if self.replay.can_draw_ahead(step, self.prompts - fewer) else None

    def note_mixed(self, metrics: Mapping[str, float]) -> None:
        """Take what a mixed update reports of the stored rows."""
        self.log.updates.append(metrics)

    def after_update(self, plan: StepPlan, update_replay: UpdateReplay) -> None:
        """Call ``update_replay`` for each draw of the plan and note what it reports."""
        for number, drawn in enumerate(plan.draws, start=1):
            self.log.updates.append(update_replay(drawn, number < len(plan.draws)))

    @property
    def _is_mixed(self) -> bool:
        return self.replay is not None and self.config.update == "mixed"

    def _joining(self, groups: Sequence[RolloutGroup], step: int) -> list[RolloutGroup]:
        assert self.replay is not None
        wanted = mixed.places(self.config, self.prompts, groups)
        return self.replay.draw_ahead(step, wanted, self.multiple_of)

    def _offered(self, groups: Sequence[RolloutGroup], step: int) -> StepLog:
        if self.replay is None:
            return StepLog(step, self._memory.threshold.update(groups), groups)
        self.replay.offer(groups, step)
        return self.replay.log

    def _draws(self, step: int) -> list[list[RolloutGroup]]:
        if self.replay is None or self._is_mixed:
            return []
        draws = [self.replay.draw(step, self.multiple_of) for _ in range(self.config.updates_per_step)]
        if self.config.update == "on_policy":
            self.replay.log.draws.clear()  # they only tell when replay would have updated
        return [drawn for drawn in draws if drawn]
