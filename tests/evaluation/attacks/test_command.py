"""`evaluate attack`: what a user can do wrong, attacks that measure, and what is printed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule import evaluate
from recipe.rerule.evaluation import attack_command as command
from recipe.rerule.evaluation.attacks import registry, runner
from recipe.rerule.evaluation.attacks.attack import Attack, Models, Row
from recipe.rerule.evaluation.engine.answers import locked
from recipe.rerule.evaluation.probes import read_training_rows
from tests.evaluation.attacks.conftest import put_probes
from tests.evaluation.conftest import write_probes
from tests.report.made_attacks import row


def put_what_is_wrong(world: Path, folder: Path) -> None:
    """Models, rows and folders with which the command cannot work."""
    for name in ("refusing", "control"):
        shutil.copytree(world / "models" / name, folder / name)
    template = folder / "control/chat_template.jinja"
    template.write_text(template.read_text().replace("<bos>", "<bos><bos>"))
    (folder / "refusing/chat_template.jinja").unlink()
    rows = [one for one in read_training_rows(world / "data/train.parquet") if one.section == "forget"]
    write_probes(folder / "forget.parquet", rows)
    put_probes(world, folder / "few.parquet", 1, 8)
    put_probes(world, folder / "three.parquet", 2, 1)
    for name in ("mine", "evaluation"):
        (folder / name).mkdir()
    (folder / "mine/mine.txt").write_text("mine")
    marker = {"format": "rerule/evaluation", "format_version": 2, "contents": ["meta.json"]}
    (folder / "evaluation/meta.json").write_text(json.dumps(marker))


REFUSED = {
    "--attacks quantize_4": (
        "there is no attack 'quantize_4'; the nearest name is quantise_4. Known are default, none, choice,"
    ),
    "--model plain={tmp}/refusing --attacks prefill": (
        "the tokenizer of {tmp}/refusing has no chat template: use an instruct model, or rows made with raw "
        "prompts"
    ),
    "--control {tmp}/control --attacks prefill": (
        "model control: its tokenizer or chat template makes other tokens of a question than that of "
        "original; only models that are asked the same tokens are compared"
    ),
    "--train {tmp}/missing.parquet": "missing.parquet",
    "--train {tmp}/forget.parquet --attacks relearn_retain": (
        "attack relearn_retain: there are no probes of section retain to make relearning rows of"
    ),
    "--probes {tmp}/few.parquet": (
        "facts that the forget probes ask for: 1; at least 2 are needed, and 40 are better: facts are the "
        "unit of all intervals and tests"
    ),
    "--probes {tmp}/three.parquet --attacks choice": (
        "attack choice: no fact to forget has 4 answers of its kind"
    ),
    "--out {tmp}/mine": "exists already",
    "--out {tmp}/mine --overwrite": "has no meta.json, so it is not replaced",
    "--out {tmp}/evaluation --overwrite": "this command replaces only rerule/attacks",
    "--out {tmp}/new --cache {tmp}/mine": "mine.txt is no finished attack",
    "--attacks uds": "attack uds needs a model that never knew the facts, --control FOLDER",
    "--model control=there": "--model control is given twice",
    "--template plane=true": "--template plane: no model's chat template has an argument of this name",
    "--refusal-phrases {tmp}/gone.txt": "gone.txt: cannot be read (No such file or directory)",
    "--seeds 0": "'0' is no whole number above 0",
}
"""Words, and what the one line of the error says."""


@pytest.mark.parametrize("given", REFUSED)
def test_what_is_refused_writes_nothing(
    attack: Callable[..., int], given: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_what_is_wrong(world, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with_control = "--control" not in given and "uds" not in given
    try:
        code: Any = attack(*given.format(tmp=tmp_path).split(), with_control=with_control)
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert sorted(tmp_path.rglob("*")) == before
    lines = capsys.readouterr().err.splitlines()
    (line,) = [one for one in lines if "error: " in one]
    assert REFUSED[given].format(tmp=tmp_path) in line


def test_attacks_that_lack_something(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without rows the command says what to leave out; what was not named is left out with a warning."""
    monkeypatch.setattr(command, "select", lambda name: None)
    probes = put_probes(world, tmp_path / "few.parquet", 2, 1)
    given = [*("attack", "--platform", "cpu", "--out", f"{tmp_path / 'out'}"), "--probes", f"{probes}"]
    given.append(f"--model=original={world / 'models/original'}")
    assert evaluate.main(given) == 2
    others = [one.name for one in registry.attacks().values() if one.default and "train" not in one.needs]
    assert capsys.readouterr().err == (
        "error: many_shot, refusal_direction, relearn_forget_half, relearn_retain: rows to train on or to "
        "show are missing; give --train FILE (train.parquet of the data), or leave these attacks out: "
        f"--attacks {' '.join(others[1:])}\n"
    )
    options = evaluate._parser(given).parse_args([*given, "--train", f"{world / 'data/train.parquet'}"])
    plans = {one.attack.name for one in command.checked(options).plans}
    assert {"choice", "linear_probe", "uds"}.isdisjoint(plans)
    assert "logit_lens" in plans
    warned = capsys.readouterr().err
    assert "attack choice: no fact to forget has 4 answers" in warned
    assert "attack linear_probe: 1 questions have too few different answers" in warned
    assert "attack uds needs a model that never knew the facts" in warned


def test_an_attack_that_measures(
    attack: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Any] = []

    def measure(models: Models, material: Any, options: Any) -> list[Row]:
        assert models.original is not None
        given.append((options["n"], models.attacked is models.original()))
        score = float(len(given) == 2)
        return [material.row("forget", one.probe, one.request.prompt, score) for one in material.asked]

    norm = Attack(
        name="norm", title="N", tells="It looks.", needs=frozenset({"original"}), quick={"n": 1},
        full={"n": 2}, has_before=False, measure=measure,
    )  # fmt: skip
    monkeypatch.setattr(registry, "attacks", lambda: {**command.attacks(), "norm": norm})
    assert attack("--attacks", "norm") == 0
    assert given == [(1, True), (1, False), (1, False)]
    numbers = json.loads((tmp_path / "out/attacks.json").read_text())["norm"]["refusing"]
    assert (numbers["before"], numbers["after"], numbers["excess"], numbers["interval"]) == (
        None,
        1,
        1,
        [1, 1],
    )
    assert not (tmp_path / "out/curves.jsonl").exists()


def test_a_folder_of_pieces_is_one_command_s(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with locked(kept, runner.check_kept):
        (kept / runner.PIECES).write_text("{}\n")
        runner.remove(kept)
    assert not kept.exists()
    kept.write_text("")
    with pytest.raises(ValueError, match="it is no folder"):
        runner.check_kept(kept)


def test_the_table_says_what_is_missing() -> None:
    numbers = row(0.25, 0.5, refusal=0.75, retain=None, facts=7)
    shown = command.table({"none": {"mine": numbers}}, ["mine"])
    assert shown.splitlines()[3].split() == ["none", "0.500", "0.250", *"–––––", "0.75", "–", "7"]
    assert "without a model that never knew" in " ".join(shown.split())


def test_help_lists_the_attacks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate.main(["attack", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for name, attack in registry.attacks().items():
        assert f"{'* ' if attack.default else ''}{name}: {attack.tells}" in told
    assert "* quantise_3" not in told
