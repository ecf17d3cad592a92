"""A wrong command line is one line and exit code 2."""

from __future__ import annotations

import argparse

import pytest

from recipe.rerule.process.arguments import ArgumentParser, positive


def parser() -> ArgumentParser:
    whole = ArgumentParser(prog="tool", epilog="examples:\n  tool go --n 3\n")
    go = whole.add_subparsers(required=True, metavar="COMMAND").add_parser("go")
    go.add_argument("--n", type=positive, required=True)
    return whole


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "the following arguments are required: COMMAND; see tool --help"),
        (["stop"], "argument COMMAND: invalid choice: 'stop' (choose from 'go'); see tool --help"),
        (["go"], "the following arguments are required: --n; see tool go --help"),
        (["go", "--n", "x\ny"], "argument --n: 'x\\ny' is no whole number above 0; see tool go --help"),
        (["go", "--n", "1", "a\nb"], "unrecognized arguments: a b; see tool --help"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_examples_keep_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--help"])
    assert ended.value.code == 0
    assert "examples:\n  tool go --n 3\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "nan", "1e3", "٣", "9" * 5000])
def test_what_is_no_whole_number_above_0(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        positive(text)


def test_a_whole_number() -> None:
    assert positive("12") == 12
