"""What the Hydra commands share: help, composing the configuration, and refusing a wrong one in one line."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from recipe.rerule import io, process, schema
from recipe.rerule.schema import SettingsError

CONFIG = Path(__file__).parents[1] / "config"
_WIDTH = 62  # columns of a key and its default
_ONLY_SHOWS = {"--cfg", "-c", "--info", "-i", "--hydra-help", "--version", "--shell-completion", "-sc"}
"""Options with which Hydra shows something and starts nothing."""
_OWN_FOLDER = {"--config-path", "-cp", "--config-dir", "-cd"}
"""Options of those who bring configurations of their own."""
_NAME = {"--config-name", "-cn"}
_OPTIONS = {
    *("--help", "-h", "--resolve", "--package", "-p", "--run", "-r", "--experimental-rerun"),
    *(*_ONLY_SHOWS, *_OWN_FOLDER, *_NAME),
}
"""Hydra's options that we let through."""


@dataclass(frozen=True)
class Command:
    """A command that Hydra composes a configuration for.

    path: the configuration's folder, relative to config/.
    name: the configuration's file, without its suffix.
    groups: of settings that are chosen together, by one override.
    further: folders, relative to config/, whose groups the configuration's search path adds.
    """

    program: str
    what: str
    path: str
    name: str
    examples: tuple[str, ...]
    table: schema.Table
    groups: tuple[str, ...] = ("experiment", "platform")
    further: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where the configuration stands."""
        return CONFIG / self.path

    def options(self, group: str) -> list[str]:
        """The choices of one of our groups, such as experiment."""
        folders = [CONFIG / path / group for path in (self.path, *self.further)]
        found = {file.relative_to(folder) for folder in folders for file in folder.rglob("*.yaml")}
        return sorted(str(file.with_suffix("")) for file in found)


STAGE1 = Command(
    "python -m recipe.rerule.sft",
    "Stage 1, rejection steering: fine-tunes a model on pairs of a forget prompt and a refusal.\n"
    "It writes the model to the folder model of trainer.default_local_dir.",
    "stage1",
    "sft_trainer",
    (
        "experiment=tiny model.path=MODEL data.train_files=DIR/sft.parquet "
        "trainer.default_local_dir=outputs/stage1",
        "model.path=MODEL data.train_files=DIR/sft.parquet trainer.n_gpus_per_node=4",
    ),
    schema.STAGE1,
)
STAGE2 = Command(
    "python -m recipe.rerule.main",
    "Stage 2, refusal boundary optimisation: trains the stage-1 model by GRPO, with replay of groups.",
    ".",
    "rerule_trainer",
    (
        "experiment=tiny actor_rollout_ref.model.path=outputs/stage1/model "
        "data.train_files=DIR/train.parquet data.val_files=DIR/val.parquet "
        "trainer.default_local_dir=outputs/run",
        "experiment=paper/NAME replay.enable=false ... (RULE at the paper's settings)",
        "trainer.default_local_dir=outputs/run trainer.resume_mode=auto ... (goes on with a run)",
    ),
    schema.STAGE2,
)
UNLEARN = Command(
    "python -m recipe.rerule.unlearn",
    "Unlearning methods that are not reinforcement, on verl's SFT trainer; --list prints them.\n"
    "The model ends up in the folder model of trainer.default_local_dir.",
    "unlearn",
    "unlearn_trainer",
    (
        "method=npo_gdr experiment=tiny model.path=MODEL data.forget=DIR/forget_gold.parquet "
        "data.retain=DIR/retain.parquet trainer.default_local_dir=outputs/npo_gdr",
        "--list --json",
    ),
    schema.UNLEARN,
    groups=("method", "experiment", "platform"),
    further=("stage1",),
)


def run_task(task: Callable[[DictConfig], None], command: Command, program: str = "") -> None:
    """Compose the configuration from the command line and give it to `task`; --help is answered at once.

    program: how the command is called, where not by its own name. A configuration that cannot be composed
    ends the process with one line on stderr and exit code 2.
    """
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        print(help_text(command, program))
        return
    with io.one_line(SettingsError, code=2):
        check_options(arguments, command)
        # Importing verl takes seconds. A rank of torch's launcher has nothing new to tell.
        shows = any(argument.split("=")[0] in _ONLY_SHOWS for argument in arguments)
        if not shows and not process.is_rank():
            print("checking settings, model and rows ...", file=sys.stderr, flush=True)
        import hydra

        os.environ["HYDRA_FULL_ERROR"] = "1"  # hydra then raises, and we print a line instead of a page
        with _composing(command):
            hydra.main(config_path=str(command.folder), config_name=command.name, version_base=None)(task)()


@contextlib.contextmanager
def _composing(command: Command) -> Iterator[None]:
    """Our resolvers are known in the block, and what Hydra and OmegaConf raise becomes a SettingsError."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from recipe.rerule.training import sizes

    sizes.register()
    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise SettingsError(explain(error, command)) from error


