"""No shared module knows a benchmark by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import recipe.rerule
from recipe.rerule.evaluation import registry

RECIPE = Path(recipe.rerule.__file__).parent
OWN = RECIPE / "evaluation" / "benchmarks"
FAMILIES = sorted({name.split("_")[0] for name in registry.BUILT_IN} - {registry.UNSTATED, registry.OWN_DATA})
"""As muse of muse_books; "world" and "custom" are words of English too."""
LIST = re.compile(r"^BUILT_IN = \(.*?\)$", re.MULTILINE | re.DOTALL)


def shared_files() -> Iterator[Path]:
    return (path for path in RECIPE.rglob("*.py") if not path.is_relative_to(OWN))


def text_of(path: Path) -> str:
    """The module without the registry's list, and without the two names that it gives a meaning."""
    text = path.read_text(encoding="utf-8")
    if path == Path(registry.__file__):
        text = LIST.sub("", text)
        for name in ("UNSTATED", "OWN_DATA"):
            text = re.sub(rf'^{name} = "\w+"$', "", text, flags=re.MULTILINE)
    return text


def named_in(text: str) -> list[str]:
    """The names of benchmarks in a module: anywhere in its text, or as a whole string."""
    found = re.findall("|".join(FAMILIES), text, re.IGNORECASE)
    strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    return [*found, *(text for text in strings if isinstance(text, str) and text in registry.BUILT_IN)]


def test_shared_files_name_no_benchmark() -> None:
    assert FAMILIES == ["muse", "rwku", "tofu"]
    named = {str(path.relative_to(RECIPE)): named_in(text_of(path)) for path in shared_files()}
    assert len(named) > 100
    assert {file: names for file, names in named.items() if names} == {}


@pytest.mark.parametrize("line", ['x = "rwku"', "# as in TOFU", "from muse_books import x", 'x == "custom"'])
def test_a_name_is_found(line: str) -> None:
    assert named_in(line)


def test_every_folder_of_a_benchmark_is_in_the_list() -> None:
    declared = {path.parent.name for path in OWN.glob("*/declaration.py")}
    assert declared - {"muse"} == set(registry.BUILT_IN)
