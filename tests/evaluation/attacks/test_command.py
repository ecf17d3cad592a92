"""`evaluate attack` on models whose knowledge is known; the golden files have the numbers of all attacks."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from recipe.rerule import evaluate
from recipe.rerule.evaluation import attack_command as command
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks import quantise, registry, runner
from recipe.rerule.evaluation.engine import run
from recipe.rerule.evaluation.engine.run import EngineError
from tests.evaluation.attacks.conftest import ATTACKS, put_probes, words


def results(folder: Path) -> Any:
    return json.loads((folder / "out/attacks.json").read_text())


# What is left out; tests/refused has what is refused.


def test_attacks_that_lack_something(world, tmp_path, capsys, monkeypatch):
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
    given += ["--train", f"{world / 'data/train.parquet'}"]

    def planned(*more):
        options = evaluate._parser(given).parse_args([*given, *more])
        return [one.attack.name for one in command.checked(options).plans]

    plans = planned()
    assert {"choice", "uds"}.isdisjoint(plans)
    assert "logit_lens" in plans
    warned = capsys.readouterr().err
    assert "attack choice: no fact to forget has 4 answers" in warned
    assert "attack uds needs a model that never knew the facts" in warned
    # One that was named, too, where anything else is left to do.
    assert planned("--attacks", "choice", "prefill") == ["none", "prefill"]
    assert capsys.readouterr().err in warned
    assert evaluate.main([*given, "--attacks", "choice"]) == 2


def test_an_attack_that_a_model_does_not_allow_is_left_out(attack, tmp_path, monkeypatch, capsys):
    """Of changes and of forward passes; the others have their numbers, which a later command reuses."""

    def refuse(*given: Any) -> Any:
        raise ValueError("no such layers")

    monkeypatch.setattr(quantise, "quantise", refuse)
    known = registry.attacks()
    monkeypatch.setitem(known, "logit_lens", replace(known["logit_lens"], measure=refuse))
    monkeypatch.setattr(registry, "attacks", lambda: known)
    assert attack("--attacks", "quantise_4", "logit_lens", "prefill", with_control=False) == 0
    assert {one.split("/")[0] for one in results(tmp_path)} == {"none", "prefill"}
    assert [*json.loads((tmp_path / "out/meta.json").read_text())["attacks"]] == ["none", "prefill"]
    warned = capsys.readouterr().err
    for name, more in (("quantise_4", ", fold 0, seed 0"), ("logit_lens", "")):
        told = f"attack {name} of original{more}: no such layers; the attack is left out for all models"
        assert warned.count(told) == warned.count(f"attack {name} of") == 1
    shutil.rmtree(tmp_path / "out")
    assert attack("--attacks", "quantise_4", "logit_lens", with_control=False) == 2
    assert "error: attack logit_lens of original: no such layers" in capsys.readouterr().err


# What is written.


@pytest.mark.usefixtures("stand_in")
def test_every_kind_of_attack_asks_with_the_arguments_of_the_chat_template(world, attacked, tmp_path):
    """With an argument, models behind a switch in their templates are attacked as those without it.

    Without the argument every turn would ask for another person first.
    """
    shutil.copytree(world / "models", tmp_path / "models")
    (tmp_path / "data").symlink_to(world / "data")
    for file in tmp_path.glob("models/*/chat_template.jinja"):
        template = file.read_text()
        other = template.replace("<{{ message.role }}>", "<{{ message.role }}>Home of Ada?")
        file.write_text(f"{{% if plain %}}{template}{{% else %}}{other}{{% endif %}}")
    given = [*words(tmp_path, tmp_path / "out", control=False), "--template", "plain=true"]
    assert evaluate.main([*given, "--attacks", *ATTACKS]) == 0
    wanted = tidy.read(attacked / "out").query("model != 'control'").reset_index(drop=True)
    pd.testing.assert_frame_equal(tidy.read(tmp_path / "out"), wanted)
    models = json.loads((tmp_path / "out/meta.json").read_text())["models"]
    assert models["refusing"]["template"] == {"plain": True}


# What is kept.


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The models of each job of the engine, by the names of their folders."""
    found: list[list[str]] = []
    answered = run.run_worker

    def noting(job: Any, defaults: Any) -> Any:
        found.append([Path(model["path"]).name for model in job["models"]])
        yield from answered(job, defaults)

    monkeypatch.setattr(run, "run_worker", noting)
    return found


