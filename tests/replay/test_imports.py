from __future__ import annotations

import ast
import sys
from pathlib import Path

import recipe.rerule.replay as replay


def imported_packages(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def test_package_needs_little() -> None:
    assert replay.__file__ is not None
    sources = [path for path in Path(replay.__file__).parent.glob("*.py") if path.name != "__main__.py"]
    assert len(sources) > 7
    used = set().union(*(imported_packages(path.read_text()) for path in sources))
    assert used - set(sys.stdlib_module_names) == {"torch", "numpy", "pydantic", "safetensors"}


def test_public_names_are_those_listed() -> None:
    assert all(hasattr(replay, name) for name in replay.__all__)
