"""Each setting by itself, against the tables of `keys`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigTypeError

from recipe.rerule.training.keys.kinds import Key
from recipe.rerule.training.settings.error import SettingsError


def check_declared(config: DictConfig, keys: Iterable[Key]) -> None:
    """Refuse the first of `keys` whose value is none of those allowed.

    A key that the configuration lacks counts as null.

    Raises:
        SettingsError: naming the key, its value and what is allowed.
    """
    for key in keys:
        value = _value(config, key.name)
        if not key.accepts(value):
            raise SettingsError(f"{key.name} is {shown(value)}; set it to {key.allowed}: {key.help}")


def shown(value: Any) -> str:
    """A value as a message shows it: as in YAML where Python writes it otherwise."""
    return {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))


def _value(config: DictConfig, name: str) -> Any:
    try:
        value = OmegaConf.select(config, name)
    except ConfigTypeError:  # a list where a group should be
        value = None
    if value is None:
        _require_groups(config, name)
    return (
        OmegaConf.to_container(value, resolve=True) if isinstance(value, DictConfig | ListConfig) else value
    )


def _require_groups(config: DictConfig, name: str) -> None:
    """Refuse a value where a group of settings should be, which hides the setting `name`."""
    parts = name.split(".")[:-1]
    for end in range(1, len(parts) + 1):
        section = ".".join(parts[:end])
        group = OmegaConf.select(config, section)
        if group is None:
            return
        if not isinstance(group, DictConfig):
            raise SettingsError(
                f"{section} is {shown(group)}, but it is a group of settings; set its keys, such as {name}"
            )