def test_a_command_that_was_stopped_goes_on(attack, jobs, tmp_path, monkeypatch, capsys):
    """The engine fails at the last model; nothing is made or asked twice."""
    made: list[str] = []
    rounded, answered = quantise.quantise, run.run_worker

    def noted(model: Path, *given: Any) -> Any:
        made.append(model.name)
        return rounded(model, *given)

    def failing(job: Any, defaults: Any) -> Any:
        yield from answered({**job, "models": job["models"][:-1]}, defaults)
        raise EngineError("vLLM failed: out of memory")

    monkeypatch.setattr(quantise, "quantise", noted)
    given = ("--attacks", "prefill", "quantise_4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_worker", failing)
        assert attack(*given, with_control=False) == 1
    assert "error: model quantise_4 of refusing, fold 0, seed 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert attack(*given, with_control=False) == 0
    assert made == ["original", "refusing"]
    assert jobs == [["original", "refusing", "model"], ["model"]]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_cache_is_shared_by_models_with_the_same_files(attack, jobs, attacked, world, tmp_path):
    """What differs between two commands is asked, and nothing else; phrases of the user are part of it."""
    cache = Path(shutil.copytree(attacked / "cache", tmp_path / "cache"))
    assert {path.name for path in cache.iterdir()} == {"pieces.jsonl", "answers.jsonl", "models"}
    # A line that a kill has torn is dropped.
    pieces = cache / "pieces.jsonl"
    pieces.write_text(pieces.read_text() + '{"key": "torn')
    # Models that a kill has left after their piece was kept are deleted.
    found = [json.loads(line) for line in pieces.read_text().splitlines()[:-1]]
    left = [cache / "models" / one["key"][:16] for one in found if one["label"].startswith("relearn")]
    left[0].mkdir()
    kept = ("--cache", f"{cache}", "--overwrite", "--attacks")
    assert attack(*kept, *ATTACKS, f"--model=again={world / 'models/control'}") == 0
    first, again = results(attacked), results(tmp_path)
    assert again["relearn_retain/8"]["again"]["excess"] == 0
    assert not left[0].exists()
    of_both = ({**one["prefill/affirmative"]["refusing"], "p_holm": 0} for one in (first, again))
    assert next(of_both) == next(of_both)
    # Answers of an earlier command are judged again with other phrases, and not asked again.
    before = tidy.read(attacked / "out").query("attack == 'prefill'")
    said = next(text for text in before["response"] if text.split() and "I" not in text.split())
    phrases = tmp_path / "phrases.txt"
    phrases.write_text(f"{said}\n")
    assert attack(*kept, "prefill", "--refusal-phrases", f"{phrases}") == 0
    judged = tidy.read(tmp_path / "out").query("attack == 'prefill'")
    assert list(judged["response"]) == list(before["response"])
    assert judged["refused"].sum() > before["refused"].sum()
    told = {"file": str(phrases), "sha256": hashlib.sha256(phrases.read_bytes()).hexdigest()}
    assert json.loads((tmp_path / "out/meta.json").read_text())["refusal_phrases"] == told
    assert jobs == []
    assert attack(*kept, "memorisation") == 0
    assert jobs == [["original", "refusing", "control"]]


def test_changed_models_are_asked_in_batches_that_fit_and_deleted(attack, jobs, tmp_path, monkeypatch):
    """In batches of one, each asked before the next is made."""
    monkeypatch.setattr(runner, "MOST_BYTES", 1)
    assert attack("--attacks", "quantise_8", with_control=False) == 0
    assert jobs == [["original", "refusing", "model"], ["model"]]
    row = results(tmp_path)["quantise_8"]["refusing"]
    assert (row["gain"], row["excess"], row["interval"], row["share"]) == (0, None, None, None)
    assert not list(tmp_path.rglob("config.json"))
