"""Whatever its arguments, no command of ours removes or changes a file that it did not make."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.refused import playground


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        playground.stub_slow_parts(patch)
        yield playground.build(tmp_path_factory.mktemp("playground") / "root")


PLACES = (
    "new", "data", "evaluation", "report.html", "report", ".", "own", "own/mine.html", "own/mine", "data/sub",
    "evaluation/sub", "link", "link/mine.html", "link_to_data", "dangling", "mine.csv", "model",
    "own/../data", "around.txt", "report.md", "evaluation/results.json", "own/new",
)  # fmt: skip
PLANTED = (
    "data/notes.txt", "data/sub/notes.txt", "data/mine.csv", "evaluation/notes.txt",
    "evaluation/logs/a/b.json", "report/notes.png", "report/notes.csv", "new.partial/base.jsonl",
    "evaluation.partial/base.jsonl", "evaluation.partial/base.jsonl.tmp", ".data.draft-0000abcd/draft/a.txt",
    ".evaluation.draft-x/former/a.txt", ".report.draft-x/owner.json",
    "evaluation-naturalness/naturalness.json", "new.md", "new/report.md", "new/report/tokens.csv",
    "data.txt", "cache/mine.jsonl",
)  # fmt: skip
TEXTS = (
    "", "mine", playground.ROWS, "{}", '{"format_version": 1, "model": "m"}\n',
    '{"format": "rerule/draft", "format_version": 1, "target": "report", "host": "x"}',
)  # fmt: skip
places, options = st.sampled_from(PLACES), st.sampled_from(["", "--overwrite"])
endpoint = st.sampled_from(
    ["", "--dry-run", "--base-url http://localhost:9/v1 --model m --attempts 1 --cache cache"]
)


def lines(
    command: str, pattern: str, **choices: st.SearchStrategy[str]
) -> st.SearchStrategy[tuple[str, str]]:
    """Command lines of a command, with a choice in every place of the pattern."""
    return st.fixed_dictionaries(choices).map(lambda chosen: (command, pattern.format(**chosen)))


sources = st.sampled_from(
    ["mine.csv", "data/mine.csv", "link_to_data/mine.csv", "own", "data", "gone.csv", "."]
)
benchmarks = st.sampled_from(
    ["custom", "custom --probes data/mine.csv", "tofu", "rwku", "muse-books", "nothing"]
)
results = st.sampled_from(["evaluation", "evaluation/results.json", "own", "data", "gone"])
COMMAND_LINES = st.one_of(
    lines(
        "data_prep", "{name} --source {source} --out {out} {option} {more}",
        name=benchmarks, source=sources, out=places, option=options, more=endpoint,
    ),
    lines(
        "evaluate", "model --model {model} --probes {probes} --out {out} {option} --platform cpu",
        model=st.sampled_from(["base=model", "base=own", "model", "base=gone", "base=own@all"]),
        probes=st.sampled_from(["data/probes.parquet", "link_to_data/probes.parquet", "own/train.parquet"]),
        out=places, option=options,
    ),
    lines(
        "evaluate",
        "judge --results {results} {out} {option} --base-url http://localhost:9/v1 --judge-model m "
        "--attempts 1 --cache {cache} --dry-run",
        results=results, out=st.one_of(st.just(""), places.map(lambda place: f"--out {place}")),
        option=options, cache=places,
    ),
    lines(
        "evaluate", "score --benchmark {name} --log {log}",
        name=st.sampled_from(["world", "tofu"]),
        log=st.sampled_from(["evaluation/responses.parquet", "around.txt"]),
    ),
    lines(
        "report", "--results {results} --out {out} {option} {more}",
        results=results, out=places, option=options,
        more=st.sampled_from(["", "--run a=own", "--data data", "--naturalness own", "--title"]),
    ),
)  # fmt: skip


def check_untouched(root: Path, planted: dict[str, str], command: str, arguments: str) -> None:
    """Run the command in a folder with these files of the user's, which must be as they were afterwards."""
    playground.plant(root, planted)
    names = [*playground.OWN, "mine.csv", "model/config.json", *planted]
    mine = playground.snapshot(root, names)
    playground.call(command, root, arguments)
    assert playground.snapshot(root, names) == mine, f"{command} {arguments}"
    assert (root / "link").is_symlink()
    assert (root / "link_to_data").is_symlink()


WORKING = {
    "rows": ("data_prep", "custom --source mine.csv --out {} --overwrite"),
    "evaluation": ("evaluate", "model --model base=model --probes data/probes.parquet --out {} --overwrite"),
    "report": ("report", "--results evaluation --out {} --overwrite"),
}


@pytest.mark.parametrize("around", [(), PLANTED], ids=["own files alone", "files in every output too"])
@pytest.mark.parametrize("name", WORKING)
def test_wherever_it_writes_no_file_of_a_users_is_touched(
    name: str, around: tuple[str, ...], template: Path, tmp_path: Path
) -> None:
    command, arguments = WORKING[name]
    for number, place in enumerate(PLACES):
        root = playground.copy(template, tmp_path / str(number))
        check_untouched(root, dict.fromkeys(around, "mine"), command, arguments.format(place))


plantings = st.dictionaries(st.sampled_from(PLANTED), st.sampled_from(TEXTS), max_size=3)


@given(line=COMMAND_LINES, planted=plantings)
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_the_arguments_no_file_of_a_users_is_touched(
    template: Path, line: tuple[str, str], planted: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = playground.copy(template, Path(folder) / "root")
        check_untouched(root, planted, *line)
