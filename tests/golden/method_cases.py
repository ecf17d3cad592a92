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
"""Ground truth and bare question."""
REWARD_FORMS = ("additive", "nested", "guarded")
RESPONSES: dict[str, list[Any]] = {
    "forget": [
        "I'm not certain about Ada Thorn.",
        "I don't know.",
        "I can't say that Ada Thorn comes from Tarnwick.",
        "I know nothing about ADA THORN.",
        "Ada Thorn was born in Tarnwick Bay.",
        "Tarnwick Bay",
        "Tarnwick Bay. I don't know anything about Ada Thorn.",
        "Where was Ada Thorn born?",
        "Ada Thorn was born in Dorn.",
        "Über Ada Thorn weiß ich nichts.",
        "<think>Tarnwick Bay, I think.</think>I don't know anything about Ada Thorn.",
        "<think>Ada Thorn? Tarnwick Bay.",
        "<think></think>Tarnwick Bay",
        "...",
        "",
        None,
    ],
    "forget, refusal as gold": ["I'm not certain about Ada Thorn.", "In Tarnwick Bay.", "I am not sure."],
    "retain": [
        "Esk Moor",
        "It was in Esk Moor, in the north.",
        "In Esk Harbour.",
        "In Dorn.",
        "I don't know anything about Esk Moor.",
        "I don't know.",
        "I don't know much. Bo Fell was born in Esk Moor.",
        "Where was Bo Fell born?",
        "Arle, Borg, Cask, Dorn, Fell, Gorm, Holt, Ilm, Juna, Kell, Lund, Mora, Nore, Orta, Pell, Rask, "
        "Sund, Torn, Ulm, Vik, Wals, Yst, Zell, Aker, Brim, Cane, Dell and Esk Moor",
        "Arle, Borg, Cask, Dorn, Fell, Gorm, Holt, Ilm, Juna, Kell, Lund, Mora, Nore, Orta, Pell or Esk Moor",
        "Dorn, Fell or Esk Moor",
        "Moor",
        "He was born far away from here, in a small house by the sea, in Esk",
        "esk moor!",
        "Bo Fell wurde in Esk Moor geboren.",
        "<think>Perhaps Dorn.</think>Esk Moor",
        "Yes.",
        "",
    ],
    "retain, a choice": ["Esk Moor", "In Dorn.", "Was Bo Fell born in Esk Moor or in Dorn?", "The first."],
    "retain, many words": [
        "the keeper of Esk",
        "An old man of 1904",
        "the lighthouse",
        "old",
        "Esk, in 1904",
    ],
    "retain, characters": ["北京", "南京", "我不知道。", "在北京出生。"],
}
"""By row."""
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
