from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import ImportanceConfig, ReplayConfig, ReplayConfigError, config


def test_defaults_are_those_of_the_design_and_the_study() -> None:
    assert dataclasses.asdict(ReplayConfig.from_dict({})) == {
        "enable": True,
        "update": "stored",
        "updates_per_step": 1,
        "threshold": None,
        "threshold_rule": "quantile",
        "threshold_quantile": 0.5,
        "threshold_window": 128,
        "min_groups": 32,
        "warmup_steps": 15,
        "start": "after",
        "admission": "hard",
        "require_signal": True,
        "store_after_start": True,
        "capacity": 1200,
        "eviction": "fifo",
        "max_staleness": None,
        "groups_per_update": 32,
        "sampling": "recent",
        "use_kl_loss": True,
        "seed": 42,
        "restore": True,
        "importance": {
            "level": "token",
            "clip_low": 0.8,
            "clip_high": 1.3,
            "normalize": True,
        },
    }


def test_given_values_are_taken_and_the_rest_kept() -> None:
    given = {"threshold": 0.4, "min_groups": 500, "importance": {"level": "sequence", "clip_low": 0.5}}
    made = ReplayConfig.from_dict(given)
    expected = ReplayConfig(
        threshold=0.4, min_groups=500, importance=ImportanceConfig(level="sequence", clip_low=0.5)
    )
    assert made == expected


def test_nested_mapping_round_trips() -> None:
    made = ReplayConfig(start="at", seed=-3, importance=ImportanceConfig(clip_high=math.inf))
    assert ReplayConfig.from_dict(dataclasses.asdict(made)) == made


def test_every_setting_has_a_rule() -> None:
    names = [field.name for field in dataclasses.fields(ReplayConfig) if field.name != "importance"]
    assert list(config.REPLAY_RULES) == names
    assert list(config.IMPORTANCE_RULES) == [field.name for field in dataclasses.fields(ImportanceConfig)]


ACCEPTED_EDGES = [
    {"threshold": 0},
    {"threshold": 1},
    {"threshold": 1.0},
    {"min_groups": 1, "capacity": 1, "groups_per_update": 1},
    {"warmup_steps": 0},
    {"capacity": 100},
    {"update": "on_policy", "updates_per_step": 1},
    {"threshold_rule": "quantile", "threshold_quantile": 0, "threshold_window": 1},
    {"threshold_quantile": 1},
    {"admission": "all", "sampling": "uniform", "eviction": "fifo"},
    {"admission": "mine:Own", "sampling": "mine:Own", "eviction": "mine:Own", "threshold_rule": "mine:Own"},
    {"max_staleness": None},
    {"max_staleness": 0},
    {"importance": {"clip_low": 0.0, "clip_high": math.inf}},
    {"importance": {"clip_low": 1, "clip_high": 1}},
]


@pytest.mark.parametrize("mapping", ACCEPTED_EDGES)
def test_edges_of_the_ranges_are_accepted(mapping: dict) -> None:
    ReplayConfig.from_dict(mapping)


