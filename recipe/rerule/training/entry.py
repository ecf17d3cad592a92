"""What the Hydra commands share: help, composing the configuration, and refusing a wrong one in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from recipe.rerule import io
from recipe.rerule.training.keys import usage

_ONLY_SHOWS = ("--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc")
"""Options with which Hydra shows something and starts nothing."""
_OMEGACONF_SAYS = "ValueError raised while resolving interpolation: "
"""What stands before the reason why a size of `sizes` cannot be derived."""


def run_task(task: Callable[[DictConfig], None], command: usage.Command, program: str = "") -> None:
    """Compose the configuration from the command line and give it to `task`; --help is answered at once.

    program: how the command is called, where not by its own name. A configuration that cannot be composed
    ends the process with one line on stderr and exit code 2.
    """
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        print(usage.text(command, program))
        return
    from recipe.rerule.training.keys import overrides

    with io.one_line(overrides.OverrideError, code=2):
        overrides.check_options(arguments)
        overrides.check_config_name(arguments, command)
        _announce(arguments)
        _compose(task, command)


def _announce(arguments: list[str]) -> None:
    # Importing verl takes seconds. A rank of torch's launcher has nothing new to tell.
    shows = any(argument.split("=")[0] in _ONLY_SHOWS for argument in arguments)
    if not shows and "RANK" not in os.environ:
        print("checking settings, model and rows ...", file=sys.stderr, flush=True)


def _compose(task: Callable[[DictConfig], None], command: usage.Command) -> None:
    """Compose and run; what Hydra and OmegaConf raise becomes an OverrideError."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from recipe.rerule.training import sizes
    from recipe.rerule.training.keys import overrides

    sizes.register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # hydra then raises, and we print a line instead of a page
    try:
        hydra.main(config_path=str(command.folder), config_name=command.name, version_base=None)(task)()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise overrides.OverrideError(overrides.explain(error, command)) from error


def prepare(config: DictConfig, *required: str, require_accelerator: bool) -> None:
    """Resolve a configuration in which the keys `required` are set, and set its platform.

    Raises:
        ValueError: one line naming the key, or what is not there: an accelerator, flash attention.
    """
    from omegaconf.errors import InterpolationResolutionError

    from recipe.rerule import platform
    from recipe.rerule.training import installation, settings

    settings.require_set(config, *required)
    try:
        OmegaConf.resolve(config)
    except InterpolationResolutionError as error:
        raise ValueError(str(error).split("\n")[0].removeprefix(_OMEGACONF_SAYS)) from error
    platform.select(config.platform.name, require_accelerator=require_accelerator)
    installation.require_attention(config)
