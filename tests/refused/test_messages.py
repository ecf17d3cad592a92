"""Each case of message_cases.py ends in exit code 2 and one line that says what is wrong, without the key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_prep.__main__ import main as prepare
from recipe.rerule import evaluate, report
from recipe.rerule.replay.__main__ import main as inspect
from tests.data_prep.generate.server import KEY, MODEL, ChatServer
from tests.data_prep.raw_files import prep, put_custom
from tests.refused import message_cases as cases
from tests.refused.message_cases import AddressCase, EndpointCase, FileCase


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows whose one target needs refusals, which is one request."""
    return put_custom(tmp_path_factory.mktemp("mine"))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


def exit_code(*arguments: str | Path) -> int:
    try:
        return prep(*arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def written(source: Path, out: Path, *options: str) -> int:
    """`data_prep custom` whose refusals an endpoint writes."""
    own = ("--cache", str(out.with_name("cache")), "--attempts", "2", *options)
    return exit_code("custom", "--source", source, "--out", out, *own)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of stderr, which must be an error that shows neither key nor draft.

    A machine that is so busy that a run takes seconds shows lines of progress too.
    """
    lines = capsys.readouterr().err.splitlines(keepends=True)
    told = "".join(line for line in lines if not line.startswith("generate: "))
    assert told.count("\n") == 1, told
    assert told.startswith("error: ")
    assert KEY[:12] not in told
    assert "Errno" not in told
    assert "draft" not in told
    return told


@pytest.mark.parametrize("case", cases.ENDPOINT_CASES, ids=lambda case: case.name)
def test_an_endpoint_that_fails_is_told_with_its_reason(
    case: EndpointCase, server: ChatServer, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = lambda number, call: case.behaviour
    given = ("--base-url", server.url, "--model", MODEL, "--timeout", "20", *case.options)
    assert written(mine, tmp_path / "out", *given) == 2
    assert case.says in one_line(capsys)
    assert not (tmp_path / "out").exists()
    assert 1 <= len(server.calls) <= 50


@pytest.mark.parametrize("case", cases.ADDRESS_CASES, ids=lambda case: case.name)
def test_wrong_options_of_an_endpoint_are_told(
    case: AddressCase, server: ChatServer, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tuple(option.replace("{url}", server.url.removeprefix("http")) for option in case.options)
    model = () if case.name == "no model" else ("--model", MODEL)
    assert written(mine, tmp_path / "out", "--base-url", server.url, *model, *given) == 2
    assert case.says in one_line(capsys)
    assert server.calls == []


COMMANDS = {"evaluate": evaluate.main, "report": report.main, "inspect": inspect, "data_prep": prepare}


@pytest.mark.parametrize("case", cases.FILE_CASES, ids=lambda case: case.name)
def test_a_file_that_does_not_belong_there_is_told(
    case: FileCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "input.json", tmp_path / "out"
    if case.content is not None:
        file.write_text(case.content if isinstance(case.content, str) else json.dumps(case.content))
    command, *arguments = (argument.format(file=file, out=out) for argument in case.arguments)
    try:
        code = COMMANDS[command](arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    told = one_line(capsys)
    assert code == 2
    assert case.says in told
    assert not out.exists()


def test_what_is_repeated_or_copied_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same numbers over the same probes, then over probes that nothing says to be the same."""
    given = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text('{"base": {"forget/recall": 0.5}}')
        given += ["--results", str(tmp_path / name)]
    assert report.main([*given, "--out", str(tmp_path / "a")]) == 0
    told = capsys.readouterr().err
    assert told.startswith(f"warning: {tmp_path / 'one'} and {tmp_path / 'two'} have the same results")
    assert told.count("\n") == 1
    for name in ("one", "two"):
        (tmp_path / name / "meta.json").write_text('{"probes": {"sha256": "ab"}}')
    assert report.main([*given, "--out", str(tmp_path / "b")]) == 0
    told = capsys.readouterr().err
    same = f"{tmp_path / 'two'} has the same results as {tmp_path / 'one'}"
    assert told == f"warning: {same}; it adds no model to the report\n"
