"""What a command line of a document starts, and whether that program takes its words. Nothing is run.

`program_of` names the program; `fault` parses with the program's real parser, and composes the real
configuration of the commands that Hydra configures; `needs_gpu` says whether it asks for a GPU.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import re
import sys
from argparse import ArgumentParser, Namespace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from recipe.rerule.__main__ import COMMANDS
from recipe.rerule.preflight import installation
from recipe.rerule.schema import SettingsError
from recipe.rerule.training import entry, sizes
from tests.document_commands import ROOT, CommandLine

HYDRA = {
    "recipe.rerule.main": entry.STAGE2,
    "recipe.rerule.sft": entry.STAGE1,
    "recipe.rerule.unlearn": entry.UNLEARN,
    "recipe.rerule.check stage1": entry.STAGE1,
    "recipe.rerule.check stage2": entry.STAGE2,
}
"""Programs whose words are settings, with the configuration that they compose."""
WITHOUT_OPTIONS = {
    "benchmarks.refusals": 1,
    "benchmarks.mutants": 1,
}
"""Programs that parse nothing, with the most words that they take."""
EXTERNAL = {"pip", "ray", "vllm", "mutmut", "pre-commit"}
"""Programs of others: only their names are known here."""
_OF_OTHERS = {"venv", "pip", "pytest", "vllm"}
_SHOWN = {"--help", "--cfg", "job", "--resolve", "--list", "--json"}
"""Words of a Hydra command that are no settings."""
_STARTS_NOTHING = {"recipe.rerule.check stage1", "recipe.rerule.check stage2", "recipe.rerule.check install"}
_SUBCOMMANDS = {"recipe.rerule.evaluate", "recipe.rerule.check", "recipe.rerule.replay", "data_prep"}
_ASKS = "the following arguments are required"


class _ParsedError(Exception):
    """The words were parsed; nothing else is done."""

    def __init__(self, options: Namespace) -> None:
        self.options = options


class _UnknownError(ValueError):
    """A program, script, target or word does not exist."""


def program_of(command: CommandLine) -> str:
    """Its program as the lists of the test name it: MODULE, MODULE WORD, make TARGET or a script's path."""
    program, words = _program(command)
    word = words[0] if words and not words[0].startswith("-") else ""
    return f"{program} {word}" if word and program in _SUBCOMMANDS else program


def fault(command: CommandLine) -> str | None:
    """What is wrong with the command, or None."""
    try:
        _check(command)
    except (_UnknownError, SettingsError) as error:
        return str(error)
    return None


def needs_gpu(command: CommandLine) -> bool:
    """Whether the command asks for platform=gpu. The command has no fault."""
    program, words = program_of(command), _program(command)[1]
    if program in _STARTS_NOTHING or _SHOWN & set(words):
        return False
    if program in HYDRA:
        return str(composed(program, _settings(words)).platform.name) == "gpu"
    if program.startswith("examples/run_") and program != "examples/run_real.sh":
        return command.environment.get("SMOKE") != "1"
    name = program.split()[0]
    options = _parsed(name, words, lenient=True) if _is_module(name) else None
    return getattr(options, "platform", None) == "gpu"


def _is_module(name: str) -> bool:
    ours = name.split(".")[0] in {"recipe", "data_prep", "benchmarks"}
    return ours and name not in {*WITHOUT_OPTIONS, "recipe.rerule", "recipe.rerule.check"}


def _program(command: CommandLine) -> tuple[str, list[str]]:
    """The program, and the words after it; `...` stands for words that the reader knows."""
    first, *words = (word for word in command.words if word != "...")
    name = Path(first).name
    if re.fullmatch(r"python3?(\.\d+)?", name) and words[:1] == ["-m"]:
        return words[1], words[2:]
    if name.startswith("python"):
        return words[0], words[1:]
    if name == "rerule":
        return _word_of_rerule(words)
    if name == "bash":
        return words[0], words[1:]
    if name == "make":
        return " ".join(("make", *words[:1])), words[1:]
    return name, words


def _word_of_rerule(words: list[str]) -> tuple[str, list[str]]:
    if not words or words[0] == "--help":
        return "recipe.rerule", words
    if words[0] not in COMMANDS:
        raise _UnknownError(f"rerule has no word {words[0]}")
    found = COMMANDS[words[0]]
    return found.module, [*found.first, *words[1:]]


def _check(command: CommandLine) -> None:
    program, words = _program(command)
    lenient = command.inline or "..." in command.text
    named = " ".join((program, words[0])) if words else program
    if program.startswith("make"):
        _check_target(program.removeprefix("make").strip(), words)
    elif program.startswith("examples/"):
        _check_script(program, command.environment)
    elif named == "recipe.rerule.check install":
        _check_installation(words[1:])
    elif named in HYDRA or program in HYDRA:
        _check_hydra(named if named in HYDRA else program, words[named in HYDRA :])
    elif program in WITHOUT_OPTIONS:
        _check_bare(program, words)
    elif program == "recipe.rerule" or (command.inline and named == "recipe.rerule.check"):
        return
    elif program.split(".")[0] in {"recipe", "data_prep", "benchmarks"}:
        _parsed(program, words, lenient)
    elif program not in EXTERNAL:
        _check_other(program, words)


def _check_other(program: str, words: list[str]) -> None:
    if program.split(".")[0] not in _OF_OTHERS or _spec(program) is None:
        raise _UnknownError(f"{program} is no program that these tests know")
    if program == "pytest" and (
        gone := [word for word in words if not (ROOT / word.split("::")[0]).exists()]
    ):
        raise _UnknownError(f"{gone[0]} does not exist")


