"""Settings of the replay: typed, explained, and checked when they are made."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

CLASS_PATH = "package.module:Class"
_CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

Level = Literal["token", "sequence", "sequence_sum"]
Start = Literal["after", "at"]
ThresholdRule = Literal["fixed", "quantile"]
AdmissionName = Literal["hard", "random", "all"]
EvictionName = Literal["fifo"]
SamplingName = Literal["recent", "uniform"]
UpdateName = Literal["stored", "on_policy"]


def is_class_path(value: object) -> bool:
    """Whether a setting names a class of the user's own, as CLASS_PATH does."""
    return isinstance(value, str) and _CLASS_PATH.fullmatch(value) is not None


class ReplayConfigError(ValueError):
    """A replay setting is unknown, has the wrong type, or does not fit; the message is one line naming it."""


@dataclass(frozen=True)
class _Rule:
    """What a setting means, and its closed range or choices.

    `optional_kind` where None means no limit; `custom` where a class of the user's own may be named too.
    """

    meaning: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    optional_kind: type | None = None
    custom: bool = False


IMPORTANCE_RULES = {
    "level": _Rule("unit of the importance ratio", choices=get_args(Level)),
    "clip_low": _Rule("lower bound of the importance ratio", 0, 1),
    "clip_high": _Rule("upper bound of the importance ratio", 1),
    "normalize": _Rule("divide the weights by their mean over the replay batch"),
}
REPLAY_RULES = {
    "enable": _Rule("replay hard rollout groups, or do plain RULE"),
    "update": _Rule(
        "what is trained on: stored groups, or the step's own batch again", choices=get_args(UpdateName)
    ),
    "updates_per_step": _Rule("extra updates in each training step", 1),
    "threshold": _Rule(
        "the mean reward below which a group is hard (threshold_rule=fixed)", 0, 1, optional_kind=float
    ),
    "threshold_rule": _Rule("where the threshold comes from", choices=get_args(ThresholdRule), custom=True),
    "threshold_quantile": _Rule("the quantile of recent group means that is the threshold", 0, 1),
    "threshold_window": _Rule("how many recent group means this quantile is computed from", 1),
    "min_groups": _Rule("stored groups needed before replay starts", 1),
    "warmup_steps": _Rule("training steps before replay starts", 0),
    "start": _Rule("replay starts after step warmup_steps or at it", choices=get_args(Start)),
    "admission": _Rule("which groups are stored", choices=get_args(AdmissionName), custom=True),
    "require_signal": _Rule("store only groups with signal, whose advantages are not all one number"),
    "store_after_start": _Rule("go on storing once replay has started"),
    "capacity": _Rule("the most groups the buffer keeps", 1),
    "eviction": _Rule(
        "which group is evicted when the buffer is full", choices=get_args(EvictionName), custom=True
    ),
    "max_staleness": _Rule("training steps after which a stored group leaves", 0, optional_kind=int),
    "groups_per_update": _Rule("groups drawn for one replay update", 1),
    "sampling": _Rule("how groups are drawn", choices=get_args(SamplingName), custom=True),
    "use_kl_loss": _Rule("add the KL term to the replay loss"),
    "seed": _Rule("seed of random admission and of the draws"),
    "restore": _Rule("continue with the checkpoint's buffer when a run is resumed"),
}
_KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class ImportanceConfig:
    """How a stored rollout is weighed: rho~ = Normalize(Clip(pi_theta(y|x) / pi_theta_old(y|x))).

    The clip range contains 1, so that a rollout of the current policy always has weight 1.

    Attributes:
        level: unit of the ratio. "token": one a token; "sequence": exp of the mean log ratio over the
            response; "sequence_sum": exp of the sum, the paper's literal pi(y|x).
        clip_low, clip_high: bounds of the ratio (Clip), in [0, 1] and [1, inf].
        normalize: divide by the mean weight of the whole replay batch (Normalize).

    Raises:
        ReplayConfigError: wrong type or value out of range.
    """

    level: Level = "token"
    clip_low: float = 0.8
    clip_high: float = 1.3
    normalize: bool = True

    def __post_init__(self) -> None:
        _check_settings(self, "replay.importance", IMPORTANCE_RULES)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> ImportanceConfig:
        """Build from plain values; ReplayConfigError on an unknown key or a value that does not fit."""
        _check_keys(cls, mapping, "replay.importance")
        return cls(**mapping)


