"""What is wrong with a command line that Hydra could not compose, in one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from itertools import pairwise

from hydra.errors import MissingConfigException, OverrideParseException

from recipe.rerule import io
from recipe.rerule.training.keys.usage import Command

_LONG = ("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--info")
_RARE = ("--shell-completion", "--config-path", "--config-name", "--config-dir", "--experimental-rerun")
_SHORT = ("-h", "-c", "-p", "-r", "-i", "-sc", "-cp", "-cn", "-cd")
_NAME = {"--config-name", "-cn"}
_OWN_FOLDER = {"--config-path", "-cp", "--config-dir", "-cd"}
"""Options of those who bring configurations of their own."""
_OPTIONS = {*_LONG, *_RARE, *_SHORT}
"""Hydra's options."""


class OverrideError(ValueError):
    """A setting on the command line is unknown or cannot be read; the message is one line."""


def check_options(arguments: list[str]) -> None:
    """Refuse options that the commands do not have.

    Raises:
        OverrideError: naming the option.
    """
    for argument in arguments:
        option = argument.split("=")[0]
        if option in ("--multirun", "-m"):
            raise OverrideError(
                "--multirun is not supported: each run needs a folder and the devices for itself; start one "
                "command after the other"
            )
        if option.startswith("-") and option not in _OPTIONS:
            raise OverrideError(
                f"{option} is no option; write settings as KEY=VALUE without dashes. --help lists them"
            )


def check_config_name(arguments: list[str], command: Command) -> None:
    """Refuse `--config-name` with a part of the command's configuration, such as experiment/tiny.

    Raises:
        OverrideError: naming the option, and what to write.
    """
    given = {argument.split("=")[0] for argument in arguments}
    if given & _OWN_FOLDER:
        return
    for argument, following in pairwise([*arguments, ""]):
        option, equals, value = argument.partition("=")
        name = (value if equals else following).removesuffix(".yaml")
        if option in _NAME and (advice := _instead_of_part(name, command)):
            raise OverrideError(
                f"{option} is {name}, a part of the configuration and not all of it; {advice}"
            )


def _instead_of_part(name: str, command: Command) -> str | None:
    """What to do instead of taking `name` for the whole configuration; None where it is no part of one."""
    for group in command.groups:
        if (choice := name.removeprefix(f"{group}/")) in command.options(group):
            return f"write {group}={choice}"
    is_part = name != command.name and (command.folder / f"{name}.yaml").is_file()
    return "leave the option out" if is_part else None


def explain(error: Exception, command: Command) -> str:
    """One line that names the setting of an exception of Hydra's or OmegaConf's, and says what to do."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        reason = text.splitlines()[0]
        return (
            f"{error.override!r} cannot be read as KEY=VALUE ({reason}); put values with brackets in quotes"
        )
    if isinstance(error, MissingConfigException) and (found := re.search(r"find '([^/']+)/([^']*)'", text)):
        return _unknown_choice(found[1], found[2], command, error.options or [])
    if found := re.search(r"Could not override '([^'=@]+)", text):
        return _unknown_key(found[1], command)
    if text.startswith("Config group override"):
        return f"a name without a dot is a group of settings: set its keys one by one, as KEY=VALUE ({text})"
    return io.describe(error)


def _unknown_choice(group: str, choice: str, command: Command, options: Sequence[str]) -> str:
    known = command.options(group) or sorted(options)
    return f"{group} is {choice!r}; set it to one of {', '.join(known)}"


def _unknown_key(name: str, command: Command) -> str:
    near = _nearest_of(name, command)
    guess = f"; did you mean {near}?" if near else "."
    return (
        f"{name} is no setting{guess} --help lists the settings of ReRULE, and --cfg job lists all; "
        f"+{name}=... adds one for verl"
    )


def _nearest_of(name: str, command: Command) -> str | None:
    """The setting that was probably meant, one of those that --help lists before others."""
    shown = [key.name for key in command.keys if key.shown]
    return nearest(name, [*shown, *command.groups]) or nearest(name, [key.name for key in command.keys])


def nearest(name: str, known: list[str]) -> str | None:
    """The one of `known` with the same last part, or with all words of `name`, or else one much alike."""
    same_end = [key for key in known if key.endswith(f".{name.split('.')[-1]}")]
    same_words = [key for key in known if all(word in key for word in re.split(r"[._]", name))]
    for candidates, cutoff in ((same_end, 0.0), (same_words, 0.0), (known, 0.7)):
        if close := difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff):
            return close[0]
    return None
