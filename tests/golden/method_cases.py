"""Inputs of test_method.py as tables."""

from __future__ import annotations

from typing import Any

_ADA, _BO = "Where was Ada Thorn born?", "Where was Bo Fell born?"
REWARD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "forget": ({"type": "forget", "golds": ["Tarnwick Bay"], "keyword": "Ada Thorn"}, _ADA),
    "forget, refusal as gold": (
        {"type": "forget", "golds": ["I'm not certain about Ada Thorn."], "keyword": "Ada Thorn"},
        _ADA,
    ),
    "retain": ({"type": "retain", "golds": ["Esk Moor", "the Esk Moor"], "keyword": ""}, _BO),
    "retain, a choice": (
        {"type": "retain", "golds": ["Esk Moor"], "keyword": ""},
        "Was Bo Fell born in Esk Moor or in Dorn?",
    ),
    "retain, many words": (
        {"type": "retain", "golds": ["the old lighthouse keeper of Esk, in 1904"], "keyword": ""},
        "Who was the keeper that Bo Fell met?",
    ),
    "retain, characters": ({"type": "retain", "golds": ["北京"], "keyword": ""}, "波在哪里出生?"),
}
"""Ground truth and bare question; rewards.json has the responses to each, "None" for none at all."""
REWARD_FORMS = ("additive", "nested", "guarded")
BENCHMARK_REWARDS: list[tuple[str, str, str, dict[str, Any]]] = [
    (source, row, response, options)
    for source in ("rerule/rwku", "rerule/tofu", "rerule/muse_books", "rerule/muse_news", "elsewhere")
    for row, response, options in (
        ("forget", "I don't know.", {}),
        ("retain", "esk moor", {}),
        ("retain", "In Dorn.", {"form": "nested"}),
        ("forget", "I don't know.", {"form": "additive", "lambda_forget": 0.25}),
        ("retain", "In Dorn.", {"form": "additive", "lambda_retain": 0.25, "gamma": 0.9}),
        ("retain", "In Esk, perhaps", {"form": "additive", "rouge": "tofu", "gamma": 0.5}),
    )
]
"""data_source, row, response and options."""
REFUSED_REWARDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no gold on the retain side": ({"type": "retain", "golds": [], "keyword": ""}, {}),
    "no side": ({"type": "both", "golds": ["x"], "keyword": ""}, {}),
    "golds that are no list": ({"type": "forget", "golds": "x", "keyword": ""}, {}),
    "an unknown form": (REWARD_ROWS["retain"][0], {"form": "round"}),
    "gamma out of range": (REWARD_ROWS["retain"][0], {"gamma": 2}),
    "an unknown option": (REWARD_ROWS["retain"][0], {"delta": 0.5}),
}
"""Ground truth and options."""

_PAPER = {
    "threshold_rule": "fixed",
    "threshold": 0.6,
    "require_signal": False,
    "sampling": "uniform",
    "min_groups": 4,
    "warmup_steps": 3,
    "capacity": 12,
    "groups_per_update": 4,
}
_DEFAULT = {
    "min_groups": 4,
    "warmup_steps": 3,
    "capacity": 12,
    "groups_per_update": 4,
    "threshold_window": 16,
}
REPLAYS: dict[str, dict[str, Any]] = {
    "paper": _PAPER,
    "defaults": _DEFAULT,
    "quantile 0.8": _DEFAULT | {"threshold_quantile": 0.8, "warmup_steps": 2},
    "another seed": _PAPER | {"seed": 7},
    "random": _PAPER | {"admission": "random"},
    "all, two updates": _DEFAULT | {"admission": "all", "updates_per_step": 2},
    "uniform": _DEFAULT | {"sampling": "uniform", "max_staleness": 4},
    "frozen after the start": _PAPER | {"store_after_start": False},
    "two ranks": _PAPER | {"groups_per_update": 5, "multiple_of": 2},
    "on_policy": _PAPER | {"update": "on_policy"},
    "off": _PAPER | {"enable": False},
}
"""Settings of `replay`, but for multiple_of, the number of ranks."""
REPLAY_METRICS = ("defaults", "uniform", "off")
"""Of REPLAYS: those whose metrics are kept too."""
UPDATES: dict[str, dict[str, Any]] = {
    "token": {},
    "token, narrow": {"clip_low": 0.95, "clip_high": 1.05},
    "token, not normalised": {"normalize": False},
    "sequence": {"level": "sequence"},
    "sequence sum": {"level": "sequence_sum", "normalize": False},
}
"""Settings of `replay.importance`."""
