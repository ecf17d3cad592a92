"""The method itself: rewards, replay, the losses of other methods, and `minimal` on a made model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.contract import read_rows
from recipe.rerule import minimal, replay
from recipe.rerule.replay import ImportanceConfig, ReplayConfig, ReplayHook
from recipe.rerule.unlearning import presets
from reward.score import compute_score
from tests.golden.commands import done, files, run
from tests.golden.golden import FOLDER, ROOT, check
from tests.replay.runs import offered
from tests.unlearning import made
from tests.unlearning.test_loss import SPLITS, batch_loss, flat_gradient

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
REFUSED_REWARDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no gold on the retain side": ({"type": "retain", "golds": [], "keyword": ""}, {}),
    "no side": ({"type": "both", "golds": ["x"], "keyword": ""}, {}),
    "golds that are no list": ({"type": "forget", "golds": "x", "keyword": ""}, {}),
    "an unknown form": (REWARD_ROWS["retain"][0], {"form": "round"}),
    "gamma out of range": (REWARD_ROWS["retain"][0], {"gamma": 2}),
    "an unknown option": (REWARD_ROWS["retain"][0], {"delta": 0.5}),
}
"""Ground truth and options."""

_PAPER = {
    "threshold_rule": "fixed",
    "threshold": 0.6,
    "require_signal": False,
    "sampling": "uniform",
    "min_groups": 4,
    "warmup_steps": 3,
    "capacity": 12,
    "groups_per_update": 4,
}
_DEFAULT = {
    "min_groups": 4,
    "warmup_steps": 3,
    "capacity": 12,
    "groups_per_update": 4,
    "threshold_window": 16,
}
REPLAYS: dict[str, dict[str, Any]] = {
    "paper": _PAPER,
    "defaults": _DEFAULT,
    "quantile 0.8": _DEFAULT | {"threshold_quantile": 0.8, "warmup_steps": 2},
    "another seed": _PAPER | {"seed": 7},
    "random": _PAPER | {"admission": "random"},
    "all, two updates": _DEFAULT | {"admission": "all", "updates_per_step": 2},
    "uniform": _DEFAULT | {"sampling": "uniform", "max_staleness": 4},
    "frozen after the start": _PAPER | {"store_after_start": False},
    "two ranks": _PAPER | {"groups_per_update": 5, "multiple_of": 2},
    "on_policy": _PAPER | {"update": "on_policy"},
    "off": _PAPER | {"enable": False},
}
"""Settings of `replay`, but for multiple_of, the number of ranks."""
REPLAY_METRICS = ("defaults", "uniform", "off")
"""Of REPLAYS: those whose metrics are kept too."""
UPDATES: dict[str, dict[str, Any]] = {
    "token": {},
    "token, narrow": {"clip_low": 0.95, "clip_high": 1.05},
    "token, not normalised": {"normalize": False},
    "sequence": {"level": "sequence"},
    "sequence sum": {"level": "sequence_sum", "normalize": False},
}
"""Settings of `replay.importance`."""
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
    kept["refused"] = {}
    for name, (row, options) in REFUSED_REWARDS.items():
        with pytest.raises(ValueError, match=r".+") as error:
            compute_score("rerule/world", "Paris", row, {}, **options)
        kept["refused"][name] = {"lines": len(str(error.value).splitlines())}
    check("rewards", kept)


def _replayed(settings: dict[str, Any], saved: Path | None = None) -> tuple[list[str], dict[str, Any]]:
    """A line of text a step (what was stored, left and was drawn), and all metrics of the last step.

    saved: where the state is saved after a step, for a new hook to go on from; None to go on as it is.
    """
    config = ReplayConfig(**{name: settings[name] for name in settings if name != "multiple_of"})
    hook, lines = ReplayHook(config, settings.get("multiple_of", 1)), []
    for step in range(1, STEPS + 1):
        plan = hook.before_update(offered(step), step)
        hook.after_update(
            plan, lambda groups, more: {"replay/pg_loss": float(len(groups)), "more": float(more)}
        )
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


def test_replay_updates() -> None:
    """Weights, losses, clipped shares and gradient norms of one replay update of three groups, in float64."""
    rows = replay.pad_groups([group for group in offered(2) if group.has_signal][:3], pad_token_id=0)
    mask = rows["response_mask"]
    moved = torch.randn(mask.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    kept: dict[str, Any] = {}
    for name, settings in UPDATES.items():
        log_probs = (rows["old_log_probs"].double() + 0.3 * moved).requires_grad_()
        ratios = replay.log_ratios(log_probs, rows["old_log_probs"], mask)
        weights, metrics = replay.weigh(ratios, mask, ImportanceConfig(**settings))
        valid = [row[of_row.bool()].tolist() for row, of_row in zip(weights, mask, strict=True)]
        kept[name] = {"metrics": metrics, "weights": valid}
        loss = replay.replay_loss(
            *(log_probs, weights, rows["advantages"].double(), mask, replay.token_mean),
            ref_log_probs=rows["ref_log_prob"].double(),
            kl_coef=0.01,
            kl=replay.low_var_kl,
        )
        (gradient,) = torch.autograd.grad(loss.total, log_probs)
        parts = zip(("loss", "policy gradient", "KL"), loss, strict=True)
        kept[name]["token_mean"] = {part: float(value.detach()) for part, value in parts} | {
            "gradient norm": float(gradient.norm())
        }
    check("replay_updates", kept, relative=1e-9)


def test_replay_inspect() -> None:
    """The buffer of tests/replay/fixtures as `inspect` shows it."""
    fixtures, kept = ROOT / "tests/replay/fixtures", {}
    for name, more in {"summary": "", "groups": "--groups", "JSON": "--groups --json"}.items():
        kept[name] = done(f"replay inspect tests/replay/fixtures/buffer {more}", ROOT).kept
    kept["nothing there"] = {"code": run(f"replay inspect {fixtures}").code}
    check("replay_inspect", kept, fixtures)


def test_unlearning_losses(tmp_path: Path) -> None:
    """Of every method, in float64: the loss of a batch, its terms, and the norm of the gradient."""
    folder = made.put_model(tmp_path / "model")
    models = tuple(made.plain_model(folder).double() for _ in range(3))
    generator, losses = torch.Generator().manual_seed(1), {}
    with torch.no_grad():
        for value in (*models[0].parameters(), *models[2].parameters()):
            value += 0.02 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    for name in presets.names():
        loss, terms = batch_loss(presets.load(name), models, SPLITS["whole"])
        norm = float(flat_gradient(loss, models[0]).norm())
        losses[name] = {"loss": float(loss.detach()), **terms, "gradient norm": norm}
    listed = json.loads(done("unlearn --list --json").out)
    kept = {"list": {one.pop("method"): one for one in listed}, "losses": losses}
    check("unlearning", kept, relative=1e-5, absolute=1e-8)


def test_task_vector(people: Path) -> None:
    """Of each tensor its mean and its root mean square."""
    kept = {}
    given = "--base models/original --reinforced models/control --out out --overwrite"
    for alpha in (0.0, 0.5, 1.0):
        ran, out = done(f"task_vector {given} --alpha={alpha}", people), people / "out"
        tensors = [load_file(file) for file in sorted(out.glob("*.safetensors"))]
        found = {name: one.double() for file in tensors for name, one in sorted(file.items())}
        weights = {name: [one.mean(), one.square().mean().sqrt()] for name, one in found.items()}
        kept[f"alpha {alpha}"] = ran.kept | {"files": files(out), "weights": weights}
    check("task_vector", kept, people, 1e-5)


def test_minimal(people: Path) -> None:
    """What the command prints of five steps of RULE and of ReRULE, and all metrics of three steps of each."""
    given = (
        "minimal --model models/refusing --data data/train.parquet --probes data/probes.parquet --steps 5 "
        "--prompts 8 --rollouts 4 --response-limit 6 --warmup-steps 1 --learning-rate 1e-3"
    )
    kept: dict[str, Any] = {name: done(f"{given} {more}", people).kept for name, more in MINIMAL.items()}
    kept["metrics"] = {}
    for name in MINIMAL:
        settings = minimal.Settings(
            **{"steps": 3, "prompts": 8, "rollouts": 4, "response_limit": 6, "learning_rate": 1e-3},
            **{"replay": name == "ReRULE", "threshold": 1.0, "warmup_steps": 1, "min_groups": 2},
            **{"capacity": 16, "groups_per_update": 3},
        )
        policy = AutoModelForCausalLM.from_pretrained(people / "models/refusing").eval()
        tokenizer = AutoTokenizer.from_pretrained(people / "models/refusing")
        torch.manual_seed(0)
        metrics = minimal.train(policy, tokenizer, read_rows(people / "data/train.parquet"), settings)
        kept["metrics"][name] = [{key: one[key] for key in one if "/" in key} for one in metrics]
    check("minimal", kept, people, 1e-3, 1e-6)
