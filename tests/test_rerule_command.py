"""`rerule COMMAND`: one command for everything, which runs what `python -m` runs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from recipe.rerule import __main__ as rerule
from tests.golden import commands
from tests.golden.evaluation_inputs import tofu_log
from tests.golden.inputs import put_json

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "verl", "vllm", "transformers", "ray", "datasets", "openai", "huggingface_hub"}
HEAVY |= {"pyarrow", "pandas", "matplotlib", "nltk"}
LIGHT: dict[str, set[str]] = {"sft": set(), "train": set(), "unlearn": set(), "check": set()}
LIGHT |= {"data": {"pyarrow"}}
"""What the help of commands imports that must start at once."""
PROGRAM = f"""
import atexit, sys
from recipe.rerule.__main__ import main
atexit.register(lambda: print("imported", *{HEAVY} & set(sys.modules), file=sys.stderr))
sys.exit(main())
"""


def run(*words: str) -> tuple[int, str, str, set[str]]:
    """Exit code, stdout and stderr of `rerule` as its console script starts it, and what it imported."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], cwd=ROOT, capture_output=True, text=True)
    err, _, imported = done.stderr.rpartition("imported")
    return done.returncode, done.stdout, err, set(imported.split())


def test_without_a_command_it_names_them_all() -> None:
    """tests/golden has its help, and an unknown command."""
    code, out, err, imported = run()
    assert (code, err, imported) == (2, "", set())
    for name, (_, does) in rerule.COMMANDS.items():
        assert re.search(rf"^ +{name} .*{re.escape(does)}$", out, re.MULTILINE)


def test_a_command_shows_the_help_of_its_module() -> None:
    for name, (words, _) in rerule.COMMANDS.items():
        ran = commands.run(f"rerule {name} --help")
        assert (ran.code, ran.said) == (0, [])
        assert ran.out.startswith(f"usage: python -m {words}")


@pytest.mark.parametrize("name", LIGHT)
def test_help_comes_at_once(name: str) -> None:
    """Without the libraries that take seconds to import."""
    code, _, err, imported = run(name, "--help")
    assert (code, err) == (0, "")
    assert imported <= LIGHT[name]


def test_the_list_of_methods_loads_no_library() -> None:
    code, out, _, imported = run("unlearn", "--list")
    assert (code, imported) == (0, set())
    assert "\nnpo_gdr  " in out


def test_scoring_a_log_loads_no_framework(tmp_path: Path) -> None:
    log = put_json(tmp_path / "log.json", tofu_log(1))
    code, _, _, imported = run("evaluate", "score", "--benchmark", "tofu", "--log", f"{log}")
    assert code == 0
    assert imported <= {"pyarrow"}


def test_words_exit_code_and_message_are_those_of_the_module() -> None:
    ran = commands.run("rerule sft experiment=custom platform=cpu data.train_file=rows.parquet")
    assert (ran.code, ran.out) == (2, "")
    assert "train_file is no setting" in ran.said[0]


def test_the_package_declares_the_script_and_every_module_that_is_a_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"rerule": "recipe.rerule.__main__:main"}
    modules = {words.split()[0] for words, _ in rerule.COMMANDS.values()}
    commands = {
        f"recipe.rerule.{path.stem}"
        for path in (ROOT / "recipe" / "rerule").glob("*.py")
        if path.stem != "__main__" and 'if __name__ == "__main__"' in path.read_text()
    }
    assert len(commands) >= 8
    assert commands <= modules
