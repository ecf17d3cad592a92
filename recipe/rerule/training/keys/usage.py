"""What --help of the training commands prints: usage, our settings with a line each, examples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recipe.rerule.training.keys import replay, stage1, stage2
from recipe.rerule.training.keys.kinds import Key

CONFIG = Path(__file__).parents[2] / "config"
_WIDTH = 62  # columns of a key and its default


@dataclass(frozen=True)
class Command:
    """A command that Hydra composes a configuration for.

    path: the configuration's folder, relative to config/.
    name: the configuration's file, without its suffix.
    """

    program: str
    what: str
    path: str
    name: str
    examples: tuple[str, ...]
    single: tuple[Key, ...]
    """The settings that `settings` checks one by one."""
    groups: tuple[str, ...] = ("experiment", "platform")
    """Groups of settings that are chosen together, by one override."""
    further: tuple[str, ...] = ()
    """Folders, relative to config/, whose groups the configuration's search path adds."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """All settings that are known, the replay's too."""
        return self.single + (replay.declared() if self.single is stage2.KEYS else ())

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
    stage1.KEYS,
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
    stage2.KEYS,
)


def text(command: Command, program: str = "") -> str:
    """The whole help of a command; `program`: how it is called, where not by its own name."""
    program = program or command.program
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
            *_lines(command),
            "",
            "You can give every other setting of verl too. --cfg job prints all settings with their values.",
            "+KEY=VALUE adds a setting that is not among them. --hydra-help is Hydra's own help.",
            "",
            "Examples:",
            *(f"  {program} {example}" for example in command.examples),
        ]
    )


def _lines(command: Command) -> Iterable[str]:
    defaults = yaml.safe_load((command.folder / f"{command.name}.yaml").read_text("utf-8"))
    for key in command.keys:
        if key.shown:
            given = f"{key.name}{_default(defaults, key.name)}"
            yield f"  {given:{_WIDTH}} {key.help}; {key.allowed}"


def _default(node: Any, name: str) -> str:
    for part in name.split("."):
        if not isinstance(node, dict) or part not in node:
            return ""
        node = node[part]
    return f"={yaml.safe_dump(node, default_flow_style=True).removesuffix('...' + chr(10)).strip()}"
