"""Which room of the project imports which: docs/architecture.md has the rooms."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from recipe.rerule.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
FOR_ALL = {"io", "process"}
"""The standard library and psutil alone; everyone may use them."""
DATA = {"data_prep.contract"}
OF_EVALUATION = {"reward", "runs", "platform", "training.prompts", *DATA}
ARROWS: dict[str, set[str]] = {
    "io": set(),
    "process": set(),
    "schema": set(),
    "replay": set(),
    "reward": set(),
    "runs": {"replay"},
    "platform": {"training.agent_loop", "schema"},
    "training": {"schema", "replay", "runs", "platform", "reward", *DATA},
    "unlearning": {"schema", "training", "runs", "platform", "reward", *DATA},
    "preflight": {"schema", "training", "unlearning", "replay", "runs", "platform", "reward", *DATA},
    "evaluation": {"data_prep.generate", *OF_EVALUATION},
    "reporting": {"evaluation", "runs", "replay", *DATA},
    "data_prep": {"reward"},
}
"""Room to the rooms it may import, or the modules of a room where it may not import all."""
INNER = {
    "evaluation/attacks": {
        *(f"evaluation.{name}" for name in ("attacks", "engine", "summary", "probes", "registry", "metrics")),
        *("data_prep.generate", *OF_EVALUATION),
    }
}
"""Folders of a room that may import less than the room, with all that they may import."""
OF_MODULES = {
    "recipe/rerule/training/own_answers.py": {"evaluation.engine"},  # asks the model before stage 1
    "recipe/rerule/evaluation/tasks/over_refusal.py": {"data_prep.sources"},  # reads a table of a user's
}
"""What a module may import in addition to what its room may."""
MODULES = {words.split()[0].removeprefix("recipe.rerule.") for words, _ in COMMANDS.values()}


def test_the_top_of_the_recipe_holds_commands_and_rooms_alone() -> None:
    found = {path.stem for path in (ROOT / "recipe" / "rerule").glob("*.py")} - {"__init__"}
    assert found <= MODULES | {"chain", "io", "process", "schema", "__main__"}
    rooms = {path.parent.name for path in (ROOT / "recipe" / "rerule").glob("*/__init__.py")}
    assert rooms <= set(ARROWS) | {"config"}


def test_rooms_import_only_what_their_arrows_allow() -> None:
    arrows = ARROWS | INNER
    rooms = {room: [file for file in files_of(room) if file.stem != "__main__"] for room in arrows}
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for room, files in rooms.items()
        for file in files
        for module in imported(file)
        if room_of(module) != room
        if not is_allowed(module, arrows[room] | FOR_ALL | OF_MODULES.get(str(file.relative_to(ROOT)), set()))
    ]
    assert wrong == []
    assert all(rooms.values())


def test_minimal_needs_little() -> None:
    checks = {"preflight.rows", "runs.model_checks"}
    allowed = {"reward", "training.prompts", "data_prep", *checks, *FOR_ALL}
    modules = imported(ROOT / "recipe" / "rerule" / "minimal.py")
    assert [module for module in modules if not is_allowed(module, allowed)] == []


def test_what_all_may_use_and_replay_need_few_packages() -> None:
    def packages(files: list[Path]) -> set[str]:
        found = {module.split(".")[0] for file in files for module in imported(file, everything=True)}
        return found - set(sys.stdlib_module_names) - {"recipe"}

    assert packages([file for room in FOR_ALL for file in files_of(room)]) <= {"psutil"}
    replay = [file for file in files_of("replay") if file.stem != "__main__"]
    assert packages(replay) == {"torch", "numpy", "pydantic", "safetensors"}


def files_of(room: str) -> list[Path]:
    folder = ROOT / room if room in {"reward", "data_prep"} else ROOT / "recipe" / "rerule" / room
    return sorted([*folder.glob("**/*.py"), *folder.parent.glob(f"{folder.name}.py")])


def imported(file: Path, everything: bool = False) -> Iterator[str]:
    """Modules that a file imports, wherever in it: those of this project, or all."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            folders = file.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*folders, *([node.module] if node.module else [])])
            names = [f"{module}.{name.name}" for name in node.names]
        else:
            continue
        yield from (name for name in names if everything or room_of(name) is not None)


def room_of(module: str) -> str | None:
    """The room of a module of this project."""
    parts = module.split(".")
    if parts[:2] == ["recipe", "rerule"] and len(parts) > 2:
        return parts[2]
    return parts[0] if parts[0] in {"reward", "data_prep"} else None


def is_allowed(module: str, allowed: set[str]) -> bool:
    name = module.removeprefix("recipe.rerule.")
    return any(name == one or name.startswith(f"{one}.") for one in allowed)
