"""Wherever it is told to write, no command of ours removes or changes a file that it did not make."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.refused import playground

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
