"""What `ReplayConfig` takes and refuses; tests/refused has the wrong values of every key."""

import dataclasses
import math
from typing import Any

import pytest

from recipe.rerule.replay import ImportanceConfig, ReplayConfig, ReplayConfigError


def test_given_values_are_taken_and_the_rest_kept() -> None:
    given = {"threshold": 0.4, "min_groups": 500, "importance": {"level": "sequence", "clip_low": 0.5}}
    made = ReplayConfig.from_dict(given)
    expected = ReplayConfig(
        threshold=0.4, min_groups=500, importance=ImportanceConfig(level="sequence", clip_low=0.5)
    )
    assert made == expected
    assert ReplayConfig.from_dict(dataclasses.asdict(made)) == made


@pytest.mark.parametrize(
    "mapping",
    [
        {"threshold": 0, "threshold_quantile": 0, "threshold_window": 1},
        {"threshold": 1.0, "threshold_quantile": 1, "threshold_rule": "fixed"},
        {"min_groups": 1, "capacity": 1, "groups_per_update": 1},
        {"warmup_steps": 0, "max_staleness": 0, "seed": -1},
        dict.fromkeys(("admission", "sampling", "eviction", "threshold_rule"), "mine.rules:Own"),
        {"importance": {"clip_low": 0.0, "clip_high": math.inf}},
        {"importance": {"clip_low": 1, "clip_high": 1}},
    ],
    ids=str,
)
def test_edges_of_the_ranges_are_accepted(mapping: dict[str, Any]) -> None:
    ReplayConfig.from_dict(mapping)


REFUSED: list[tuple[Any, str]] = [
    *(({"threshold": value}, "replay.threshold is ") for value in (1.5, -0.1, math.nan, "0.6", True)),
    ({"threshold_rule": "fixed"}, "replay.threshold is null; replay.threshold_rule=fixed needs a number"),
    *(({"min_groups": value}, "replay.min_groups is ") for value in (0, True, 80.0, None)),
    ({"enable": 1}, "replay.enable is 1; it should be a valid boolean: replay hard rollout groups"),
    *(({"admission": value}, "replay.admission is ") for value in (None, ["hard"], ":Own", "my rules:Own")),
    ({"sampling": "x"}, "replay.sampling is 'x'; it should be 'recent' or 'uniform', or should be package."),
    ({"capacity": 99, "min_groups": 100}, "replay.capacity is 99; it must be at least replay.min_groups"),
    ({"capacity": 31, "min_groups": 5}, "replay.capacity is 31; it must be at least replay.groups_per_upd"),
    ({"treshold": 0.6}, "replay.treshold is not a setting; did you mean replay.threshold?"),
    ({"zzz": 1}, "replay.zzz is not a setting; known are enable, update, updates_per_step, threshold,"),
    (3, "replay is 3; it must be a mapping of settings"),
    ({"importance": None}, "replay.importance is None; it must be a mapping of settings"),
    ({"importance": {"clip": 1}}, "replay.importance.clip is not a setting; did you mean"),
    ({"importance": {"clip_low": 1.1}}, "replay.importance.clip_low is 1.1"),
    ({"importance": {"clip_high": 0.9}}, "replay.importance.clip_high is 0.9"),
]


@pytest.mark.parametrize(("mapping", "line"), REFUSED, ids=[str(mapping) for mapping, _ in REFUSED])
def test_what_does_not_fit_is_refused_with_one_line_naming_it(mapping: Any, line: str) -> None:
    with pytest.raises(ReplayConfigError) as caught:
        ReplayConfig.from_dict(mapping)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_direct_construction_is_checked_too() -> None:
    with pytest.raises(
        ReplayConfigError, match=r"importance is \{\}; it should be an instance of Importance"
    ):
        ReplayConfig(importance={})  # type: ignore[arg-type]
