"""What the Hydra commands share: composing the configuration, and refusing a wrong one in one line."""

from __future__ import annotations

import os
from collections.abc import Callable

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipe.rerule import errors


def run_task(task: Callable[[DictConfig], None], config_path: str, config_name: str) -> None:
    """Compose the configuration from the command line and give it to `task`.

    `config_path` is relative to the module of `task`. A configuration that cannot be composed ends the
    process with one line on stderr and exit code 2.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # hydra then raises, and we print its first line instead of a page
    with errors.one_line(HydraException, OmegaConfBaseException, code=2):
        hydra.main(config_path=config_path, config_name=config_name, version_base=None)(task)()


def prepare(config: DictConfig, *required: str, require_accelerator: bool) -> None:
    """Resolve a configuration in which the keys `required` are set, and set its platform.

    Raises:
        ValueError: one line naming the key, or what is not there: an accelerator, flash attention.
    """
    from recipe.rerule import installation, platform, settings

    settings.require_set(config, *required)
    OmegaConf.resolve(config)
    platform.select(config.platform.name, require_accelerator=require_accelerator)
    installation.require_attention(config)
