"""Settings of the replay: types, bounds and meaning, checked by pydantic when they are made."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

_CLASS_PATH = r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$"
ClassPath = Annotated[str, Field(pattern=_CLASS_PATH, title="package.module:Class")]
"""A class of the user's own (see `custom`)."""

Level = Literal["token", "sequence", "sequence_sum"]

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=0)]
NotUsed = Annotated[None, Field(title="null (not used)")]


def is_class_path(value: object) -> bool:
    """Whether a setting names a class of the user's own."""
    return isinstance(value, str) and re.match(_CLASS_PATH, value) is not None


class ReplayConfigError(ValueError):
    """A replay setting is unknown, has the wrong type, or does not fit; the message is one line naming it."""


@dataclass(frozen=True)
class ImportanceConfig:
    """How a stored rollout is weighed: rho~ = Normalize(Clip(pi_theta(y|x) / pi_theta_old(y|x))).

    level: "token" has one ratio a token, "sequence" exp of the mean log ratio over the response,
    "sequence_sum" exp of the sum, the paper's literal pi(y|x). The clip range contains 1, so that a rollout
    of the current policy always has weight 1. The mean of Normalize is over the whole replay batch.

    Raises ReplayConfigError: wrong type or value out of range.
    """

    level: Annotated[Level, Field(description="unit of the importance ratio")] = "token"
    clip_low: Annotated[Share, Field(description="lower bound of the importance ratio")] = 0.8
    clip_high: Annotated[
        float, Field(ge=1, title="a number >= 1 (inf too)", description="upper bound of the importance ratio")
    ] = 1.3
    normalize: Annotated[
        bool, Field(description="divide the weights by their mean over the replay batch")
    ] = True
    trust_region: Annotated[
        bool, Field(description="no gradient where a ratio has left the clip range as its advantage wants")
    ] = False

    def __post_init__(self) -> None:
        _check_values(self, "replay.importance")

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> ImportanceConfig:
        """Build from plain values; ReplayConfigError on an unknown key or a value that does not fit."""
        _check_keys(cls, mapping, "replay.importance")
        return cls(**mapping)


@dataclass(frozen=True)
class ReplayConfig:
    """Everything that decides what is stored, when replay starts, and how much is drawn.

    docs/method.md says why the defaults are not the paper's, which are in config/experiment/paper.

    update "on_policy" is the equal-update control: at the steps at which replay would update, the replay
    update trains on as many of the step's own groups, at random, in place of stored ones. admission "random"
    stores each step as many groups as are hard, whichever. A draw is without replacement.

    Raises ReplayConfigError: wrong type, value out of range, or settings that contradict each other.
    """

    enable: Annotated[bool, Field(description="replay hard rollout groups, or do plain RULE")] = True
    update: Annotated[
        Literal["stored", "on_policy"],
        Field(description="what is trained on: stored groups, or as many of the step's own"),
    ] = "stored"
    updates_per_step: Annotated[Count, Field(description="extra updates in each training step")] = 1
    # tau
    threshold: Annotated[
        Share | NotUsed,
        Field(description="the mean reward below which a group is hard (threshold_rule=fixed)"),
    ] = None
    threshold_rule: Annotated[
        Literal["fixed", "quantile"] | ClassPath, Field(description="where the threshold comes from")
    ] = "quantile"
    threshold_quantile: Annotated[
        Share, Field(description="the quantile of recent group means that is the threshold")
    ] = 0.5
    threshold_window: Annotated[
        Count, Field(description="how many recent group means this quantile is computed from")
    ] = 128
    # B_min
    min_groups: Annotated[Count, Field(description="stored groups needed before replay starts")] = 32
    # T_warm
    warmup_steps: Annotated[Steps, Field(description="training steps before replay starts")] = 15
    admission: Annotated[
        Literal["hard", "random", "all"] | ClassPath, Field(description="which groups are stored")
    ] = "hard"
    require_signal: Annotated[
        bool, Field(description="store only groups with signal, whose advantages are not all one number")
    ] = True
    store_after_start: Annotated[bool, Field(description="go on storing once replay has started")] = True
    # capacity of B
    capacity: Annotated[Count, Field(description="the most groups the buffer keeps")] = 1200
    eviction: Annotated[
        Literal["fifo"] | ClassPath, Field(description="which group is evicted when the buffer is full")
    ] = "fifo"
    max_staleness: Annotated[
        Steps | NotUsed, Field(description="training steps after which a stored group leaves")
    ] = None
    groups_per_update: Annotated[Count, Field(description="groups drawn for one replay update")] = 32
    sampling: Annotated[
        Literal["recent", "uniform"] | ClassPath, Field(description="how groups are drawn")
    ] = "recent"
    use_kl_loss: Annotated[bool, Field(description="add the KL term to the replay loss")] = True
    seed: Annotated[int, Field(description="seed of random admission and of the draws")] = 42
    restore: Annotated[
        bool, Field(description="continue with the checkpoint's buffer when a run is resumed")
    ] = True
    importance: Annotated[ImportanceConfig, Field(description="how stored rollouts are weighed")] = field(
        default_factory=ImportanceConfig
    )

    def __post_init__(self) -> None:
        _check_values(self, "replay")
        if self.threshold_rule == "fixed" and self.threshold is None:
            raise ReplayConfigError(
                "replay.threshold is null; replay.threshold_rule=fixed needs a number, 0.6 in the paper"
            )
        for name in ("min_groups", "groups_per_update"):
            if self.capacity < (needed := getattr(self, name)):
                raise ReplayConfigError(
                    f"replay.capacity is {self.capacity}; it must be at least replay.{name}, "
                    f"which is {needed}"
                )

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> ReplayConfig:
        """Build from plain nested values (as in YAML); keys left out keep their defaults.

        Raises ReplayConfigError: unknown key at either level, wrong type, or a value that does not fit.
        """
        _check_keys(cls, mapping, "replay")
        settings = dict(mapping)
        if "importance" in settings:
            settings["importance"] = ImportanceConfig.from_dict(settings["importance"])
        return cls(**settings)


@functools.cache
def _adapters(config: type[object]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(config, include_extras=True)
    return {name: TypeAdapter(hint) for name, hint in hints.items()}


def _check_values(config: object, section: str) -> None:
    of_class: Any = type(config)
    for name, adapter in _adapters(of_class).items():
        value = getattr(config, name)
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError as error:
            no_class = "should be package.module:Class"
            wanted = [
                no_class if one["type"] == "string_pattern_mismatch" else one["msg"].removeprefix("Input ")
                for one in error.errors()
            ]
            meaning = adapter.json_schema()["description"]
            raise ReplayConfigError(
                f"{section}.{name} is {value!r}; it {', or '.join(wanted)}: {meaning}"
            ) from None


def _check_keys(cls: type, mapping: object, section: str) -> None:
    if not isinstance(mapping, Mapping):
        raise ReplayConfigError(f"{section} is {mapping!r}; it must be a mapping of settings")
    known = [setting.name for setting in fields(cls)]
    for key in mapping:
        if key not in known:
            guess = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {section}.{guess[0]}?" if guess else f"known are {', '.join(known)}"
            raise ReplayConfigError(f"{section}.{key} is not a setting; {hint}")
