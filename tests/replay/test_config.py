from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import ImportanceConfig, ReplayConfig, ReplayConfigError


def test_given_values_are_taken_and_the_rest_kept() -> None:
    given = {"threshold": 0.4, "min_groups": 500, "importance": {"level": "sequence", "clip_low": 0.5}}
    made = ReplayConfig.from_dict(given)
    expected = ReplayConfig(
        threshold=0.4, min_groups=500, importance=ImportanceConfig(level="sequence", clip_low=0.5)
    )
    assert made == expected
    assert ReplayConfig.from_dict(dataclasses.asdict(made)) == made


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


REFUSED: list[tuple[dict, str]] = [
    *(({"threshold": value}, "replay.threshold is ") for value in (1.5, -0.1, math.nan, "0.6", True)),
    ({"threshold_rule": "fixed"}, "replay.threshold is null; replay.threshold_rule=fixed needs a number"),
    *(({"min_groups": value}, "replay.min_groups is ") for value in (0, True, 80.0, None)),
    ({"warmup_steps": -1}, "replay.warmup_steps is -1"),
    *(({"max_staleness": value}, "replay.max_staleness is ") for value in (-1, "2", 1.5, True)),
    *(
        ({name: value}, f"replay.{name} is {value!r}")
        for name in ("enable", "require_signal", "store_after_start", "use_kl_loss", "restore")
        for value in (1, "true", None)
    ),
    *(
        ({name: value}, f"replay.{name} is {value!r}")
        for name in ("start", "update", "admission", "threshold_rule", "sampling", "eviction")
        for value in ("easy", None, ["hard"], ":Own", "my rules:Own")
    ),
    *(
        ({name: 0}, f"replay.{name} is 0; it should be greater than or equal to 1")
        for name in ("updates_per_step", "threshold_window", "capacity", "groups_per_update")
    ),
    ({"seed": 4.2}, "replay.seed is 4.2; it should be a valid integer: seed of random admission and of"),
    ({"start": "rules:Own"}, "replay.start is 'rules:Own'; it should be 'after' or 'at'"),
    ({"capacity": 99, "min_groups": 100}, "replay.capacity is 99; it must be at least replay.min_groups"),
    (
        {"capacity": 31, "min_groups": 5},
        "replay.capacity is 31; it must be at least replay.groups_per_update",
    ),
    ({"treshold": 0.6}, "replay.treshold is not a setting; did you mean replay.threshold?"),
    ({"zzz": 1}, "replay.zzz is not a setting; known are enable, update, updates_per_step, threshold,"),
    ({"importance": None}, "replay.importance is None; it must be a mapping of settings"),
    ({"importance": {"clip": 1}}, "replay.importance.clip is not a setting; did you mean"),
    *(({"importance": {"clip_low": value}}, "replay.importance.clip_low is ") for value in (1.1, -0.5)),
    *(({"importance": {"clip_high": value}}, "replay.importance.clip_high is ") for value in (0.9, math.nan)),
    ({"importance": {"normalize": 0}}, "replay.importance.normalize is 0"),
    ({"importance": {"level": "word"}}, "replay.importance.level is 'word'"),
]


@pytest.mark.parametrize(("mapping", "line"), REFUSED, ids=[str(mapping) for mapping, _ in REFUSED])
def test_what_does_not_fit_is_refused_with_one_line_naming_it(mapping: dict, line: str) -> None:
    with pytest.raises(ReplayConfigError) as caught:
        ReplayConfig.from_dict(mapping)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_direct_construction_is_checked_too() -> None:
    with pytest.raises(ReplayConfigError, match="replay is 3; it must be a mapping"):
        ReplayConfig.from_dict(3)  # type: ignore[arg-type]
    with pytest.raises(ReplayConfigError, match=r"replay\.threshold is 2"):
        ReplayConfig(threshold=2)
    with pytest.raises(
        ReplayConfigError, match=r"replay\.importance is \{\}; it should be an instance of ImportanceConfig"
    ):
        ReplayConfig(importance={})  # type: ignore[arg-type]


@settings(deadline=None)
@given(threshold=st.floats())
def test_threshold_is_accepted_exactly_in_the_unit_interval(threshold: float) -> None:
    if 0.0 <= threshold <= 1.0:
        assert ReplayConfig.from_dict({"threshold": threshold}).threshold == threshold
    else:
        with pytest.raises(ReplayConfigError):
            ReplayConfig.from_dict({"threshold": threshold})
