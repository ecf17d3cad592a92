"""Replay over training steps: ``Replay`` stores and draws, ``ReplayHook`` is what a trainer adds to its step.

    draws = hook.before_update(groups, step)    offer the step's groups, then draw
    ...                                         the trainer's own on-policy update
    hook.after_update(draws, update_replay)     one call for each draw
    hook.metrics(), hook.log                    metrics and record of the step

Both know rollout groups and no trainer. What is drawn never depends on the policy, so that all draws are made
before the on-policy update: the trainer then knows whether more updates of the step follow.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .buffer import StoredGroup, Threshold, admitted, sampled
from .config import ReplayConfig
from .custom import ReplayRuleError, build_rules, custom_settings
from .group import RolloutGroup
from .log import Departure, Draw, Key, StepLog, offer_metrics, part_seconds, timed, update_metrics

UpdateReplay = Callable[[list[RolloutGroup], bool], Mapping[str, float]]
"""One extra update: given the drawn groups and whether another update of the step follows, its metrics.

replay/seconds/PART among them are summed over the step's updates, all other numbers are averaged.
"""


class ReplayStateError(ValueError):
    """A saved replay state is missing, damaged or does not fit this run; the message is one line."""


class Replay:
    """Keeps rollout groups over training steps and hands them out again.

    Once a step: ``offer`` the step's groups, then ``draw`` for each replay update. The same settings, seed
    and offered groups give the same stored groups and draws.

    Attributes:
        buffer: the stored groups, oldest first; at most `config.capacity`.
        is_open: whether replay has started: `config.min_groups` groups (B_min) were stored at a step after
            `config.warmup_steps` (T_warm; the paper's "exceeds"). Once it has, it goes on.
        log: what happened at the last step.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        # Separate streams: how many groups were offered must not change which ones are drawn.
        streams = dict.fromkeys(["admission", "sampling", *custom_settings(config)])
        self._rngs = {name: random.Random(f"{config.seed}/{name}") for name in streams}
        self._rules = build_rules(config, self._rngs)
        self.buffer: list[StoredGroup] = []
        self.is_open = False
        self._threshold = Threshold(config)
        self.log = StepLog(step=0, threshold=0.0, offered=[])

    def threshold(self, groups: Sequence[RolloutGroup]) -> float:
        """Tau of the step with these groups. ``offer`` asks for it, or else the caller, once a step."""
        return (self._rules.get("threshold_rule") or self._threshold).update(groups)

    def offer(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """Let groups leave whose time has come, then store those of the step's groups that are admitted.

        Raises ValueError: a group was made at another step; nothing is stored then.
        """
        for group in groups:
            if group.step != step:
                raise ValueError(f"a group of step {group.step} was offered at step {step}")
        self.log = StepLog(step, self.threshold(groups), groups)
        self._let_go(step)
        if self.config.store_after_start or not self.is_open:
            own = self._rules.get("eviction")
            for group in self._admitted(groups):
                self.log.stored.append(Key(group.prompt_index, group.step))
                self.buffer.append(StoredGroup.of(group))
                if len(self.buffer) > self.config.capacity:
                    evicted = self.buffer.pop(0 if own is None else own.victim(self.buffer))
                    self._note_departures([evicted], "capacity")
        self._note_state()

    def draw(self, step: int, multiple_of: int = 1) -> list[RolloutGroup]:
        """The groups of one replay update; empty before replay has started.

        Args:
            step: current training step, counted from 1.
            multiple_of: data-parallel size, to which the number of groups is rounded down, so that every
                rank gets as many.
        """
        self._let_go(step)
        enough = len(self.buffer) >= self.config.min_groups and step > self.config.warmup_steps
        self.is_open = self.is_open or enough
        self._note_state()
        if not self.is_open:
            return []
        size = min(self.config.groups_per_update, len(self.buffer))
        chosen = self._sampled(size - size % multiple_of, step)
        drawn = Draw(
            groups=[stored.group() for stored in chosen],
            staleness=[stored.staleness(step) for stored in chosen],
            reuse=[stored.reuse_count for stored in chosen],
        )
        for stored in chosen:
            stored.reuse_count += 1
        if chosen:
            self.log.draws.append(drawn)
        return drawn.groups

    def of_the_step(self, groups: Sequence[RolloutGroup], k: int, multiple_of: int = 1) -> list[RolloutGroup]:
        """The equal-update control of a draw: k of the step's own groups at random, or as many as there are.

        Like a draw, it has only groups with signal where `require_signal` is set, and a multiple of
        `multiple_of`.
        """
        able = [group for group in groups if group.has_signal or not self.config.require_signal]
        k = min(k, len(able))
        return self._rngs["sampling"].sample(able, k - k % multiple_of)

    def state_dict(self) -> dict[str, Any]:
        """All that decides later contents and draws.

        Returns:
            "groups": copies of the stored groups in order; "gate_open": bool; "threshold": of
            its class; "rng": for each generator its state as plain lists; "rules": of each rule of the
            user's own that has a state, by setting, its "class" and "state".
            All but the groups is exact in JSON.
        """
        own = custom_settings(self.config)
        rules = {setting: rule for setting, rule in self._rules.items() if rule.has_state}
        return {
            "groups": [replace(stored) for stored in self.buffer],
            "gate_open": self.is_open,
            "threshold": self._threshold.state(),
            "rng": {name: list(rng.getstate()) for name, rng in self._rngs.items()},
            "rules": {name: {"class": own[name], "state": rule.saved()} for name, rule in rules.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict`` of a run; the settings may differ, they apply from here on.

        Raises ReplayStateError: more groups than this capacity, or another layout. Nothing is changed then.
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
        self.buffer = [replace(stored) for stored in state["groups"]]
        self.is_open = state["gate_open"]
        self._restore_generators(state["rng"])
        try:
            self._threshold.restore(state["threshold"])
        except (TypeError, ValueError, OverflowError) as error:
            raise ReplayStateError(f"the saved threshold is not readable: {error}") from error
        self._restore_rules(state["rules"])

    def _restore_generators(self, saved: Mapping[str, Any]) -> None:
        for name, rng in self._rngs.items():
            if name in self._rules and isinstance(saved, Mapping) and name not in saved:
                continue  # a rule of the user's own that is new in this run
            try:
                version, words, gauss = saved[name]
                rng.setstate((version, tuple(words), gauss))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise ReplayStateError(
                    f"the saved state of the {name} generator is not readable: {error}"
                ) from error

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
        self.log.gate_open = self.is_open

    def _admitted(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        # Filtered first, so that the random rule still stores as many as the hard one.
        if self.config.require_signal:
            groups = [group for group in groups if group.has_signal]
        if (own := self._rules.get("admission")) is not None:
            return own.admit(groups, self.log.threshold)
        return admitted(groups, self.log.threshold, self.config.admission, self._rngs["admission"])

    def _sampled(self, k: int, step: int) -> list[StoredGroup]:
        if (own := self._rules.get("sampling")) is not None:
            return own.sample(self.buffer, k, step)
        return sampled(self.buffer, k, self.config.sampling, self._rngs["sampling"])

    def _let_go(self, step: int) -> None:
        most = self.config.max_staleness
        if most is not None:
            old = [stored for stored in self.buffer if stored.staleness(step) > most]
            self.buffer = [stored for stored in self.buffer if stored.staleness(step) <= most]
            self._note_departures(old, "staleness")

    def _note_departures(self, left: Sequence[StoredGroup], reason: str) -> None:
        keys = [Key(stored.prompt_index, stored.step) for stored in left]
        self.log.departures += [Departure(key, reason) for key in keys]


class ReplayHook:
    """Offers, draws, and has the trainer do the extra updates, once a step.

    Attributes:
        replay: the buffer with its rules, to be saved and loaded; None where replay is off.
        multiple_of: data-parallel size, to which the number of drawn groups is rounded down. A trainer sets
            it once it knows.
        log: what happened at the last step; without replay only the groups and the threshold.
    """

    def __init__(self, config: ReplayConfig, multiple_of: int = 1) -> None:
        self.config = config
        self.multiple_of = multiple_of
        self._memory = Replay(config)
        self.replay = self._memory if config.enable else None
        self.log = self._memory.log
        self._seconds: dict[str, float] = {}
        self._updates: list[Mapping[str, float]] = []

    def before_update(self, groups: Sequence[RolloutGroup], step: int) -> list[list[RolloutGroup]]:
        """Offer the groups of step ``step`` (counted from 1).

        Returns:
            the groups of each extra update, in order; none while the gate is closed.

        Raises ValueError: a group was made at another step; nothing is stored then.
        """
        self._seconds, self._updates, draws = {}, [], []
        with timed("offer", self._seconds):
            if self.replay is None:
                self.log = StepLog(step, self._memory.threshold(groups), groups)
            else:
                self.replay.offer(groups, step)
                self.log = self.replay.log
        with timed("draw", self._seconds):
            if self.replay is not None:
                updates = range(self.config.updates_per_step)
                draws = [self.replay.draw(step, self.multiple_of) for _ in updates]
                if self.config.update == "on_policy":
                    self.log.draws.clear()  # they only tell how much replay would have trained on
                    draws = [self.replay.of_the_step(groups, len(drawn), self.multiple_of) for drawn in draws]
                    self.log.own += [group for taken in draws for group in taken]
        return [drawn for drawn in draws if drawn]

    def after_update(self, draws: Sequence[list[RolloutGroup]], update_replay: UpdateReplay) -> None:
        """Call ``update_replay`` for each draw and note what it reports."""
        for number, drawn in enumerate(draws, start=1):
            self._updates.append(update_replay(drawn, number < len(draws)))

    def metrics(self, others: Mapping[str, float] | None = None) -> dict[str, float]:
        """replay/... numbers of the step; without replay only the shares of the offered groups and seconds.

        others: seconds of the trainer's own parts, by metric name; "offer" adds to the hook's.
        """
        if self.replay is None:
            own = offer_metrics(self.log.offered, self.log.threshold)
        else:
            own = self.log.metrics() | update_metrics(self._updates)
        driver = Counter(self._seconds)
        driver.update(others or {})
        return own | part_seconds(driver, self._updates)
