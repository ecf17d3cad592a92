"""The method itself: rewards, replay, the losses of other methods, and `minimal` on a made model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reward.score import compute_score
from tests.golden import adapters
from tests.golden.commands import done, files, run
from tests.golden.golden import check, neutral_all
from tests.golden.inputs import people_rows, put_json, put_people_models
from tests.golden.method_cases import (
    BENCHMARK_REWARDS,
    REFUSED_REWARDS,
    REPLAY_METRICS,
    REPLAYS,
    RESPONSES,
    REWARD_FORMS,
    REWARD_ROWS,
    UPDATES,
)

FIXTURES = Path(__file__).parents[1] / "replay" / "fixtures"


def _score(row: str, response: Any, source: str = "rerule/world", **options: Any) -> dict[str, float]:
    truth, query = REWARD_ROWS[row]
    return compute_score(source, response, truth, {"query": query}, **options)


def test_rewards() -> None:
    """Of each response: the score in each form, and its parts, which are the same in all forms."""
    kept: dict[str, Any] = {}
    for row, responses in RESPONSES.items():
        kept[row] = {}
        for response in responses:
            of_forms = {form: _score(row, response, form=form) for form in REWARD_FORMS}
            parts = [{name: one[name] for name in one if name != "score"} for one in of_forms.values()]
            assert parts[0] == parts[1] == parts[2]
            scores = {form: one["score"] for form, one in of_forms.items()}
            kept[row][str(response)] = scores | {name: value for name, value in parts[0].items() if value}
    kept["benchmarks"] = {
        f"{source}, {row}, {options}: {response}": _score(row, response, source, **options)["score"]
        for source, row, response, options in BENCHMARK_REWARDS
    }
    kept["refused"] = {}
    for name, (row, options) in REFUSED_REWARDS.items():
        with pytest.raises(ValueError, match=r".+") as error:
            compute_score("rerule/world", "Paris", row, {}, **options)
        kept["refused"][name] = {"lines": len(str(error.value).splitlines())}
    check("rewards", kept)


def test_replay(tmp_path: Path) -> None:
    """What is stored, evicted and drawn at each step, and the same again from a saved state."""
    kept = {}
    for name, settings in REPLAYS.items():
        whole = adapters.replay_run(settings)
        assert adapters.replay_run(settings, saved=tmp_path / name) == whole
        metrics = whole.pop("metrics of the last step")
        kept[name] = whole["steps"]
        if name in REPLAY_METRICS:
            kept[f"{name}: metrics of the last step"] = metrics
    check("replay", kept)


def test_replay_updates() -> None:
    """Weights, losses, clipped shares and gradient norms of one replay update, on fixed tensors."""
    check("replay_updates", {name: adapters.replay_update(own) for name, own in UPDATES.items()}, 1e-9)


def test_replay_inspect() -> None:
    """The buffer of tests/replay/fixtures as `inspect` shows it."""
    words = ("inspect", "tests/replay/fixtures/buffer")
    kept = {}
    for name, more in {"summary": (), "groups": ("--groups",), "JSON": ("--groups", "--json")}.items():
        kept[name] = done("recipe.rerule.replay", *words, *more, folder=FIXTURES.parents[2]).kept(FIXTURES)
    kept["nothing there"] = {"code": run("recipe.rerule.replay", "inspect", FIXTURES).code}
    check("replay_inspect", kept)


def test_unlearning_losses(tmp_path: Path) -> None:
    """Of every method: the loss of a batch, its terms, and the norm of the gradient."""
    listed = json.loads(done("recipe.rerule.unlearn", "--list", "--json").out)
    kept = {
        "list": {one.pop("method"): one for one in listed},
        "losses": adapters.unlearning_losses(tmp_path),
    }
    check("unlearning", kept, 1e-5, 1e-8)


def test_task_vector(tmp_path: Path) -> None:
    put_people_models(tmp_path / "models")
    given = ("--base", "models/original", "--reinforced", "models/control", "--out", "out")
    kept = {}
    for alpha in (0.0, 0.5, 1.0):
        ran = done("recipe.rerule.task_vector", *given, f"--alpha={alpha}", "--overwrite", folder=tmp_path)
        kept[f"alpha {alpha}"] = ran.kept(tmp_path) | {
            "files": files(tmp_path / "out"),
            "weights": adapters.weights(tmp_path / "out"),
        }
    check("task_vector", kept, 1e-5)


def test_minimal(tmp_path: Path) -> None:
    """What the command prints of five steps of RULE and of ReRULE, and all metrics of three steps of each."""
    put_people_models(tmp_path / "models")
    put_json(tmp_path / "mine.json", people_rows(0))
    put_json(tmp_path / "probes.json", people_rows(1))
    done(
        "data_prep",
        "custom",
        "--source",
        "mine.json",
        "--probes",
        "probes.json",
        "--out",
        "data",
        folder=tmp_path,
    )
    words = [
        *("--model", "models/refusing", "--data", "data/train.parquet", "--probes", "data/probes.parquet"),
        *("--steps", "5", "--prompts", "8", "--rollouts", "4", "--response-limit", "6"),
        *("--warmup-steps", "1", "--learning-rate", "1e-3"),
    ]
    kept = {
        name: done("recipe.rerule.minimal", *words, *more, folder=tmp_path).kept(tmp_path)
        for name, more in {"ReRULE": (), "RULE": ("--no-replay",)}.items()
    }
    kept["metrics"] = adapters.minimal_metrics(tmp_path / "models/refusing", tmp_path / "data/train.parquet")
    check("minimal", neutral_all(kept, tmp_path), 1e-3, 1e-6)
