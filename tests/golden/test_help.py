"""Every command that there is, and the options and settings that its help names."""

from __future__ import annotations

import re
from pathlib import Path

from tests.golden.commands import done, refused, run
from tests.golden.golden import check

COMMANDS = {
    "rerule": ("recipe.rerule", "--help"),
    "data_prep": ("data_prep", "--help"),
    **{
        f"data_prep {name}": ("data_prep", name, "--help")
        for name in ("world", "tofu", "rwku", "muse-books", "muse-news", "custom")
    },
    "evaluate": ("recipe.rerule.evaluate", "--help"),
    **{
        f"evaluate {name}": ("recipe.rerule.evaluate", name, "--help")
        for name in ("model", "score", "attack", "judge")
    },
    **{
        name: (f"recipe.rerule.{name}", "--help")
        for name in ("sft", "main", "unlearn", "task_vector", "report", "export", "check", "minimal")
    },
    "replay inspect": ("recipe.rerule.replay", "inspect", "--help"),
}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_SETTING = re.compile(r"^ +([a-z_]\w*(?:\.\w+)+)(?==|\s|$)", re.MULTILINE)
"""A setting of Hydra at the beginning of an indented line."""
_COMMAND = re.compile(r"^ {2,4}([a-z][a-z-]*)(?: {2,}\w|$)", re.MULTILINE)
"""A command in a list of commands."""


def test_help(tmp_path: Path) -> None:
    kept = {}
    for name, words in COMMANDS.items():
        said = done(*words).out
        found = {
            "commands": dict.fromkeys(_COMMAND.findall(said)),
            "options": sorted(set(_OPTION.findall(said))),
            "settings": dict.fromkeys(_SETTING.findall(said)),
        }
        kept[name] = {part: " ".join(names) for part, names in found.items() if names}
    kept["an unknown command"] = refused(run("recipe.rerule", "trian"), ["trian", "train"])
    check("help", kept)
