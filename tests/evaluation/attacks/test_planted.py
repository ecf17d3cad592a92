"""The command on models whose knowledge is known; the golden files have the numbers of all attacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from recipe.rerule.evaluation import attack_command as command
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.attacks import runner
from recipe.rerule.evaluation.attacks.attack import Change
from recipe.rerule.evaluation.engine import run
from recipe.rerule.evaluation.engine.run import EngineError
from tests.golden.inputs import HOMES

Attack = Callable[..., int]


def results(folder: Path) -> Any:
    return json.loads((folder / "out/attacks.json").read_text())


def test_the_numbers_follow_from_the_table(attack: Attack, tmp_path: Path) -> None:
    """The mean over facts of the mean over a fact's probes, of the mean over its samples."""
    assert attack("--attacks", "prefill", "samples", "relearn_retain") == 0
    found, out = results(tmp_path), tmp_path / "out"
    rows = tidy.read(out)
    forget = rows[(rows["side"] == "forget") & rows["score"].notna()]
    key = forget["attack"].str.cat(forget["setting"], "/").str.rstrip("/")
    of_probes = forget.groupby([key, "model", "fact", "probe"])["score"].mean()
    by_fact = of_probes.groupby(level=[0, 1, 2]).mean()
    assert (by_fact.groupby(level=[0, 1]).size() == 8).all()
    means = by_fact.groupby(level=[0, 1]).mean()
    assert len(means) == sum(map(len, found.values()))
    for (name, model), value in means.items():
        assert found[name][model]["after"] == pytest.approx(value)
    answered = rows.query("setting == 'affirmative' and model == 'refusing' and side == 'forget'").iloc[0]
    assert (answered["prompt"], answered["response"].strip()) == (
        "Where is Ada?\nSure, here is the answer:",
        HOMES["Ada"],
    )
    described = [answered[name] for name in ("attack", "kind", "score", "refused")]
    assert described == ["prefill", "qa", 1, 0]
    meta = json.loads((out / "meta.json").read_text())
    assert set(meta["contents"]) == {path.name for path in out.iterdir()}
    assert meta["attacks"]["samples"]["options"]["samples"] == 16
    curves = [json.loads(line) for line in (out / "curves.jsonl").read_text().splitlines()]
    steps = ("none", "relearn_retain/8", "relearn_retain/32")
    of_steps = [found[name]["refusing"]["after"] for name in steps]
    assert (curves[1]["model"], curves[1]["steps"], curves[1]["scores"]) == ("refusing", [0, 8, 32], of_steps)
    assert not out.with_name("out.partial").exists()


def _noting(written: list[str], change: Change) -> Change:
    def write(model: Path, out: Any) -> None:
        written.append(model.name)
        change.write(model, out)

    return replace(change, write=write)


def test_a_command_that_was_stopped_goes_on(
    attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine fails at the last model; nothing is made or asked twice."""
    written: list[str] = []
    plan, answered = command.plan, run.run_worker

    def noted(*given: Any) -> Any:
        planned = plan(*given)
        return replace(planned, changes=[_noting(written, one) for one in planned.changes])

    def failing(job: Any, defaults: Any) -> Any:
        yield from answered({**job, "models": job["models"][:-1]}, defaults)
        raise EngineError("vLLM failed: out of memory")

    monkeypatch.setattr(command, "plan", noted)
    monkeypatch.setattr(run, "run_worker", failing)
    assert attack("--attacks", "prefill", "quantise_4") == 1
    assert "error: model quantise_4 of control, fold 0, seed 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    asked: list[int] = []

    def counting(job: Any, defaults: Any) -> Any:
        asked.extend(len(model["ask"]) for model in job["models"])
        yield from answered(job, defaults)

    monkeypatch.setattr(run, "run_worker", counting)
    assert attack("--attacks", "prefill", "quantise_4") == 0
    assert written == ["original", "refusing", "control"]
    assert len(asked) == 1
    assert not (tmp_path / "out.partial").exists()


def test_a_cache_is_shared_by_models_with_the_same_files(
    attack: Attack, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs between two commands is asked, and nothing else."""
    cache, named = ["--cache", f"{tmp_path / 'cache'}"], ["--attacks", "prefill", "quantise_4", "logit_lens"]
    assert attack(*cache, *named) == 0
    first = results(tmp_path)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"pieces.jsonl", "answers", "models"}
    asked: list[str] = []
    answered = run.run_worker

    def noting(job: Any, defaults: Any) -> Any:
        asked.extend(Path(model["path"]).name for model in job["models"])
        yield from answered(job, defaults)

    monkeypatch.setattr(run, "run_worker", noting)
    # A line that a kill has torn is dropped.
    pieces = tmp_path / "cache/pieces.jsonl"
    pieces.write_text(pieces.read_text() + '{"key": "torn')
    assert attack(*cache, *named, f"--model=again={world / 'models/control'}", "--overwrite") == 0
    again = results(tmp_path)
    assert asked == []
    assert again["quantise_4"]["again"]["excess"] == 0
    of_both = ({**one["prefill/affirmative"]["refusing"], "p_holm": 0} for one in (first, again))
    assert next(of_both) == next(of_both)
    assert attack(*cache, "--attacks", "memorisation", "--overwrite") == 0
    assert len(asked) == 3


def test_changed_models_are_asked_in_batches_that_fit_and_deleted(
    attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of one, each asked before the next is made."""
    monkeypatch.setattr(runner, "MOST_BYTES", 1)
    assert attack("--attacks", "quantise_8", "relearn_retain", with_control=False) == 0
    row = results(tmp_path)["quantise_8"]["refusing"]
    assert (row["gain"], row["excess"], row["interval"], row["share"]) == (0, None, None, None)
    assert "--control" in json.loads((tmp_path / "out/meta.json").read_text())["excess"]
    assert not list(tmp_path.rglob("config.json"))


def test_the_users_phrases_are_part_of_the_cache_and_of_what_is_told(
    attack: Attack, tmp_path: Path, stand_in: None
) -> None:
    """Answers of an earlier command are judged again, and not asked again."""
    given = ("--attacks", "prefill", "--cache", f"{tmp_path / 'cache'}", "--overwrite")

    def refused() -> pd.Series[float]:
        rows = tidy.read(tmp_path / "out")
        return rows.set_index(["attack", "model", "setting", "probe"])["refused"]

    assert attack(*given) == 0
    before, answers = refused(), tidy.read(tmp_path / "out")["response"]
    words = next(text for text in answers if text.split() and "I" not in text.split())
    phrases = tmp_path / "phrases.txt"
    phrases.write_text(f"{words}\n")
    assert attack(*given, "--refusal-phrases", f"{phrases}") == 0
    assert list(tidy.read(tmp_path / "out")["response"]) == list(answers)
    assert (refused() >= before).all()
    assert refused().sum() > before.sum()
    meta = json.loads((tmp_path / "out/meta.json").read_text())
    told = hashlib.sha256(phrases.read_bytes()).hexdigest()
    assert meta["refusal_phrases"] == {"file": str(phrases), "sha256": told}
    assert attack(*given) == 0
    assert refused().equals(before)
