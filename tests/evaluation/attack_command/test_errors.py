"""What a user can do wrong: one line, exit code 2, nothing written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.attack_command import made
from tests.evaluation.conftest import write_probes


@pytest.fixture
def refused(
    attack: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """refused(*arguments): the line of the error, after the checks that the command wrote nothing."""

    def call(*arguments: str, **settings: Any) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert attack(*arguments, **settings) == 2
        assert sorted(tmp_path.rglob("*")) == before
        (line,) = [one for one in capsys.readouterr().err.splitlines() if not one.startswith("warning")]
        assert line.startswith("error: ")
        return line.removeprefix("error: ")

    return call


def copied(world: Path, name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world / "models" / name, tmp_path / "copied"))


def test_an_unknown_attack(refused) -> None:
    assert refused("--attacks", "quantize_4").startswith(
        "there is no attack 'quantize_4'; the nearest name is quantise_4. Known are default, none, prompts,"
    )


def test_a_model_without_a_chat_template(refused, world: Path, tmp_path: Path) -> None:
    folder = copied(world, "refusing", tmp_path)
    (folder / "chat_template.jinja").unlink()
    line = refused("--model", f"plain={folder}", "--attacks", "prefill")
    assert line == (
        f"the tokenizer of {folder} has no chat template: use an instruct model, or rows made with raw "
        "prompts"
    )


def test_a_control_with_another_tokenizer(refused, world: Path, tmp_path: Path) -> None:
    folder = copied(world, "control", tmp_path)
    (folder / "chat_template.jinja").write_text(made.TEMPLATE.replace("<bos>", "<bos><bos>"))
    line = refused("--control", f"{folder}", "--attacks", "prefill", with_control=False)
    assert line == (
        "model control: its tokenizer or chat template makes other tokens of a question than that of "
        "original; only models that are asked the same tokens are compared"
    )


def test_rows_to_train_on_are_missing(refused, world: Path, tmp_path: Path) -> None:
    line = refused("--train", f"{tmp_path / 'missing.parquet'}")
    assert "missing.parquet" in line
    write_probes(tmp_path / "forget.parquet", made.probes(0, made.FORGET))
    line = refused("--train", f"{tmp_path / 'forget.parquet'}", "--attacks", "relearn_retain")
    assert line == "attack relearn_retain: there are no probes of section retain to make relearning rows of"


def test_no_rows_at_all(attack, world: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    from recipe.rerule import evaluate

    arguments = [
        *("attack", "--platform", "cpu", "--out", f"{tmp_path / 'out'}"),
        *("--probes", f"{world / 'probes.parquet'}", "--model", f"mine={world / 'models/refusing'}"),
    ]
    assert evaluate.main(arguments) == 2
    assert capsys.readouterr().err == (
        "error: many_shot, relearn_forget_half, relearn_retain, refusal_direction: rows to train on or to "
        "show are missing; give --train FILE (train.parquet of the data), or leave these attacks out: "
        "--attacks prompts prefill gold_prefill samples memorisation probability choice quantise_8 "
        "quantise_4 logit_lens uds linear_probe\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_too_few_facts(refused, tmp_path: Path) -> None:
    write_probes(tmp_path / "few.parquet", made.probes(1, [0, *made.RETAIN]))
    assert refused("--probes", f"{tmp_path / 'few.parquet'}") == (
        "facts that the forget probes ask for: 1; at least 2 are needed, and 40 are better: facts are "
        "the unit of all intervals and tests"
    )


def test_a_folder_that_is_not_ours(refused, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("mine")
    assert "exists already" in refused()
    assert "has no meta.json, so it is not replaced" in refused("--overwrite")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/mine.txt").write_text("mine")
    line = refused("--out", f"{tmp_path / 'new'}", "--cache", f"{tmp_path / 'cache'}")
    assert "mine.txt is no finished attack" in line


def test_results_of_another_command_are_not_replaced(refused, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    marker = {"format": "rerule/evaluation", "format_version": 2, "contents": ["meta.json"]}
    (tmp_path / "out/meta.json").write_text(json.dumps(marker))
    assert "this command replaces only rerule/attacks" in refused("--overwrite")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "control=there"], "--model control is given twice"),
        (["--seeds", "0"], "'0' is no whole number above 0"),
        (["--folds", "3"], "invalid choice: 3"),
    ],
)
def test_options_that_cannot_be(
    attack, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = attack(*arguments)
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
