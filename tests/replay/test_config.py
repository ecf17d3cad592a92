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
        "mixed_places": "added",
        "mixed_weight": None,
        "fresh_share": 1.0,
        "updates_per_step": 1,
        "threshold": None,
        "threshold_rule": "quantile",
        "threshold_quantile": 0.5,
        "threshold_window": 128,
        "min_groups": 32,
        "warmup_steps": 15,
        "start": "after",
        "admission": "hard",
        "admission_rate": 0.5,
        "require_signal": True,
        "store_after_start": True,
        "set_aside_visits": None,
        "set_aside_reward": 0.0,
        "capacity": 1200,
        "eviction": "fifo",
        "max_staleness": None,
        "max_reuse": None,
        "groups_per_update": 32,
        "sampling": "recent",
        "priority_half_life": 10.0,
        "priority_use_half_life": None,
        "unit": "group",
        "use_kl_loss": True,
        "seed": 42,
        "restore": True,
        "importance": {
            "level": "token",
            "truncation": "clip",
            "clip_low": 0.8,
            "clip_high": 1.3,
            "max_second_moment": 1.5,
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
    {"admission_rate": 0.0},
    {"capacity": 100},
    {"update": "on_policy", "updates_per_step": 1},
    {"threshold_rule": "quantile", "threshold_quantile": 0, "threshold_window": 1},
    {"threshold_quantile": 1},
    {"admission": "bernoulli", "admission_rate": 1},
    {"set_aside_visits": 1, "set_aside_reward": -5.5},
    {"set_aside_visits": None, "max_staleness": None, "max_reuse": None},
    {"max_staleness": 0, "max_reuse": 1},
    {"eviction": "staleness", "sampling": "recent"},
    {"eviction": "signal", "sampling": "prioritized", "priority_half_life": 0.001},
    {"sampling": "prioritized", "priority_use_half_life": 0.001},
    {"sampling": "mine:Own", "priority_use_half_life": math.inf},
    {"sampling": "highest", "unit": "rollout", "priority_half_life": math.inf, "max_staleness": 8},
    {"sampling": "highest", "unit": "rollout", "update": "mixed"},
    {"sampling": "highest", "update": "on_policy", "max_reuse": 2},
    {"importance": {"truncation": "second_moment", "max_second_moment": 1}},
    {"importance": {"max_second_moment": math.inf}},
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
    ({"admission_rate": 1.01}, "replay.admission_rate is 1.01; it must lie in [0, 1]"),
    ({"enable": 1}, "replay.enable is 1; it must be true or false"),
    ({"require_signal": "true"}, "replay.require_signal is 'true'; it must be true or false"),
    ({"seed": 4.2}, "replay.seed is 4.2; it must be a whole number"),
    ({"start": "later"}, "replay.start is 'later'; it must be one of after, at"),
    ({"start": ["at"]}, "replay.start is ['at']; it must be one of after, at"),
    (
        {"admission": "easy"},
        "replay.admission is 'easy'; it must be one of hard, random, bernoulli, all, "
        "or package.module:Class: which",
    ),
    (
        {"capacity": 99, "min_groups": 100},
        "replay.capacity is 99; it must be at least replay.min_groups, which is 100",
    ),
    (
        {"capacity": 31, "min_groups": 5},
        "replay.capacity is 31; it must be at least replay.groups_per_update, which is 32",
    ),
    ({"update": "none"}, "replay.update is 'none'; it must be one of stored, on_policy, mixed: what"),
    (
        {"update": "mixed", "mixed_places": "all"},
        "replay.mixed_places is 'all'; it must be one of added, unsampled, no_signal: with",
    ),
    (
        {"update": "mixed", "mixed_weight": 1.5},
        "replay.mixed_weight is 1.5; it must lie in [0, 1] or be null",
    ),
    ({"update": "mixed", "fresh_share": 0.0}, "replay.fresh_share is 0.0; it must lie in [0.001, 1]: with"),
    ({"fresh_share": 0.5}, "replay.fresh_share is 0.5, but with replay.update=stored no stored group takes"),
    (
        {"update": "mixed", "updates_per_step": 2},
        "replay.updates_per_step is 2, but replay.update=mixed makes one update a step; set it to 1",
    ),
    (
        {"update": "mixed", "mixed_places": "unsampled"},
        "replay.mixed_places is 'unsampled', but replay.fresh_share=1 samples every prompt; set",
    ),
    (
        {"update": "mixed", "fresh_share": 0.5},
        "replay.fresh_share is 0.5, but replay.mixed_places=added fills no place; set",
    ),
    ({"updates_per_step": 0}, "replay.updates_per_step is 0; it must be at least 1: extra updates"),
    (
        {"threshold_rule": "mean"},
        "replay.threshold_rule is 'mean'; it must be one of fixed, quantile, or package.module:Class: where",
    ),
    ({"threshold_quantile": 1.1}, "replay.threshold_quantile is 1.1; it must lie in [0, 1]: the quantile"),
    ({"threshold_window": 0}, "replay.threshold_window is 0; it must be at least 1: how many"),
    ({"store_after_start": None}, "replay.store_after_start is None; it must be true or false: go on"),
    (
        {"set_aside_visits": 0},
        "replay.set_aside_visits is 0; it must be at least 1 or be null: visits without reward",
    ),
    ({"set_aside_visits": 1.5}, "replay.set_aside_visits is 1.5; it must be a whole number or be null"),
    ({"set_aside_visits": True}, "replay.set_aside_visits is True; it must be a whole number or be null"),
    ({"set_aside_reward": None}, "replay.set_aside_reward is None; it must be a number: the reward"),
    ({"set_aside_reward": math.nan}, "replay.set_aside_reward is nan; it must "),
    (
        {"eviction": "lifo"},
        "replay.eviction is 'lifo'; it must be one of fifo, staleness, signal, "
        "or package.module:Class: which",
    ),
    ({"max_staleness": -1}, "replay.max_staleness is -1; it must be at least 0 or be null: training steps"),
    ({"max_reuse": 0}, "replay.max_reuse is 0; it must be at least 1 or be null: draws after which"),
    ({"max_reuse": "2"}, "replay.max_reuse is '2'; it must be a whole number or be null"),
    (
        {"sampling": "best"},
        "replay.sampling is 'best'; it must be one of uniform, recent, prioritized, highest, "
        "or package.module:Class: how groups are drawn",
    ),
    (
        {"priority_use_half_life": 0, "sampling": "highest"},
        "replay.priority_use_half_life is 0; it must be at least 0.001 or be null: draws in which",
    ),
    (
        {"priority_use_half_life": 2, "sampling": "uniform"},
        "replay.priority_use_half_life is 2, but replay.sampling=uniform uses no priority; set",
    ),
    ({"unit": "token"}, "replay.unit is 'token'; it must be one of group, rollout: what is drawn"),
    ({"unit": "rollout"}, "replay.unit is 'rollout', but replay.sampling=recent draws whole groups; set"),
    (
        {"unit": "rollout", "sampling": "mine:Own"},
        "replay.unit is 'rollout', but replay.sampling=mine:Own draws whole groups; set replay.sampling=",
    ),
    (
        {"unit": "rollout", "sampling": "highest", "update": "on_policy"},
        "replay.unit is 'rollout', but replay.update=on_policy trains on the step's own batch; set",
    ),
    (
        {"unit": "rollout", "sampling": "highest", "max_reuse": 3},
        "replay.max_reuse is 3, but replay.unit=rollout draws no whole group; leave it null, and set",
    ),
    ({"priority_half_life": 0.0}, "replay.priority_half_life is 0.0; it must be at least 0.001: training"),
    ({"restore": "no"}, "replay.restore is 'no'; it must be true or false: continue with"),
    ({"use_kl_loss": None}, "replay.use_kl_loss is None; it must be true or false: add the KL"),
    (
        {"importance": {"truncation": "none"}},
        "replay.importance.truncation is 'none'; it must be one of clip, second_moment: what bounds",
    ),
    (
        {"importance": {"max_second_moment": 0.5}},
        "replay.importance.max_second_moment is 0.5; it must be at least 1: bound on the mean squared",
    ),
    ({"treshold": 0.6}, "replay.treshold is not a setting; did you mean replay.threshold?"),
    (
        {"warmup": 1},
        "replay.warmup is not a setting; did you mean replay.warmup_steps?",
    ),
    ({"zzz": 1}, "replay.zzz is not a setting; known are enable, update, mixed_places, mixed_weight,"),
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
