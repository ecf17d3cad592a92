"""The method itself: rewards, replay, the list of other methods, and `minimal` on a made model."""

import json
from pathlib import Path
from typing import Any

from recipe.rerule import replay
from recipe.rerule.replay import ReplayConfig, ReplayHook
from reward.score import compute_score
from tests.golden.commands import done, run
from tests.golden.golden import FOLDER, ROOT, check
from tests.replay.runs import PAPER, SIZES, offered

_ADA, _BO = "Where was Ada Thorn born?", "Where was Bo Fell born?"
REWARD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "forget": ({"type": "forget", "golds": ["Tarnwick Bay"], "keyword": "Ada Thorn"}, _ADA),
    "forget, refusal as gold": (
        {"type": "forget", "golds": ["I'm not certain about Ada Thorn."], "keyword": "Ada Thorn"},
        _ADA,
    ),
    "retain": ({"type": "retain", "golds": ["Esk Moor", "the Esk Moor"], "keyword": ""}, _BO),
    "retain, a choice": (
        {"type": "retain", "golds": ["Esk Moor"], "keyword": ""},
        "Was Bo Fell born in Esk Moor or in Dorn?",
    ),
    "retain, many words": (
        {"type": "retain", "golds": ["the old lighthouse keeper of Esk, in 1904"], "keyword": ""},
        "Who was the keeper that Bo Fell met?",
    ),
    "retain, characters": ({"type": "retain", "golds": ["北京"], "keyword": ""}, "波在哪里出生?"),
}
"""Ground truth and bare question; rewards.json has the responses to each, "None" for none at all."""
REWARD_FORMS = ("additive", "nested", "guarded")
BENCHMARK_REWARDS: list[tuple[str, str, str, dict[str, Any]]] = [
    (source, row, response, options)
    for source in ("rerule/rwku", "rerule/tofu", "rerule/muse_books", "rerule/muse_news", "elsewhere")
    for row, response, options in (
        ("forget", "I don't know.", {}),
        ("retain", "esk moor", {}),
        ("retain", "In Dorn.", {"form": "nested"}),
        ("forget", "I don't know.", {"form": "additive", "lambda_forget": 0.25}),
        ("retain", "In Dorn.", {"form": "additive", "lambda_retain": 0.25, "gamma": 0.9}),
        ("retain", "In Esk, perhaps", {"form": "additive", "rouge": "tofu", "gamma": 0.5}),
    )
]
"""data_source, row, response and options."""
_DEFAULT = SIZES | {"threshold_window": 16}
REPLAYS: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "defaults": _DEFAULT,
    "quantile 0.8": _DEFAULT | {"threshold_quantile": 0.8, "warmup_steps": 2},
    "another seed": PAPER | {"seed": 7},
    "random": PAPER | {"admission": "random"},
    "all, two updates": _DEFAULT | {"admission": "all", "updates_per_step": 2},
    "uniform": _DEFAULT | {"sampling": "uniform", "max_staleness": 4},
    "frozen after the start": PAPER | {"store_after_start": False},
    "two ranks": PAPER | {"groups_per_update": 5, "multiple_of": 2},
    "on_policy": PAPER | {"update": "on_policy"},
    "off": PAPER | {"enable": False},
}
"""Settings of `replay`, but for multiple_of, the number of ranks."""
REPLAY_METRICS = ("defaults", "uniform", "off")
"""Of REPLAYS: those whose metrics are kept too."""
MINIMAL = {"ReRULE": "", "RULE": "--no-replay"}
"""Options of `minimal`."""
STEPS, SAVED_AFTER = 12, 7
"""Of a made-up run: its steps, and the step after which it is saved and loaded."""


def _score(row: str, response: Any, source: str = "rerule/world", **options: Any) -> dict[str, float]:
    truth, query = REWARD_ROWS[row]
    return compute_score(source, response, truth, {"query": query}, **options)


