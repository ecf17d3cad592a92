"""Every line of the table `cases.txt`, and what documents say of it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.training import entry, memory
from tests.refused.configurations import STAGE2, build, findings
from tests.refused.groups import GROUPS, Place
from tests.refused.table import Case, read

DOCS = Path(__file__).resolve().parents[2] / "docs"
CASES = list(read())
Shared = Callable[[Callable[[Path], Any]], Path]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """shared(build): a folder that `build` has made, once for all tests."""
    made: dict[object, Path] = {}

    def get(build: Callable[[Path], Any]) -> Path:
        if build.__code__ not in made:
            made[build.__code__] = tmp_path_factory.mktemp("shared") / "folder"
            made[build.__code__].mkdir()
            build(made[build.__code__])
        return made[build.__code__]

    return get


@pytest.fixture
def place(shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Place:
    monkeypatch.setattr(memory, "free_bytes", lambda: (64e9, 64e9))  # a busy machine would get a warning
    return Place(tmp_path, shared, monkeypatch, capsys)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case(case: Case, place: Place) -> None:
    ended = GROUPS[case.group](case, place)
    if case.outcome == "refused":
        assert len(ended.errors) == ended.commands
        for line in ended.errors:
            assert case.is_said(line)
            assert "\n" not in line
            assert "Errno" not in line
    else:
        assert ended.errors == []
        assert len(ended.warnings) == (case.outcome == "warned"), ended.warnings
        assert case.is_said("".join(ended.warnings) + ended.said)


@pytest.mark.parametrize(
    "words", ["--config-name rerule_trainer", "--config-name=nothing", "--config-dir mine --config-name rwku"]
)
def test_other_names_of_configurations_are_left_to_hydra(words: str) -> None:
    entry.check_options(words.split(), entry.STAGE2)


def test_the_line_in_the_documentation_is_what_is_printed(shared: Shared) -> None:
    (line,), _ = findings(STAGE2, shared(build), {"actor_rollout_ref.actor.optim.lr": math.nan})
    assert f"\n    error: {line}\n" in (DOCS / "configuration.md").read_text("utf-8")
