"""Replay: threshold, admission, buffer, gate and sampling behind the two calls a trainer makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .admission import build_admission
from .buffer import ReplayBuffer
from .config import ReplayConfig
from .eviction import build_eviction, build_limits
from .gate import Gate
from .group import RolloutGroup
from .metrics import Departure, Draw, Key, StepLog
from .sampling import build_sampler
from .stored import StoredGroup
from .threshold import build_threshold
from .visits import Visits


class ReplayStateError(ValueError):
    """A saved replay state is missing, damaged or does not fit this run; the message is one line."""


class Replay:
    """Keeps rollout groups over training steps and hands them out again.

    Once a step: ``offer`` the step's groups, then ``draw`` for each replay update. The same settings, seed
    and offered groups give the same stored groups and draws. ``log`` is what happened at the last step.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        self.buffer = ReplayBuffer(config.capacity, build_eviction(config))
        self.gate = Gate(config.min_groups, config.warmup_steps, config.start)
        self.threshold = build_threshold(config)
        self.visits = Visits(config.set_aside_visits, config.set_aside_reward)
        # Separate streams: how many groups were offered must not change which ones are drawn.
        self._rngs = {name: random.Random(f"{config.seed}/{name}") for name in ("admission", "sampling")}
        self._admission = build_admission(config, self._rngs["admission"])
        self._sampler = build_sampler(config, self._rngs["sampling"])
        self._limits = build_limits(config)
        self.log = StepLog(step=0, threshold=0.0, offered=[])

    def offer(self, groups: Sequence[RolloutGroup], step: int) -> None:
        """Let groups leave whose time has come, then store those of the step's groups that are admitted.

        Raises:
            ValueError: a group was made at another step; nothing is stored then.
        """
        for group in groups:
            if group.step != step:
                raise ValueError(f"a group of step {group.step} was offered at step {step}")
        self.visits.observe(groups)
        self.log = StepLog(step, self.threshold.update(groups), groups, set_aside=self.visits.set_aside())
        self._let_go(step)
        if self.config.store_after_start or not self.gate.is_open:
            self._store([group for group in groups if not self.visits.is_set_aside(group.prompt_index)])
        self._note_state()

    def draw(self, step: int, multiple_of: int = 1) -> list[RolloutGroup]:
        """The groups of one replay update; empty while the gate is closed.

        Args:
            step: current training step, counted from 1.
            multiple_of: data-parallel size, to which the number of groups is rounded down, so that every
                rank gets as many.
        """
        self._let_go(step)
        self.gate.update(len(self.buffer), step)
        self._note_state()
        if not self.gate.is_open:
            return []
        size = min(self.config.groups_per_update, len(self.buffer))
        chosen = self._sampler.sample(list(self.buffer), size - size % multiple_of, step)
        drawn = Draw(
            groups=[stored.group() for stored in chosen],
            staleness=[stored.staleness(step) for stored in chosen],
            reuse=[stored.draws for stored in chosen],
        )
        for stored in chosen:
            stored.draws += 1
        if chosen:
            self.log.draws.append(drawn)
        return drawn.groups

    def state_dict(self) -> dict[str, Any]:
        """All that decides later contents and draws.

        Returns:
            "groups": copies of the stored groups in order; "gate_open": bool; "threshold", "visits": of
            their classes; "rng": for each generator its state as plain lists. All but the groups is exact in
            JSON.
        """
        return {
            "groups": [replace(stored) for stored in self.buffer],
            "gate_open": self.gate.is_open,
            "threshold": self.threshold.state(),
            "visits": self.visits.state(),
            "rng": {name: list(rng.getstate()) for name, rng in self._rngs.items()},
        }

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
        fresh = Replay(self.config)
        for name, rng in fresh._rngs.items():
            rng.setstate(_rng_state(state["rng"], name))
        fresh.buffer.restore(state["groups"])
        fresh.gate.is_open = state["gate_open"]
        try:
            fresh.threshold.restore(state["threshold"])
            fresh.visits.restore(state["visits"])
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise ReplayStateError(f"the saved threshold or visits are not readable: {error}") from error
        vars(self).update(vars(fresh))

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
