"""`benchmarks.methods`: the commands of its trainings, the rate that it takes, and its table."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import methods, what_works
from recipe.rerule.unlearning import presets
from tests.benchmarks.test_robust import Commands
from tests.unlearning import made


def shares(forget: float, retain: float) -> dict[str, float]:
    return {"forget recall": forget, "forget refused": 0.5, "retain recall": retain, "retain refused": 0.25}


def test_every_loss_has_a_method() -> None:
    """Of the presets those without a retain term are left out where there is a form with one."""
    losses = {(one.forget, one.alternate) for one in map(presets.load, presets.names())}
    assert losses == {(one.forget, one.alternate) for one in map(presets.load, methods.METHODS)} | {
        ("none", "none")
    }


@pytest.mark.parametrize("method", ["altpo", "whp"])
def test_a_method_is_trained_at_each_rate(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = Commands(made.put_model(tmp_path / "base"))
    monkeypatch.setattr(what_works, "command", commands)
    validation = {f"{rate:g}": shares(0.1, 0.9) for rate in methods.RATES}
    monkeypatch.setattr(what_works, "held_out", lambda responses: validation)
    asked: list[Any] = []
    monkeypatch.setattr(what_works.Study, "evaluation", lambda study, *words: asked.append(words))
    monkeypatch.setattr(methods.robust, "measured", lambda *words: {"measured": words[3:]})
    study = what_works.Study(commands.model, tmp_path / "out", "cpu", float("inf"))
    line = methods.made(study, method)
    assert (line["rate"], line["measured"]) == (1e-5, (study.out / f"{method}-1e-05/model", methods.ATTACKS))
    _, *further, one, two, three = commands.given.values()  # stage 1 comes first, for the own answers
    assert [run["optim.lr"] for run in (one, two, three)] == ["1e-05", "3e-05", "0.0001"]
    if method == "altpo":
        assert (one["data.alternate"], further) == (str(study.data / "mismatch.parquet"), [])
    else:
        assert one["reinforced.path"] == f"{further[0]['trainer.default_local_dir']}/model"
    assert [words[0] for words in asked] == [f"tune-{method}"]
    assert not (study.out / f"{method}-1e-05").exists()


def test_the_table() -> None:
    of = {"base": shares(0.7, 0.94), "last": shares(0.0, 0.5)}
    attacks = {attack: {"original": 0.9, "last": 0.4} for attack in methods.SHOWN}
    lines = [
        {"method": method, "rate": 3e-5, "held_out": of, "attacks": attacks} for method in ("rmu", "pdu")
    ]
    assert methods.table(lines).splitlines()[2:] == [
        "| base model |  | 0.70 | 0.50 | 0.94 | 0.25 | 0.90 | 0.90 |",
        "| `rmu` | 3e-05 | 0.00 | 0.50 | 0.50 | 0.25 | 0.40 | 0.40 |",
        "| `pdu` | 3e-05 | 0.00 | 0.50 | 0.50 | 0.25 | 0.40 | 0.40 |",
    ]
