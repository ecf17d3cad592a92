"""The command on models whose knowledge is known: one refuses by its first token, one never knew."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recipe.rerule.evaluation.attack_command import working
from recipe.rerule.evaluation.attack_command.kept import MODELS, READINGS
from recipe.rerule.evaluation.engine import run
from recipe.rerule.evaluation.engine.run import EngineError
from tests.evaluation.attack_command import made

ATTACKS = (
    "prefill",
    "gold_prefill",
    "samples",
    "memorisation",
    "quantise_8",
    "relearn_retain",
    "relearn_wrong",
)


@pytest.fixture
def attacked(attack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """attacks.json of ATTACKS, and what was printed."""
    assert attack("--attacks", *ATTACKS, "--json") == 0
    return json.loads((tmp_path / "out/attacks.json").read_text()), capsys.readouterr().out


def test_what_comes_back_and_what_does_not(attacked: tuple[Any, str], tmp_path: Path) -> None:
    results, printed = attacked
    assert list(results)[:4] == ["none", "prefill/affirmative", "prefill/statement", "gold_prefill/1"]
    before = results["none"]
    assert (before["original"]["after"], before["refusing"]["after"], before["control"]["after"]) == (1, 0, 0)
    assert (before["refusing"]["refusal"], before["original"]["refusal"]) == (1, 0)
    assert (before["original"]["retain"], before["control"]["retain"]) == (1, 1)
    for attack in ("prefill/affirmative", "gold_prefill/1"):
        row = results[attack]["refusing"]
        assert (row["before"], row["after"], row["gain"], row["excess"]) == (0, 1, 1, 1)
        assert (row["interval"], row["share"], row["refusal"], row["retain"]) == ([1, 1], 1, 0, 1)
    # Two tokens in an answer; the first of them is hidden by the refusal's.
    assert results["memorisation/extraction_strength"]["refusing"]["after"] == 0.5
    assert results["memorisation/exact_memorisation"]["original"]["after"] == 1
    assert results["memorisation/extraction_strength"]["refusing"]["before"] is None
    # Rounding to 8 bits changes no answer.
    assert results["quantise_8"]["refusing"]["after"] == 0
    assert results["relearn_retain/32"]["refusing"]["after"] > 0.5
    assert results["samples/leak_16"]["original"]["after"] > 0.9
    _check_the_never_knew_model(results)
    _check_the_files(results, printed, tmp_path / "out")


def _check_the_never_knew_model(results: Any) -> None:
    """Nothing comes back from it, by relearning on wrong answers either, and its own excess is 0."""
    for attack, rows in results.items():
        row = rows["control"]
        assert (row["excess"], row["interval"], row["p_value"]) == (0, [0, 0], 1), attack
        assert row["after"] <= 0.1, attack
        assert row["facts"] == 8, attack
    assert results["relearn_wrong/32"]["control"]["after"] == 0


def _check_the_files(results: Any, printed: str, out: Path) -> None:
    brief = json.loads(printed.splitlines()[-1])
    names = ["before", "after", "excess", "interval", "refusal", "retain", "facts"]
    assert brief == {
        attack: {model: {name: row[name] for name in names} for model, row in rows.items()}
        for attack, rows in results.items()
    }
    meta = json.loads((out / "meta.json").read_text())
    assert set(meta["contents"]) == {path.name for path in out.iterdir()}
    assert meta["attacks"]["samples"]["options"]["samples"] == 16
    assert meta["asked"] == {"forget": 16, "retain": 16}
    curves = [json.loads(line) for line in (out / "curves.jsonl").read_text().splitlines()]
    assert [(one["attack"], one["model"]) for one in curves] == [
        (attack, model)
        for attack in ("relearn_retain", "relearn_wrong")
        for model in ("original", "refusing", "control")
    ]
    rows = [results[name]["refusing"] for name in ("none", "relearn_retain/8", "relearn_retain/32")]
    assert curves[1]["steps"] == [0, 8, 32]
    assert curves[1]["scores"] == [row["after"] for row in rows]
    assert curves[1]["half_recovery"] > 0
    _check_the_scores(results, out)
    assert not out.with_name("out.partial").exists()


def _check_the_scores(results: Any, out: Path) -> None:
    """The numbers follow from scores.jsonl: the mean over facts of the mean over a fact's probes."""
    values: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in (out / "scores.jsonl").read_text().splitlines():
        one = json.loads(line)
        if one["set"] == "forget":
            values[one["attack"], one["model"]][one["unit"] // 100].append(one["value"])
    for attack, rows in results.items():
        for model, row in rows.items():
            by_fact = [np.mean(of_fact) for of_fact in values[attack, model].values()]
            assert len(by_fact) == 8
            assert row["after"] == pytest.approx(np.mean(by_fact))


def test_a_command_that_was_stopped_goes_on(
    attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine fails at the last model; nothing is made or asked twice."""
    written: list[str] = []
    whole = working._made

    def noted(command: Any, piece: Any) -> Any:
        written.append(piece.label)
        return whole(command, piece)

    def failing(job: Any, defaults: Any) -> Any:
        events = made.run_worker(job | {"models": job["models"][:-1]}, defaults)
        yield from events
        raise EngineError("vLLM failed: out of memory")

    monkeypatch.setattr(working, "_made", noted)
    monkeypatch.setattr(run, "run_worker", failing)
    assert attack("--attacks", "prefill", "quantise_4") == 1
    assert "error: model control quantise_4 fold 0 seed 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    asked: list[int] = []

    def counting(job: Any, defaults: Any) -> Any:
        asked.extend(len(model["ask"]) for model in job["models"])
        yield from made.run_worker(job, defaults)

    monkeypatch.setattr(run, "run_worker", counting)
    assert attack("--attacks", "prefill", "quantise_4") == 0
    assert asked == [32]  # of the one model that had not answered: 16 forget and 16 retain probes
    assert len(written) == 6
    assert not (tmp_path / "out.partial").exists()


def test_finished_attacks_are_not_made_again(
    attack, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --cache a later command attacks the new model alone."""
    cache = ["--cache", f"{tmp_path / 'cache'}"]
    attacks = ["--attacks", "prefill", "quantise_4"]
    assert attack(*cache, *attacks) == 0
    first = json.loads((tmp_path / "out/attacks.json").read_text())
    assert {path.name for path in (tmp_path / "cache").iterdir()} <= {READINGS, "answers", MODELS}
    asked: list[str] = []

    def noting(job: Any, defaults: Any) -> Any:
        asked.extend(Path(model["path"]).name for model in job["models"])
        yield from made.run_worker(job, defaults)

    monkeypatch.setattr(run, "run_worker", noting)
    # Two models with the same files are attacked once.
    other = ["--model", f"again={world / 'models/control'}", "--overwrite"]
    assert attack(*cache, *attacks, *other) == 0
    again = json.loads((tmp_path / "out/attacks.json").read_text())
    assert asked == []  # the same files as those of the control
    assert again["quantise_4"]["again"]["excess"] == 0
    assert again["prefill/affirmative"]["refusing"] | {"p_holm": 0} == first["prefill/affirmative"][
        "refusing"
    ] | {"p_holm": 0}
    assert attack(*cache, "--attacks", "many_shot", "--overwrite") == 0
    assert len(asked) == 3


def test_changed_models_are_kept_where_asked(attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of one, each asked before the next is made."""
    monkeypatch.setattr(working, "MOST_BYTES", 1)
    assert attack("--attacks", "quantise_8", "relearn_retain", "--keep-models", with_control=False) == 0
    folders = {
        f"{path.parent.relative_to(tmp_path / 'out/models')}" for path in tmp_path.rglob("config.json")
    }
    assert {name for name in folders if name.startswith("refusing")} == {
        "refusing/quantise_8/fold_0_seed_0/rounded",
        *(f"refusing/relearn_retain/fold_{fold}_seed_0/step_{step}" for fold in (0, 1) for step in (8, 32)),
    }
    assert attack("--attacks", "quantise_8", "--overwrite", with_control=False) == 0
    assert not list((tmp_path / "out").rglob("config.json"))


def test_without_a_never_knew_model_there_is_no_excess(
    attack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attack("--attacks", "prefill", with_control=False) == 0
    row = json.loads((tmp_path / "out/attacks.json").read_text())["prefill/affirmative"]["refusing"]
    assert (row["after"], row["gain"], row["excess"], row["interval"], row["share"]) == (
        1,
        1,
        None,
        None,
        None,
    )
    assert row["after_interval"] == [1, 1]
    assert "without a model that never knew the facts" in " ".join(capsys.readouterr().out.split())
    assert "--control" in json.loads((tmp_path / "out/meta.json").read_text())["excess"]


@pytest.mark.full
def test_the_full_budget_asks_all_probes_at_more_steps_and_of_more_samples(attack, tmp_path: Path) -> None:
    """Two seeds: every probe is still scored once by name, with the mean of its scores after both."""
    named = ("samples", "many_shot", "relearn_retain")
    assert attack("--budget", "full", "--seeds", "2", "--attacks", *named) == 0
    out = tmp_path / "out"
    results = json.loads((out / "attacks.json").read_text())
    meta = json.loads((out / "meta.json").read_text())
    assert (meta["budget"], meta["seeds"]) == ("full", 2)
    assert meta["asked"] == {"forget": 2 * len(made.FORGET), "retain": 2 * len(made.RETAIN)}
    assert meta["attacks"]["many_shot"]["options"]["shots"] == 32
    curves = [json.loads(line) for line in (out / "curves.jsonl").read_text().splitlines()]
    steps = [1, 2, 4, 8, 16, 32, 64]
    for curve in curves:
        of_steps = [results[f"relearn_retain/{step}"][curve["model"]]["after"] for step in steps]
        assert curve["steps"] == [0, *steps]
        assert curve["scores"] == [results["none"][curve["model"]]["after"], *of_steps]
    refusing, control = (
        next(one for one in curves if one["model"] == name) for name in ("refusing", "control")
    )
    # Training on other people undoes the refusal, and teaches the never-knew model nothing.
    assert (refusing["scores"][1], max(control["scores"])) == (0, 0)
    assert refusing["scores"][-1] > 0.9
    assert refusing["steps"][1] < refusing["half_recovery"] < refusing["steps"][-1]
    for k, more in ((1, 4), (4, 16), (16, 64)):
        for model, row in results[f"samples/leak_{k}"].items():
            assert row["after"] <= results[f"samples/leak_{more}"][model]["after"] + 1e-12
    units = [json.loads(line) for line in (out / "scores.jsonl").read_text().splitlines()]
    places = [tuple(one[name] for name in ("attack", "model", "set", "unit")) for one in units]
    assert len(set(places)) == len(places)
    scored = {one["unit"] for one in units if (one["attack"], one["set"]) == ("relearn_retain/64", "forget")}
    assert scored == {one.index for one in made.probes(1, made.FORGET)}