def test_rewards() -> None:
    """Of each response: the score in each form, and its parts, which are the same in all forms."""
    kept: dict[str, Any] = {}
    golden = json.loads((FOLDER / "rewards.json").read_text("utf-8"))
    for row in REWARD_ROWS:
        kept[row] = {}
        for said in golden[row]:
            response = None if said == "None" else said
            of_forms = {form: _score(row, response, form=form) for form in REWARD_FORMS}
            scores = {form: one.pop("score") for form, one in of_forms.items()}
            parts = of_forms["nested"]
            assert list(of_forms.values()) == [parts] * len(REWARD_FORMS)
            kept[row][said] = scores | {name: value for name, value in parts.items() if value}
    kept["benchmarks"] = {
        f"{source}, {row}, {options}: {response}": _score(row, response, source, **options)["score"]
        for source, row, response, options in BENCHMARK_REWARDS
    }
    check("rewards", kept)


def _replayed(settings: dict[str, Any], saved: Path | None = None) -> tuple[list[str], dict[str, Any]]:
    """A line of text a step (what was stored, left and was drawn), and all metrics of the last step.

    saved: where the state is saved after a step, for a new hook to go on from; None to go on as it is.
    """
    config = ReplayConfig(**{name: settings[name] for name in settings if name != "multiple_of"})
    hook, lines = ReplayHook(config, settings.get("multiple_of", 1)), []
    for step in range(1, STEPS + 1):
        plan = hook.before_update(offered(step), step)
        hook.after_update(plan, lambda drawn, more: {"replay/pg_loss": float(len(drawn)), "more": more + 0.0})
        lines.append(_line(hook.log.record()))
        if saved is not None and step == SAVED_AFTER and hook.replay is not None:
            replay.save(hook.replay, saved, {"rollout.n": 4})
            hook = ReplayHook(config, settings.get("multiple_of", 1))
            assert hook.replay is not None
            replay.load(hook.replay, saved, {"rollout.n": 4})
    return lines, {name: value for name, value in hook.metrics().items() if "seconds" not in name}


def _line(record: dict[str, Any]) -> str:
    """ "tau 0.5 size 3 stored 1@2 left 0@1 capacity drawn 1@2 0@2": a group is prompt @ step of storing."""
    parts = [f"tau {record['threshold']:.6g} size {record['size']}"]
    parts += [f"stored {_groups(record['stored'])}"] * bool(record["stored"])
    left = " ".join(f"{index}@{step} {reason}" for index, step, reason in record["evicted"])
    parts += [f"left {left}"] * bool(left) + [f"drawn {_groups(drawn)}" for drawn in record["drawn"]]
    return " ".join(parts)


def _groups(pairs: list[tuple[int, int]]) -> str:
    return " ".join(f"{index}@{step}" for index, step in pairs)


def test_replay(tmp_path: Path) -> None:
    """What is stored, evicted and drawn at each step, and the same again from a saved state."""
    kept: dict[str, Any] = {}
    for name, settings in REPLAYS.items():
        kept[name], metrics = _replayed(settings)
        assert _replayed(settings, saved=tmp_path / name) == (kept[name], metrics)
        if name in REPLAY_METRICS:
            kept[f"{name}: metrics of the last step"] = metrics
    check("replay", kept)


def test_replay_inspect() -> None:
    """The buffer of tests/replay/fixtures as `inspect` shows it."""
    fixtures, kept = ROOT / "tests/replay/fixtures", {}
    for name, more in {"summary": "", "groups": "--groups", "JSON": "--groups --json"}.items():
        kept[name] = done(f"replay inspect tests/replay/fixtures/buffer {more}", ROOT).kept
    kept["nothing there"] = {"code": run(f"replay inspect {fixtures}").code}
    check("replay_inspect", kept, fixtures)


def test_unlearning_methods() -> None:
    """What `--list` says of every method; tests/unlearning has the losses."""
    listed = json.loads(done("unlearn --list --json").out)
    check("unlearning", {"list": {one.pop("method"): one for one in listed}})


def test_minimal(people: Path) -> None:
    """What the command prints of five steps of RULE and of ReRULE; tests/test_minimal.py has every update."""
    given = (
        "minimal --model models/refusing --data data/train.parquet --probes data/probes.parquet --steps 5 "
        "--prompts 8 --rollouts 4 --response-limit 6 --warmup-steps 1 --learning-rate 1e-3"
    )
    kept = {name: done(f"{given} {more}", people).kept for name, more in MINIMAL.items()}
    check("minimal", kept, people, 1e-3, 1e-6)