def _check_target(target: str, words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    if target and not re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE):
        raise _UnknownError(f"the Makefile has no target {target}")
    for word in words:
        if not re.search(rf"^{re.escape(word.split('=')[0])} \?=", makefile, re.MULTILINE):
            raise _UnknownError(f"the Makefile has no variable {word}")


def _check_script(script: str, environment: dict[str, str]) -> None:
    if not (ROOT / script).is_file():
        raise _UnknownError(f"{script} does not exist")
    sources = [
        ROOT / script,
        *(ROOT / "examples" / name for name in ("common.sh", "benchmark.sh", "muse.sh")),
    ]
    text = "\n".join(source.read_text() for source in sources)
    for name in environment:
        if not re.search(rf"\$\{{?{name}\b", text):
            raise _UnknownError(f"{script} reads no variable {name}")


def _check_installation(words: list[str]) -> None:
    """The words of `check install`, with the search for faults left out."""
    told = io.StringIO()
    with (
        mock.patch.object(installation, "faults", return_value=[]),
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(told),
    ):
        try:
            installation.command(words)
        except SystemExit as error:
            raise _UnknownError(told.getvalue().strip()) from error


def _check_hydra(program: str, words: list[str]) -> None:
    arguments = [word for word in words if word != "job"]
    if "--list" not in arguments:
        entry.check_options(arguments, HYDRA[program])
    composed(program, _settings(arguments))


def _settings(words: list[str]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in _SHOWN and word not in ("stage1", "stage2"))


@cache
def composed(program: str, settings: tuple[str, ...]) -> DictConfig:
    """The configuration of a Hydra command.

    Raises:
        OverrideError: a setting does not exist or cannot be read.
    """
    command = HYDRA[program]
    sizes.register()
    try:
        with initialize_config_dir(str(command.folder.resolve()), version_base=None):
            return compose(command.name, overrides=list(settings))
    except Exception as error:
        raise SettingsError(entry.explain(error, command)) from error


def _check_bare(program: str, words: list[str]) -> None:
    """A program without options; that it parses none is read in its source."""
    source = Path(str(_module_spec(program).origin)).read_text()
    assert "argparse" not in source, f"{program} has a parser now"
    if len(words) > WITHOUT_OPTIONS[program]:
        raise _UnknownError(f"{program} takes no {words[-1]}")


def _parsed(program: str, words: list[str], lenient: bool) -> Namespace | None:
    """What the program's parser makes of the words; None where it shows a help instead.

    lenient: options that are missing are no fault.
    """
    module = importlib.import_module(_parser_of(program))
    told = io.StringIO()
    original = ArgumentParser.parse_args

    def parse(parser: ArgumentParser, *given: Any, **more: Any) -> Namespace:
        raise _ParsedError(original(parser, *given, **more))

    with (
        mock.patch.object(ArgumentParser, "parse_args", parse),
        mock.patch.object(sys, "argv", [program, *words]),
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(told),
    ):
        try:
            getattr(module, "main" if hasattr(module, "main") else "command")()
        except _ParsedError as parsed:
            return parsed.options
        except SystemExit as ended:
            shown = told.getvalue()
            if ended.code not in (0, None) and not (lenient and _ASKS in shown):
                raise _UnknownError(f"{program}: {shown.strip()}") from ended
            return None
    raise AssertionError(f"{program} was run")


def _parser_of(program: str) -> str:
    """The module whose `main` parses the words. One that parses none must not get here: it would run."""
    name = str(_module_spec(program).name)
    assert ".parse_args(" in Path(str(_spec(name).origin)).read_text(), f"{name} has no parser"
    return name


def _module_spec(program: str) -> Any:
    """The spec of the module that `python -m` runs."""
    spec = _spec(program)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec(f"{program}.__main__")
    if spec is None or "__main__" not in Path(str(spec.origin)).read_text():
        raise _UnknownError(f"python -m {program} is nothing that can be run")
    return spec


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def starts(file: Path, program: str) -> bool:
    """Whether a test file starts a program: as a process, by its script's name, or by its `main`.

    program: MODULE, MODULE WORD, or the path of a script. The words of a process must be texts of the file.
    """
    tree = ast.parse(file.read_text())
    name, *words = program.split()
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    if not all(word in texts for word in words):
        return False
    if program.startswith("examples/"):
        return _names_script(tree, Path(program).name)
    return name in texts or _calls_main(tree, name)


def _names_script(tree: ast.AST, script: str) -> bool:
    """Whether a text, or an f-string with its holes, is the name of the script."""
    patterns = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (re.escape(p.value) if isinstance(p, ast.Constant) else r"\w+" for p in node.values)
            patterns.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            patterns.append(re.escape(node.value))
    return any(re.fullmatch(rf"(examples/)?{pattern}", script) for pattern in patterns if pattern)


def _calls_main(tree: ast.AST, module: str) -> bool:
    """Whether `main` of the module is called by any name under which the file imports it."""
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {
        (node.module, alias.name): alias.asname or alias.name for node in imported for alias in node.names
    }
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return any(
        (found == "main" and source in (module, f"{module}.__main__") and name in called)
        or (f"{source}.{found}" in (module, f"{module}.__main__") and f"{name}.main" in called)
        for (source, found), name in names.items()
    )
