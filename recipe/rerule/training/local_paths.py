"""Paths of this machine as absolute ones: a worker may start in another folder than the command.

In a cluster that was joined that is the folder in which `ray start` was called. Names on the Hugging Face
Hub, pkg://MODULE and addresses of other file systems stay as they are.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

_READ = re.compile(r"(.*_)?(path|files?|phrases)")
"""Names of settings, without their section, whose value may be a file or folder that is read."""
_MODELS = re.compile(r".*(model\.|model_|tokenizer_)path")
"""Those that name a folder or, where there is none, a name on the Hub."""
_WRITTEN = (
    "trainer.default_local_dir",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "global_profiler.save_path",
    "ray_kwargs.timeline_json_file",
)
"""Settings of what a run writes, which need not be there yet."""


def make_absolute(config: DictConfig) -> None:
    """Make the local paths of a stage-2 configuration absolute, in place.

    A path that is read is known by being there, a list of paths by each of them.
    """
    for key in [*_read(config)]:
        value = OmegaConf.select(config, key)
        made = [_found(key, one) for one in value] if OmegaConf.is_list(value) else _found(key, value)
        if made != value:
            OmegaConf.update(config, key, made)
    for key in _WRITTEN:
        if isinstance(value := OmegaConf.select(config, key), str):
            OmegaConf.update(config, key, os.path.abspath(str(value)))


def read(config: DictConfig) -> dict[str, list[str]]:
    """Absolute paths of the files and folders that a stage-2 run reads on this machine, by their setting.

    Of settings with the same path only the first is named.
    """
    settled = copy.deepcopy(config)
    make_absolute(settled)
    found: dict[str, list[str]] = {}
    known: set[str] = set()
    for key in _read(settled):
        value = OmegaConf.select(settled, key)
        for path in value if OmegaConf.is_list(value) else [value]:
            if isinstance(path, str) and os.path.isabs(path) and os.path.exists(path) and path not in known:
                known.add(path)
                found.setdefault(key, []).append(path)
    return found


def _read(section: DictConfig, prefix: str = "") -> Iterator[str]:
    """Keys of the settings that may name what is read, section by section."""
    for name in map(str, section):
        key = f"{prefix}{name}"
        node = section._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none() and not node._is_interpolation():
            yield from _read(node, f"{key}.")
        elif _READ.fullmatch(name) and key not in _WRITTEN:
            yield key


def _found(key: str, value: object) -> object:
    """The absolute path where `value` is one of a file or folder; otherwise `value`."""
    if not isinstance(value, str):
        return value
    path = os.path.expanduser(value.removeprefix("file://"))
    there = os.path.isdir(path) if _MODELS.fullmatch(key) else os.path.exists(path)
    return os.path.abspath(path) if path and there else value
