"""Replay: threshold, admission, buffer, gate and sampling behind the two calls a trainer makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .buffer import ReplayBuffer, StoredGroup, StoredRollout, Visits, build_eviction, build_limits
from .config import ReplayConfig
from .custom import ReplayRuleError, build_rules, custom_settings
from .group import RolloutGroup
from .log import Departure, Draw, Key, StepLog
from .selection import Gate, HighestSampler, build_admission, build_sampler, build_threshold


class ReplayStateError(ValueError):
    """A saved replay state is missing, damaged or does not fit this run; the message is one line."""


class Replay:
    """Keeps rollout groups over training steps and hands them out again.

    Once a step: ``offer`` the step's groups, then ``draw`` for each replay update; or ``draw_ahead`` and then
    ``offer``, where the drawn groups are to join the step's own. The same settings, seed and offered groups
    give the same stored groups and draws. ``log`` is what happened at the last step.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        # Separate streams: how many groups were offered must not change which ones are drawn.
        streams = dict.fromkeys(["admission", "sampling", *custom_settings(config)])
        self._rngs = {name: random.Random(f"{config.seed}/{name}") for name in streams}
        self._rules = build_rules(config, self._rngs)
        self.buffer = ReplayBuffer(config.capacity, build_eviction(config, self._rules.get("eviction")))
        self.gate = Gate(config.min_groups, config.warmup_steps, config.start)
        self.threshold = build_threshold(config, self._rules.get("threshold_rule"))
        self.visits = Visits(config.set_aside_visits, config.set_aside_reward)
        self._admission = build_admission(config, self._rngs["admission"], self._rules.get("admission"))
        self._sampler = build_sampler(config, self._rngs["sampling"], self._rules.get("sampling"))
        self._limits = build_limits(config)
        self.log = StepLog(step=0, threshold=0.0, offered=[])
        self._ahead: StepLog | None = None  # what was drawn before the step's groups were offered

    def offer(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """Let groups leave whose time has come, then store those of the step's groups that are admitted.

        Raises:
            ValueError: a group was made at another step; nothing is stored then.
        """
        for group in groups:
            if group.step != step:
                raise ValueError(f"a group of step {group.step} was offered at step {step}")
        self.visits.observe(groups)
        ahead, self._ahead = self._ahead, None
        self.log = StepLog(step, self.threshold.update(groups), groups, set_aside=self.visits.set_aside())
        if ahead is not None and ahead.step == step:
            self.log.draws, self.log.departures = ahead.draws, ahead.departures
        self._let_go(step)
        if self.config.store_after_start or not self.gate.is_open:
            self._store([group for group in groups if not self.visits.is_set_aside(group.prompt_index)])
        self._note_state()

    def draw(self, step: int, multiple_of: int = 1) -> list[RolloutGroup]:
        """The groups of one replay update; empty while the gate is closed.

        With unit "rollout" as many rollouts as these groups would have, each as a group of its own.

        Args:
            step: current training step, counted from 1.
            multiple_of: data-parallel size, to which the number of groups is rounded down, so that every
                rank gets as many.
        """
        return self._draw(step, self.config.groups_per_update, multiple_of)

    def draw_ahead(self, step: int, groups: int, multiple_of: int = 1) -> list[RolloutGroup]:
        """At most ``groups`` groups of earlier steps; empty while the gate is closed.

        To be called before the step's own groups are offered: these are in the batch that the drawn ones
        join, and none is to be in it twice. ``multiple_of``: as of ``draw``.
        """
        self.log = self._ahead = StepLog(step, self.log.threshold, [])
        return self._draw(step, groups, multiple_of)

    def can_draw_ahead(self, step: int, groups: int) -> bool:
        """Whether ``draw_ahead`` at ``step``, the next one, would give so many groups. Changes nothing."""
        size = sum(not self._is_leaving(stored, step) for stored in self.buffer)
        return size >= groups and self.gate.would_open(size, step)

    def _draw(self, step: int, groups: int, multiple_of: int) -> list[RolloutGroup]:
        self._let_go(step)
        self.gate.update(len(self.buffer), step)
        self._note_state()
        if not self.gate.is_open:
            return []
        size = min(groups, len(self.buffer))
        chosen = self._chosen(size - size % multiple_of, step)
        drawn = Draw(
            groups=[stored.group() for stored in chosen],
            staleness=[stored.staleness(step) for stored in chosen],
            reuse=[stored.reuse_count for stored in chosen],
            rollouts=[stored.place for stored in chosen if isinstance(stored, StoredRollout)],
        )
        for stored in chosen:
            stored.count_draw()
        if chosen:
            self.log.draws.append(drawn)
        return drawn.groups

    def _chosen(self, size: int, step: int) -> Sequence[StoredGroup | StoredRollout]:
        """``size`` groups, or as many rollouts as they would have."""
        groups = list(self.buffer)
        if self.config.unit == "group" or not isinstance(self._sampler, HighestSampler):
            return self._sampler.sample(groups, size, step)
        # Backwards, since of equal ones the last is taken: then it is the first of the newest group.
        rollouts = [one for stored in groups for one in reversed(stored.rollouts())]
        return self._sampler.sample(rollouts, size * max((stored.n for stored in groups), default=0), step)

    def state_dict(self) -> dict[str, Any]:
        """All that decides later contents and draws.

        Returns:
            "groups": copies of the stored groups in order; "gate_open": bool; "threshold", "visits": of
            their classes; "rng": for each generator its state as plain lists; "rules": of each rule of the
            user's own that has a state, by setting, its "class" and "state" (left out where there is none).
            All but the groups is exact in JSON.
        """
        state = {
            "groups": [replace(stored) for stored in self.buffer],
            "gate_open": self.gate.is_open,
            "threshold": self.threshold.state(),
            "visits": self.visits.state(),
            "rng": {name: list(rng.getstate()) for name, rng in self._rngs.items()},
        }
        rules = self._rule_states()
        return {**state, "rules": rules} if rules else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict`` of a run; the settings may differ, they apply from here on.

        Raises:
            ReplayStateError: more groups than this capacity, or another layout. Nothing is changed then.
        """
        if len(state["groups"]) > self.config.capacity:
            raise ReplayStateError(
                f"the saved replay buffer holds {len(state['groups'])} groups but replay.capacity is "
                f"{self.config.capacity}; raise replay.capacity to at least {len(state['groups'])}"
            )
        restored = Replay(self.config)
        restored._restore(state)
        vars(self).update(vars(restored))

    def _restore(self, state: Mapping[str, Any]) -> None:
        """``load_state_dict`` of a replay that is thrown away where the state is not readable."""
        self.buffer.restore(state["groups"])
        self.gate.is_open = state["gate_open"]
        self._restore_generators(state["rng"])
        try:
            self.threshold.restore(state["threshold"])
            self.visits.restore(state["visits"])
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise ReplayStateError(f"the saved threshold or visits are not readable: {error}") from error
        self._restore_rules(state.get("rules", {}))

    def _restore_generators(self, saved: Mapping[str, Any]) -> None:
        # A rule of the user's own may be new in this run.
        new = [name for name in self._rules if isinstance(saved, Mapping) and name not in saved]
        for name, rng in self._rngs.items():
            if name not in new:
                rng.setstate(_rng_state(saved, name))

    def _rule_states(self) -> dict[str, Any]:
        own = custom_settings(self.config)
        rules = {setting: rule for setting, rule in self._rules.items() if rule.has_state}
        return {setting: {"class": own[setting], "state": rule.saved()} for setting, rule in rules.items()}

    def _restore_rules(self, saved: Mapping[str, Any]) -> None:
        """Give each rule of the user's own its state again; another class than the saved one starts anew."""
        own = custom_settings(self.config)
        try:
            for setting, rule in self._rules.items():
                entry = saved.get(setting)
                if rule.has_state and entry is not None and entry["class"] == own[setting]:
                    rule.continue_from(entry["state"])
        except (AttributeError, KeyError, TypeError, ReplayRuleError) as error:
            raise ReplayStateError(
                f"the saved state of a rule is not readable: {error}; go on with the class that saved it, or "
                "pass replay.restore=false to start with an empty buffer"
            ) from error

    def _note_state(self) -> None:
        self.log.size = len(self.buffer)
        self.log.gate_open = self.gate.is_open

    def _store(self, candidates: Sequence[RolloutGroup]) -> None:
        for group in self._admission.admit(candidates, self.log.threshold):
            self.log.stored.append(Key(group.prompt_index, group.step))
            evicted = self.buffer.add(group)
            if evicted is not None:
                self._note_departures([evicted], "capacity")

    def _let_go(self, step: int) -> None:
        self._remove(lambda stored: self.visits.is_set_aside(stored.prompt_index), "set_aside")
        for reason, limit in self._limits.items():
            self._remove(lambda stored, limit=limit: limit.exceeded(stored, step), reason)  # type: ignore[misc]

    def _is_leaving(self, stored: StoredGroup, step: int) -> bool:
        """Whether ``_let_go`` would let the group go."""
        limited = any(limit.exceeded(stored, step) for limit in self._limits.values())
        return limited or self.visits.is_set_aside(stored.prompt_index)

    def _remove(self, leaves: Callable[[StoredGroup], bool], reason: str) -> None:
        self._note_departures(self.buffer.remove(leaves), reason)

    def _note_departures(self, left: Sequence[StoredGroup], reason: str) -> None:
        keys = [Key(stored.prompt_index, stored.step) for stored in left]
        self.log.departures += [Departure(key, reason) for key in keys]


def _rng_state(saved: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """The saved state of one generator, as ``random.Random.setstate`` takes it."""
    try:
        version, words, gauss = saved[name]
        state = (version, tuple(words), gauss)
        random.Random().setstate(state)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ReplayStateError(f"the saved state of the {name} generator is not readable: {error}") from error
    return state
