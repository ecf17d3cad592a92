"""Whether the program of a command line of a document exists and takes its words. Nothing is run.

The words are parsed by the program's real parser, and commands that Hydra configures compose their real
configuration.
"""

import contextlib
import importlib
import io
import re
import sys
from argparse import ArgumentParser
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from omegaconf import DictConfig

from recipe.rerule.__main__ import COMMANDS
from recipe.rerule.preflight import installation
from recipe.rerule.training import entry
from tests.document_commands import ROOT, CommandLine

HYDRA = {
    "recipe.rerule.main": entry.STAGE2,
    "recipe.rerule.sft": entry.STAGE1,
    "recipe.rerule.unlearn": entry.UNLEARN,
    "recipe.rerule.check stage1": entry.STAGE1,
    "recipe.rerule.check stage2": entry.STAGE2,
}
"""Programs whose words are settings, with the configuration that they compose."""
OTHERS = {"pip", "sbatch", "vllm", "mutmut", "pre-commit", "venv", "pytest"}
"""Programs of others: only their names are known here."""
_SHOWN = {"--help", "--cfg", "job", "--resolve", "--list", "--json", "stage1", "stage2"}
"""Words of a Hydra command that are no settings."""


def fault(command: CommandLine) -> str | None:
    """What is wrong with the command, or None."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            _check(command)
    except SystemExit as ended:  # of a parser; a sentence and "..." leave words to the reader
        lenient = command.inline or "..." in command.text
        missing = lenient and "the following arguments are required" in told.getvalue()
        return None if missing or ended.code in (0, None) else told.getvalue().strip()
    except ValueError as error:
        return str(error)
    return None


@cache
def composed(program: str, settings: tuple[str, ...]) -> DictConfig:
    """The configuration of a Hydra command.

    Raises:
        SettingsError: a setting does not exist or cannot be read.
    """
    return entry.composed(HYDRA[program], settings)


def _check(command: CommandLine) -> None:
    """Raises ValueError where something does not exist, and SystemExit where a parser does."""
    program, words = _program([word for word in command.words if word != "..."])
    named = " ".join((program, *words[:1]))
    if program == "make":
        makefile, (target, *assigned) = (ROOT / "Makefile").read_text(), words or ["setup"]
        _require(rf"^{target}:", makefile, f"the Makefile has no target {target}")
        for word in assigned:
            _require(rf"^{word.split('=')[0]} \?=", makefile, f"the Makefile has no variable {word}")
    elif program.endswith(".sh"):
        if not (ROOT / program).is_file():
            raise ValueError(f"{program} does not exist")
        script = (ROOT / program).read_text()
        script += "".join(
            (ROOT / f"{name}.py").read_text() for name in re.findall(r"examples/\w+(?=\.py)", script)
        )
        for name in command.environment:
            _require(rf"\b{name}\b", script, f"{program} reads no variable {name}")
    elif named == "recipe.rerule.check install":
        with mock.patch.object(installation, "faults", return_value=[]):
            installation.command(words[1:])
    elif named in HYDRA or program in HYDRA:
        hydra = named if named in HYDRA else program
        if "--list" not in words:
            entry.check_options([word for word in words[hydra == named :] if word != "job"], HYDRA[hydra])
        composed(hydra, tuple(word for word in words if word not in _SHOWN))
    elif program.split(".")[0] not in OTHERS:
        _parse(program, words)


def _require(pattern: str, text: str, told: str) -> None:
    if not re.search(pattern, text, re.MULTILINE):
        raise ValueError(told)


def _program(words: list[str]) -> tuple[str, list[str]]:
    """The program (a module, a script, or make), and the words after it."""
    name, *words = Path(words[0]).name, *words[1:]
    if name == "rerule" and words and words[0] != "--help":
        if words[0] not in COMMANDS:
            raise ValueError(f"rerule has no word {words[0]}")
        module, *first = COMMANDS[words[0]][0].split()
        return module, [*first, *words[1:]]
    if name == "bash" or name.startswith("python"):
        name, *words = words[words[0] == "-m" :]
    return {"rerule": "recipe.rerule"}.get(name, name), words


def _parse(program: str, words: list[str]) -> None:
    """Let the parser of a module of ours parse the words; one without a parser has to exist."""
    name = program.removesuffix(".py").replace("/", ".")
    path = ROOT / name.replace(".", "/")
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    source = file.read_text() if file.is_file() else ""
    if "__main__" not in f"{file}{source}":
        raise ValueError(f"{program} is nothing that can be run")
    if ".parse_args(" not in source:
        return
    module = importlib.import_module(f"{name}.__main__" if path.is_dir() else name)
    original = ArgumentParser.parse_args

    def parse(parser: ArgumentParser, *given: Any, **more: Any) -> None:
        original(parser, *given, **more)
        raise SystemExit(0)

    argv = mock.patch.object(sys, "argv", [program, *words])
    with mock.patch.object(ArgumentParser, "parse_args", parse), argv:
        getattr(module, "main" if hasattr(module, "main") else "command")()
    raise AssertionError(f"{program} was run")
