"""Rules of the user's own: classes that `replay.admission`, `sampling`, `eviction`, `threshold_rule` name.

A setting MODULE:CLASS stands for `CLASS(config, rng)` with the protocol's method: see docs/architecture.md.
`build_rules` imports and makes them; what they answer is checked at every step, since a wrong answer would
store or replay other groups than the run's record says.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from .buffer import StoredGroup
from .config import ReplayConfig, ReplayConfigError, is_class_path
from .group import RolloutGroup

METHODS = {
    "admission": ("admit", ("groups", "threshold")),
    "sampling": ("sample", ("groups", "k", "step")),
    "eviction": ("victim", ("groups",)),
    "threshold_rule": ("update", ("groups",)),
}
"""By setting, the method that a class must have, and what it is given."""


class ReplayRuleError(ValueError):
    """A rule of the user's own failed, or gave what cannot be used; the message is one line naming it."""


@dataclass(frozen=True)
class CustomRule:
    """A rule of the user's own. Of its four methods the run calls the one of its setting (METHODS).

    Attributes:
        name: "replay.SETTING=MODULE:CLASS", for messages.
        rule: the object that the user's class made.
    """

    name: str
    rule: Any

    @property
    def has_state(self) -> bool:
        """Whether something of it must survive a restart."""
        return hasattr(self.rule, "state")

    def saved(self) -> Any:
        """What must survive a restart: a copy of its plain values, as JSON gives them back."""
        state = self._answer("state")
        try:
            return json.loads(json.dumps(state))
        except (TypeError, ValueError, RecursionError) as error:
            raise ReplayRuleError(f"{self.name}: state must give what JSON holds: {error}") from error

    def continue_from(self, saved: Any) -> None:
        """Inverse of ``saved``."""
        self._answer("restore", saved)

    def admit(self, groups: Sequence[RolloutGroup], threshold: float) -> list[RolloutGroup]:
        """Of replay.admission: the groups that are stored, each once."""
        answer = self._answer("admit", list(groups), threshold)
        self._require(_are_some_of(answer, groups), "admit", "a list of some of its groups, each once")
        return list(answer)

    def sample(self, groups: Sequence[StoredGroup], k: int, step: int) -> list[StoredGroup]:
        """Of replay.sampling: the ``k`` different groups that are drawn."""
        answer = self._answer("sample", list(groups), k, step)
        fits = _are_some_of(answer, groups) and len(answer) == k
        self._require(fits, "sample", f"a list of k={k} different ones of its groups")
        return list(answer)

    def victim(self, groups: Sequence[StoredGroup]) -> int:
        """Of replay.eviction: the place of the group that leaves a full buffer."""
        answer = self._answer("victim", list(groups))
        fits = _is_number(answer, Integral) and 0 <= answer < len(groups)
        self._require(fits, "victim", f"a whole number from 0 to {len(groups) - 1}")
        return int(answer)

    def update(self, groups: Sequence[RolloutGroup]) -> float:
        """Of replay.threshold_rule: tau, a finite number."""
        answer = self._answer("update", list(groups))
        fits = _is_number(answer, Real) and math.isfinite(answer)
        self._require(fits, "update", "a finite number")
        return float(answer)

    def _answer(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.rule, method)(*arguments)
        except Exception as error:
            raise ReplayRuleError(f"{self.name}: {method} raised {_described(error)}") from error

    def _require(self, holds: bool, method: str, wanted: str) -> None:
        if not holds:
            raise ReplayRuleError(f"{self.name}: {method} must give {wanted}")


def custom_settings(config: ReplayConfig) -> dict[str, str]:
    """MODULE:CLASS of each setting that names one."""
    named = {setting: getattr(config, setting) for setting in METHODS}
    return {setting: path for setting, path in named.items() if is_class_path(path)}


def build_rules(config: ReplayConfig, generators: Mapping[str, random.Random]) -> dict[str, CustomRule]:
    """The rules of the user's own by setting; none where the settings name none.

    generators: the random numbers of each setting.

    Raises:
        ReplayConfigError: a class cannot be imported or made, or does not fit its protocol.
        ReplayRuleError: its state cannot be kept.
    """
    rules: dict[str, CustomRule] = {}
    for setting, path in custom_settings(config).items():
        rules[setting] = CustomRule(
            f"replay.{setting}={path}", _made(setting, path, config, generators[setting])
        )
        if rules[setting].has_state:
            rules[setting].saved()  # better refused now than with the first checkpoint
    return rules


def _made(setting: str, path: str, config: ReplayConfig, rng: random.Random) -> Any:
    """The object of the user's class. Raises ReplayConfigError."""

    def refuse(reason: str) -> ReplayConfigError:
        return ReplayConfigError(f"replay.{setting} is {path!r}, but {reason}")

    cls = _found(path, refuse)
    if not _takes(cls, "config", "rng"):
        raise refuse(f"{cls.__name__} is not made with (config, rng)")
    try:
        rule = cls(config, rng)
    except Exception as error:
        raise refuse(f"{cls.__name__}(config, rng) raised {_described(error)}") from error
    method, arguments = METHODS[setting]
    _check_method(rule, method, arguments, refuse)
    if hasattr(rule, "state") or hasattr(rule, "restore"):
        _check_method(rule, "state", (), refuse)
        _check_method(rule, "restore", ("state",), refuse)
    return rule


def _found(path: str, refuse: Callable[[str], ReplayConfigError]) -> type:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise refuse(f"importing {module} raised {_described(error)}") from error
        hint = "correct it, or put its folder on PYTHONPATH"
        raise refuse(f"Python finds no module {error.name}; {hint}") from error
    except Exception as error:
        raise refuse(f"importing {module} raised {_described(error)}") from error
    if not isinstance(found, type):
        raise refuse(f"{module} has no class {name}")
    return found


def _check_method(
    rule: Any, name: str, arguments: Sequence[str], refuse: Callable[[str], ReplayConfigError]
) -> None:
    method = getattr(rule, name, None)
    wanted = f"{name}({', '.join(arguments)})"
    if not callable(method):
        raise refuse(f"{type(rule).__name__} has no method {wanted}")
    if not _takes(method, *arguments):
        raise refuse(f"{type(rule).__name__}.{name} cannot be called as {wanted}")


def _takes(function: Callable[..., Any], *arguments: str) -> bool:
    """Whether the function can be called with so many arguments by place."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a signature that Python cannot tell
        return True
    return True


def _are_some_of(answer: Any, groups: Sequence[Any]) -> bool:
    """Whether the answer is a list of some of the groups themselves, each once."""
    if not isinstance(answer, list | tuple):
        return False
    known, given = {id(group) for group in groups}, [id(group) for group in answer]
    return len(set(given)) == len(given) and known.issuperset(given)


def _is_number(answer: Any, kind: type) -> bool:
    """Whether the answer is a number of the kind, Python's or numpy's."""
    return isinstance(answer, kind) and not isinstance(answer, bool)


def _described(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