@dataclass(frozen=True)
class ReplayConfig:
    """Everything that decides what is stored, when replay starts, and how much is drawn.

    The defaults are the recommended replay (docs/replay.md); the paper's are in config/experiment/paper.

    Attributes (paper symbol in brackets):
        enable: false is plain RULE.
        update: "stored": an extra update on stored groups (replay); "on_policy": an extra update on the
            step's own batch once more (the equal-update control, at the steps at which replay would update).
        updates_per_step: extra updates a step, each with its own draw.
        threshold [tau]: a group is hard when its mean reward is below it; of threshold_rule "fixed" only.
        threshold_rule: "fixed" takes `threshold`; "quantile" the `threshold_quantile` of the last
            `threshold_window` group means instead.
        min_groups [B_min]: stored groups needed before replay starts.
        warmup_steps [T_warm]: training steps before replay starts.
        start: "after" replays from step T_warm + 1 on (the paper's "exceeds"), "at" from step T_warm on.
        admission: which groups are stored: "hard" ones; "random": each step as many as are hard, whichever;
            "all".
        require_signal: of the offered groups only those whose advantages are not all one number
            are considered.
        store_after_start: false keeps the buffer as it is when replay starts.
        capacity [capacity of B]: most groups kept in the buffer.
        eviction: which group leaves a full buffer: the first in ("fifo").
        max_staleness: a group older than so many steps leaves; None is no limit.
        groups_per_update: groups drawn for one replay update.
        sampling: "recent": the newest; "uniform"; both without replacement.
            admission, eviction, sampling and threshold_rule may also be "package.module:Class", see `custom`.
        use_kl_loss: add the KL term to the replay loss.
        seed: of random admission and of the draws.
        restore: false starts a resumed run with an empty buffer.
        importance [rho~]: see ImportanceConfig.

    Raises:
        ReplayConfigError: wrong type, value out of range, or settings that contradict each other.
    """

    enable: bool = True
    update: UpdateName = "stored"
    updates_per_step: int = 1
    threshold: float | None = None
    threshold_rule: ThresholdRule | str = "quantile"
    threshold_quantile: float = 0.5
    threshold_window: int = 128
    min_groups: int = 32
    warmup_steps: int = 15
    start: Start = "after"
    admission: AdmissionName | str = "hard"
    require_signal: bool = True
    store_after_start: bool = True
    capacity: int = 1200
    eviction: EvictionName | str = "fifo"
    max_staleness: int | None = None
    groups_per_update: int = 32
    sampling: SamplingName | str = "recent"
    use_kl_loss: bool = True
    seed: int = 42
    restore: bool = True
    importance: ImportanceConfig = field(default_factory=ImportanceConfig)

    def __post_init__(self) -> None:
        _check_settings(self, "replay", REPLAY_RULES)
        if not isinstance(self.importance, ImportanceConfig):
            raise ReplayConfigError(f"replay.importance is {self.importance!r}, not an ImportanceConfig")
        if self.threshold_rule == "fixed" and self.threshold is None:
            raise ReplayConfigError(
                "replay.threshold is null; replay.threshold_rule=fixed needs a number, 0.6 in the paper"
            )
        for name in ("min_groups", "groups_per_update"):
            needed = getattr(self, name)
            if self.capacity < needed:
                raise ReplayConfigError(
                    f"replay.capacity is {self.capacity}; it must be at least replay.{name}, "
                    f"which is {needed}"
                )

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> ReplayConfig:
        """Build from plain nested values (as in YAML); keys left out keep their defaults.

        Raises:
            ReplayConfigError: unknown key at either level, wrong type, or a value that does not fit.
        """
        _check_keys(cls, mapping, "replay")
        settings = dict(mapping)
        if "importance" in settings:
            settings["importance"] = ImportanceConfig.from_dict(settings["importance"])
        return cls(**settings)


def _check_keys(cls: type, mapping: object, section: str) -> None:
    if not isinstance(mapping, Mapping):
        raise ReplayConfigError(f"{section} is {mapping!r}; it must be a mapping of settings")
    known = [setting.name for setting in fields(cls)]
    for key in mapping:
        if key not in known:
            guess = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {section}.{guess[0]}?" if guess else f"known are {', '.join(known)}"
            raise ReplayConfigError(f"{section}.{key} is not a setting; {hint}")


def _check_settings(config: object, section: str, rules: Mapping[str, _Rule]) -> None:
    for name, rule in rules.items():
        value = getattr(config, name)
        if value is None and rule.optional_kind:
            continue
        kind = rule.optional_kind or type(getattr(type(config), name))
        wanted = _what_is_wrong(value, kind, rule)
        if wanted:
            wanted += " or be null" if rule.optional_kind else ""
            raise ReplayConfigError(f"{section}.{name} is {value!r}; it must {wanted}: {rule.meaning}")


def _what_is_wrong(value: Any, kind: type, rule: _Rule) -> str:
    """What the value would have to do, or "" when it is fine."""
    if rule.choices:
        if value in rule.choices or (rule.custom and is_class_path(value)):
            return ""
        some = "one of " if len(rule.choices) > 1 else ""
        return f"be {some}{', '.join(rule.choices)}" + (f", or {CLASS_PATH}" if rule.custom else "")
    # Python counts True as an int; a setting that wants a number does not.
    accepted: Any = (int, float) if kind is float else kind
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, accepted):
        return f"be {_KIND_NAMES[kind]}"
    if rule.low <= value <= rule.high:
        return ""
    return f"lie in [{rule.low}, {rule.high}]" if math.isfinite(rule.high) else f"be at least {rule.low}"
