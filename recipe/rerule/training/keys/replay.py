"""The settings of the replay, as `replay.config` declares and checks them."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from recipe.rerule.training.keys.kinds import Choice, Either, Flag, Key, Kind, Number, Whole

_MODULE = "recipe.rerule.replay.config"
_FILE = Path(__file__).parents[2] / "replay" / "config.py"


@dataclass(frozen=True)
class ClassPath:
    """The name of a class that Python can import; `settings` looks whether it is there and fits."""

    @property
    def allowed(self) -> str:
        return str(_declarations().CLASS_PATH)

    def accepts(self, value: Any) -> bool:
        return bool(_declarations().is_class_path(value))


def declared() -> tuple[Key, ...]:
    """One key for each setting of the replay."""
    module = _declarations()
    own = _keys("replay", module.ReplayConfig, module.REPLAY_RULES)
    return own + _keys("replay.importance", module.ImportanceConfig, module.IMPORTANCE_RULES)


def _declarations() -> ModuleType:
    # Importing the module through its package takes torch's two seconds, which --help must not wait for.
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    spec = importlib.util.spec_from_file_location("rerule_replay_declarations", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _keys(section: str, config: type, rules: dict[str, Any]) -> tuple[Key, ...]:
    return tuple(
        Key(
            f"{section}.{name}",
            _kind(rule.optional_kind or type(getattr(config, name)), rule),
            rule.meaning,
            null="not used" if rule.optional_kind else "",
            shown=True,
        )
        for name, rule in rules.items()
    )


def _kind(kind: type, rule: Any) -> Kind:
    if rule.custom:
        return Either(Choice(rule.choices), ClassPath())
    if rule.choices:
        return Choice(rule.choices)
    if kind is bool:
        return Flag()
    if kind is int:
        low, high = (None if math.isinf(bound) else int(bound) for bound in (rule.low, rule.high))
        return Whole(low, high)
    return Number(rule.low, rule.high, infinite=math.isinf(rule.high))
