"""Every line of the table `cases.txt`, what documents say of it, and the files of users that stay."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.training import entry, memory
from tests.refused import playground
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


# Wherever it is told to write, no command of ours removes or changes a file that it did not make.

PLACES = (
    "new", "data", "evaluation", "report.html", "report", ".", "own", "own/mine.html", "own/mine", "data/sub",
    "evaluation/sub", "link", "link/mine.html", "link_to_data", "dangling", "mine.csv", "model",
    "own/../data", "around.txt", "report.md", "evaluation/results.json", "own/new",
)  # fmt: skip
PLANTED = (
    "data/notes.txt", "data/sub/notes.txt", "data/mine.csv", "evaluation/notes.txt",
    "evaluation/logs/a/b.json", "report/notes.png", "report/notes.csv", "new.partial/answers.jsonl",
    "evaluation.partial/answers.jsonl", "evaluation.partial/base.jsonl", ".data.draft-0000abcd/draft/a.txt",
    ".evaluation.draft-x/former/a.txt", ".report.draft-x/owner.json",
    "evaluation-naturalness/naturalness.json", "new.md", "new/report.md", "new/report/tokens.csv",
    "data.txt", "cache/mine.jsonl",
)  # fmt: skip
WORKING = {
    "rows": ("data_prep", "custom --source mine.csv --out {} --overwrite"),
    "evaluation": ("evaluate", "model --model base=model --probes data/probes.parquet --out {} --overwrite"),
    "report": ("report", "--results evaluation --out {} --overwrite"),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        playground.stub_slow_parts(patch)
        yield playground.build(tmp_path_factory.mktemp("playground") / "root")


@pytest.mark.parametrize("around", [(), PLANTED], ids=["own files alone", "files in every output too"])
@pytest.mark.parametrize("name", WORKING)
def test_wherever_it_writes_no_file_of_a_users_is_touched(
    name: str, around: tuple[str, ...], template: Path, tmp_path: Path
) -> None:
    command, arguments = WORKING[name]
    for number, place in enumerate(PLACES):
        root = playground.copy(template, tmp_path / str(number))
        playground.plant(root, dict.fromkeys(around, "mine"))
        names = [*playground.OWN, "mine.csv", "model/config.json", *around]
        mine = playground.snapshot(root, names)
        playground.call(command, root, arguments.format(place))
        assert playground.snapshot(root, names) == mine, place
        assert (root / "link").is_symlink()
        assert (root / "link_to_data").is_symlink()