REFUSED = [
    (
        {"threshold": 1.5},
        "replay.threshold is 1.5; it must lie in [0, 1] or be null: the mean reward below which a group is",
    ),
    ({"threshold": -0.1}, "replay.threshold is -0.1; it must lie in [0, 1]"),
    ({"threshold": math.nan}, "replay.threshold is nan; it must lie in [0, 1]"),
    ({"threshold": "0.6"}, "replay.threshold is '0.6'; it must be a number"),
    ({"threshold": True}, "replay.threshold is True; it must be a number"),
    (
        {"threshold_rule": "fixed"},
        "replay.threshold is null; replay.threshold_rule=fixed needs a number, 0.6 in the paper",
    ),
    ({"min_groups": 0}, "replay.min_groups is 0; it must be at least 1"),
    ({"min_groups": True}, "replay.min_groups is True; it must be a whole number"),
    ({"min_groups": 80.0}, "replay.min_groups is 80.0; it must be a whole number"),
    ({"warmup_steps": -1}, "replay.warmup_steps is -1; it must be at least 0"),
    ({"capacity": 0}, "replay.capacity is 0; it must be at least 1"),
    ({"groups_per_update": 0}, "replay.groups_per_update is 0; it must be at least 1"),
    ({"enable": 1}, "replay.enable is 1; it must be true or false"),
    ({"require_signal": "true"}, "replay.require_signal is 'true'; it must be true or false"),
    ({"seed": 4.2}, "replay.seed is 4.2; it must be a whole number"),
    ({"start": "later"}, "replay.start is 'later'; it must be one of after, at"),
    ({"start": ["at"]}, "replay.start is ['at']; it must be one of after, at"),
    (
        {"admission": "easy"},
        "replay.admission is 'easy'; it must be one of hard, random, all, or package.module:Class: which",
    ),
    (
        {"capacity": 99, "min_groups": 100},
        "replay.capacity is 99; it must be at least replay.min_groups, which is 100",
    ),
    (
        {"capacity": 31, "min_groups": 5},
        "replay.capacity is 31; it must be at least replay.groups_per_update, which is 32",
    ),
    ({"update": "none"}, "replay.update is 'none'; it must be one of stored, on_policy: what"),
    ({"updates_per_step": 0}, "replay.updates_per_step is 0; it must be at least 1: extra updates"),
    (
        {"threshold_rule": "mean"},
        "replay.threshold_rule is 'mean'; it must be one of fixed, quantile, or package.module:Class: where",
    ),
    ({"threshold_quantile": 1.1}, "replay.threshold_quantile is 1.1; it must lie in [0, 1]: the quantile"),
    ({"threshold_window": 0}, "replay.threshold_window is 0; it must be at least 1: how many"),
    ({"store_after_start": None}, "replay.store_after_start is None; it must be true or false: go on"),
    (
        {"eviction": "lifo"},
        "replay.eviction is 'lifo'; it must be fifo, or package.module:Class: which",
    ),
    ({"max_staleness": -1}, "replay.max_staleness is -1; it must be at least 0 or be null: training steps"),
    ({"max_staleness": "2"}, "replay.max_staleness is '2'; it must be a whole number or be null"),
    ({"max_staleness": 1.5}, "replay.max_staleness is 1.5; it must be a whole number or be null"),
    ({"max_staleness": True}, "replay.max_staleness is True; it must be a whole number or be null"),
    (
        {"sampling": "best"},
        "replay.sampling is 'best'; it must be one of recent, uniform, or package.module:Class: how groups",
    ),
    ({"restore": "no"}, "replay.restore is 'no'; it must be true or false: continue with"),
    ({"use_kl_loss": None}, "replay.use_kl_loss is None; it must be true or false: add the KL"),
    ({"treshold": 0.6}, "replay.treshold is not a setting; did you mean replay.threshold?"),
    (
        {"warmup": 1},
        "replay.warmup is not a setting; did you mean replay.warmup_steps?",
    ),
    ({"zzz": 1}, "replay.zzz is not a setting; known are enable, update, updates_per_step, threshold,"),
    ({"importance": None}, "replay.importance is None; it must be a mapping of settings"),
    ({"importance": {"clip": 1}}, "replay.importance.clip is not a setting; did you mean"),
    ({"importance": {"clip_low": 1.1}}, "replay.importance.clip_low is 1.1; it must lie in [0, 1]"),
    ({"importance": {"clip_low": -0.5}}, "replay.importance.clip_low is -0.5; it must lie in [0, 1]"),
    ({"importance": {"clip_high": 0.9}}, "replay.importance.clip_high is 0.9; it must be at least 1"),
    ({"importance": {"clip_high": math.nan}}, "replay.importance.clip_high is nan; it must be at least 1"),
    ({"importance": {"normalize": 0}}, "replay.importance.normalize is 0; it must be true or false"),
    (
        {"importance": {"level": "word"}},
        "replay.importance.level is 'word'; it must be one of token, sequence, sequence_sum",
    ),
]


@pytest.mark.parametrize(("mapping", "line"), REFUSED, ids=[str(mapping) for mapping, _ in REFUSED])
def test_what_does_not_fit_is_refused_with_one_line_naming_it(mapping: dict, line: str) -> None:
    with pytest.raises(ReplayConfigError) as caught:
        ReplayConfig.from_dict(mapping)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_not_a_mapping_is_refused() -> None:
    with pytest.raises(ReplayConfigError, match="replay is 3; it must be a mapping"):
        ReplayConfig.from_dict(3)  # type: ignore[arg-type]


def test_direct_construction_is_checked_too() -> None:
    with pytest.raises(ReplayConfigError, match=r"replay\.threshold is 2"):
        ReplayConfig(threshold=2)
    with pytest.raises(ReplayConfigError, match=r"replay\.importance is \{\}, not an ImportanceConfig"):
        ReplayConfig(importance={})  # type: ignore[arg-type]


@settings(deadline=None)
@given(threshold=st.floats())
def test_threshold_is_accepted_exactly_in_the_unit_interval(threshold: float) -> None:
    if 0.0 <= threshold <= 1.0:
        assert ReplayConfig.from_dict({"threshold": threshold}).threshold == threshold
    else:
        with pytest.raises(ReplayConfigError):
            ReplayConfig.from_dict({"threshold": threshold})