def composed(command: Command, words: Sequence[str]) -> DictConfig:
    """The configuration of a command with these settings; nothing is run, resolved or checked.

    Raises SettingsError: a setting does not exist or cannot be read.
    """
    from hydra import compose, initialize_config_dir

    with _composing(command), initialize_config_dir(str(command.folder.resolve()), version_base=None):
        return compose(command.name, overrides=list(words))


def help_text(command: Command, program: str = "") -> str:
    """What --help prints: usage, groups, our settings with a line each, examples."""
    program = program or command.program
    defaults = yaml.safe_load((command.folder / f"{command.name}.yaml").read_text("utf-8"))
    return "\n".join(
        [
            f"usage: {program} [KEY=VALUE ...] [--help] [--cfg job]",
            "",
            command.what,
            "",
            "Groups of settings that one word chooses:",
            *(f"  {group}={'|'.join(command.options(group))}" for group in command.groups),
            "",
            "Settings with their defaults, meaning and allowed values (more in docs/configuration.md):",
            *_settings(command.table, defaults),
            "",
            "You can give every other setting of verl too. --cfg job prints all settings with their values.",
            "+KEY=VALUE adds a setting that is not among them. --hydra-help is Hydra's own help.",
            "",
            "Examples:",
            *(f"  {program} {example}" for example in command.examples),
        ]
    )


def _settings(table: schema.Table, defaults: Any) -> Iterator[str]:
    for key, adapter in table.items():
        kind = adapter.json_schema()
        if "description" in kind:
            default, missing = defaults, object()
            for part in key.split("."):
                default = default.get(part, missing) if isinstance(default, dict) else missing
            given = key
            if default is not missing:
                written = yaml.safe_dump(default, default_flow_style=True)
                given += f"={written.removesuffix('...' + chr(10)).strip()}"
            yield f"  {given:{_WIDTH}} {kind['description']}; {schema.allowed(kind)}"


def check_options(arguments: list[str], command: Command) -> None:
    """Refuse options that the commands do not have, and a part of the configuration as `--config-name`.

    Raises SettingsError: naming the option, and what to write.
    """
    given = {argument.split("=")[0] for argument in arguments}
    if given & {"--multirun", "-m"}:
        raise SettingsError(
            "--multirun is not supported: each run needs a folder and the devices for itself; start one "
            "command after the other"
        )
    for option in sorted(given - _OPTIONS):
        if option.startswith("-"):
            raise SettingsError(
                f"{option} is no option; write settings as KEY=VALUE without dashes. --help lists them"
            )
    for argument, following in pairwise([*arguments, ""]):
        option, equals, value = argument.partition("=")
        if option not in _NAME or given & _OWN_FOLDER:
            continue
        name = (value if equals else following).removesuffix(".yaml")
        line = f"{option} is {name}, a part of the configuration and not all of it"
        for group in command.groups:
            if (choice := name.removeprefix(f"{group}/")) in command.options(group):
                raise SettingsError(f"{line}; write {group}={choice}")
        if name != command.name and (command.folder / f"{name}.yaml").is_file():
            raise SettingsError(f"{line}; leave the option out")


def explain(error: Exception, command: Command) -> str:
    """One line that names the setting of an exception of Hydra's or OmegaConf's, and says what to do."""
    from hydra.errors import MissingConfigException, OverrideParseException

    text = str(error)
    if isinstance(error, OverrideParseException):
        reason = text.splitlines()[0]
        instead = "put values with brackets in quotes"
        if "=~" in str(error.override):
            instead = "write $HOME in place of ~"
        return f"{error.override!r} cannot be read as KEY=VALUE ({reason}); {instead}"
    if isinstance(error, MissingConfigException) and (found := re.search(r"find '([^/']+)/([^']*)'", text)):
        known = command.options(found[1]) or sorted(error.options or [])
        return f"{found[1]} is {found[2]!r}; set it to one of {', '.join(known)}"
    if found := re.search(r"Could not override '([^'=@]+)", text):
        # One of those that --help lists was probably meant.
        listed = [key for key, adapter in command.table.items() if "description" in adapter.json_schema()]
        near = schema.nearest(found[1], [*listed, *command.groups])
        near = near or schema.nearest(found[1], [*command.table])
        return (
            f"{found[1]} is no setting{f'; did you mean {near}?' if near else '.'} --help lists the settings "
            f"of ReRULE, and --cfg job lists all; +{found[1]}=... adds one for verl"
        )
    if text.startswith("Config group override"):
        return f"a name without a dot is a group of settings: set its keys one by one, as KEY=VALUE ({text})"
    return io.describe(error)
