"""Each setting by itself, against the tables of `keys`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.keys.kinds import Key
from recipe.rerule.settings.error import SettingsError

_TO_BE_GIVEN = "???"  # OmegaConf's mark of a value that is still to be given


def check_declared(config: DictConfig, keys: Iterable[Key]) -> None:
    """Refuse the first of `keys` whose value is none of those allowed.

    A key that the configuration lacks counts as null.

    Raises:
        SettingsError: naming the key, its value and what is allowed.
    """
    plain = OmegaConf.to_container(config, resolve=True)
    for key in keys:
        value = _value(plain, key.name)
        if not key.accepts(value):
            raise SettingsError(f"{key.name} is {shown(value)}; set it to {key.allowed} ({key.help})")


def shown(value: Any) -> str:
    """A value as a message shows it: as in YAML where Python writes it otherwise."""
    return {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))


def _value(plain: Any, name: str) -> Any:
    node, walked = plain, ""
    for part in name.split("."):
        if node is None:
            return None
        if not isinstance(node, dict):
            raise SettingsError(
                f"{walked} is {shown(node)}, but it is a group of settings; set its keys, such as {name}"
            )
        walked, node = f"{walked}.{part}".lstrip("."), node.get(part)
    return None if node == _TO_BE_GIVEN else node
