"""Every command that there is, and the options and settings that its help names."""

from __future__ import annotations

import json
import re

from tests.golden.commands import done, run
from tests.golden.golden import FOLDER, check

UNKNOWN = "an unknown command"
_PARTS = {
    "commands": re.compile(r"^ {2,4}([a-z][a-z-]*)(?: {2,}\w|$)", re.MULTILINE),
    "options": re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*"),
    "settings": re.compile(r"^ +([a-z_]\w*(?:\.\w+)+)(?==|\s|$)", re.MULTILINE),
}
"""A command in a list of commands, an option, and a setting of Hydra at the beginning of an indented line."""


def test_help() -> None:
    """Of each command that help.json has."""
    commands = json.loads((FOLDER / "help.json").read_text("utf-8"))
    ran, kept = run("rerule trian"), {}
    for line in commands.keys() - {UNKNOWN}:
        said = done(f"{line} --help").out
        found = {part: list(dict.fromkeys(pattern.findall(said))) for part, pattern in _PARTS.items()}
        found["options"].sort()
        kept[line] = {part: " ".join(names) for part, names in found.items() if names}
    names = [name for name in ("trian", "train") if name in ran.said[0]]
    out = len(ran.out.splitlines())
    kept[UNKNOWN] = {"code": ran.code, "errors": len(ran.said), "names": names, "out": out}
    check("help", {line: kept[line] for line in commands})
    assert run("check stage3").code == 2
