"""`rerule COMMAND`: one command for everything, which runs what `python -m` runs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import util
from pathlib import Path

import pytest

from recipe.rerule import __main__ as rerule

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """`rerule` as its console script starts it."""
    script = "import sys; from recipe.rerule.__main__ import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_the_help_names_every_command_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert rerule.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    for name, command in rerule.COMMANDS.items():
        assert sum(line.split()[:1] == [name] and line.endswith(command.does) for line in lines) == 1


def test_the_help_imports_neither_torch_nor_verl() -> None:
    script = (
        "import sys; from recipe.rerule.__main__ import main; main(['--help']);"
        "sys.exit(bool({'torch', 'verl', 'transformers', 'ray'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True).returncode == 0


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, rerule.usage() + "\n")


@pytest.mark.parametrize(
    ("name", "told"), [("trian", "did you mean train?"), ("zzz", "there are data, sft, train,")]
)
def test_an_unknown_command_is_one_line(name: str, told: str) -> None:
    done = run(name)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"'{name}' is no command of rerule" in done.stderr
    assert told in done.stderr


@pytest.mark.parametrize("name", rerule.COMMANDS)
def test_a_command_shows_the_help_of_its_module(name: str) -> None:
    command = rerule.COMMANDS[name]
    done = run(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(" ".join(("usage: python -m", command.module, *command.first)))


def test_words_exit_code_and_message_are_those_of_the_module() -> None:
    words = ("experiment=custom", "platform=cpu", "data.train_file=rows.parquet")
    by_module = subprocess.run(
        [sys.executable, "-m", "recipe.rerule.sft", *words], cwd=ROOT, capture_output=True, text=True
    )
    done = run("sft", *words)
    assert by_module.returncode == 2
    assert "train_file" in by_module.stderr
    assert (done.returncode, done.stdout, done.stderr) == (2, by_module.stdout, by_module.stderr)


def test_the_package_declares_the_script_and_every_module_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"rerule": "recipe.rerule.__main__:main"}
    for command in rerule.COMMANDS.values():
        assert util.find_spec(command.module) is not None


def test_every_module_that_is_a_command_is_a_word_of_it() -> None:
    commands = {
        f"recipe.rerule.{path.stem}"
        for path in (ROOT / "recipe" / "rerule").glob("*.py")
        if path.stem != "__main__" and 'if __name__ == "__main__"' in path.read_text()
    }
    assert len(commands) >= 8
    assert commands <= {command.module for command in rerule.COMMANDS.values()}
