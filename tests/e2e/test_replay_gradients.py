"""Invariants 2 and 3 through the real worker: FSDP2 and gloo, one and two ranks, any micro-batch size."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model
from transformers import AutoConfig, AutoModelForCausalLM

from recipe.rerule.replay import ImportanceConfig, Replay, ReplayConfig, RolloutGroup, save
from tests.e2e.replay_gradients import LEARNING_RATE
from tests.e2e.stack import torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

KL_COEFFICIENT = 0.01  # actor.kl_loss_coef of the recipe's configuration
GROUPS, ROLLOUTS = 4, 2
ACTOR = "actor_rollout_ref.actor"

CLIPS: dict[str, dict[str, Any]] = {"clip": {}, "none": {"clip_low": 0.0, "clip_high": 1e9}}


def combinations() -> dict[str, dict[str, Any]]:
    """Every combination of the settings the gradient depends on, as plain values, by name."""
    found = {}
    for level, clip, normalize, with_kl in itertools.product(
        ["token", "sequence", "sequence_sum"], CLIPS, [True, False], [True, False]
    ):
        ends = ("normalized" if normalize else "plain", "kl" if with_kl else "no_kl")
        importance = {"level": level, "normalize": normalize, **CLIPS[clip]}
        found["-".join((level, clip, *ends))] = {"use_kl_loss": with_kl, "importance": importance}
    return found


COMBINATIONS = combinations()
SOME = {
    name: COMBINATIONS[name]
    for name in (
        "token-clip-normalized-kl",
        "sequence-clip-normalized-no_kl",
        "sequence_sum-none-plain-kl",
    )
}


def micro_batches(size: int) -> list[str]:
    """Overrides for micro-batches of `size` rows."""
    return [
        f"{ACTOR}.use_dynamic_bsz=false",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu={size}",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=3",
    ]


BY_TOKENS = [f"{ACTOR}.ppo_max_token_len_per_gpu=24"]  # micro-batches of unequal numbers of rows


@dataclass(frozen=True)
class Setup:
    """One worker, and the cases to run on it."""

    overrides: list[str]
    cases: dict[str, dict[str, Any]]
    aggregate: str = "token-mean"
    on_policy: bool = False

    def job(self, name: str) -> dict[str, Any]:
        cases = [{"name": n, "replay": r, "on_policy": self.on_policy} for n, r in self.cases.items()]
        return {
            "name": name,
            "overrides": [*self.overrides, f"{ACTOR}.loss_agg_mode={self.aggregate}"],
            "cases": cases,
        }


SETUPS = {
    "micro1": Setup(micro_batches(1), COMBINATIONS),
    "all_rows": Setup(micro_batches(99), COMBINATIONS),  # more than there are
    "by_tokens": Setup(BY_TOKENS, SOME),
    "all_tokens": Setup([f"{ACTOR}.ppo_max_token_len_per_gpu=9999"], SOME),
    "on_policy": Setup(micro_batches(2), SOME, on_policy=True),
    "seq_sum": Setup(micro_batches(2), SOME, "seq-mean-token-sum"),
    "seq_mean": Setup(BY_TOKENS, SOME, "seq-mean-token-mean"),
    # Every rank has a copy of the weights, as nodes with one device each; weights that stay on the host.
    "nodes": Setup([*BY_TOKENS, f"{ACTOR}.fsdp_config.fsdp_size=1"], SOME),
    "on_host": Setup([*BY_TOKENS, f"{ACTOR}.fsdp_config.offload_policy=true"], SOME),
}


@dataclass(frozen=True)
class Tokens:
    """The valid response tokens, a list of rows: log pi in float64 with its graph, and what was stored."""

    log_probs: list[torch.Tensor]
    old: list[torch.Tensor]
    ref: list[torch.Tensor]
    advantages: list[torch.Tensor]


@pytest.fixture(scope="module")
def groups(micro_world: Path) -> list[RolloutGroup]:
    """Random rollouts of several lengths, with old and reference log-probs near the model's own."""
    generator = torch.Generator().manual_seed(0)
    model = float64_model(micro_world / "model")
    return [random_group(model, number, generator) for number in range(GROUPS)]


def random_group(model: torch.nn.Module, number: int, generator: torch.Generator) -> RolloutGroup:
    vocabulary = model.config.vocab_size
    prompt = torch.randint(5, vocabulary, (3 + number,), generator=generator)
    lengths = torch.randint(1, 9, (ROLLOUTS,), generator=generator)
    rows = [torch.randint(5, vocabulary, (int(length),), generator=generator) for length in lengths]
    with torch.no_grad():
        current = torch.cat([response_log_probs(model, prompt, row) for row in rows])
    mask = torch.rand(current.shape, generator=generator) < 0.8  # holes, as where a tool has spoken
    mask[lengths.cumsum(0) - 1] = True

    # Rows that became likelier and rows that became less likely, so that ratios are cut on both sides.
    drift = torch.linspace(-0.5, 0.5, ROLLOUTS).repeat_interleave(lengths)

    def near(center: torch.Tensor) -> torch.Tensor:
        return (center + 0.3 * torch.randn(current.shape, generator=generator)).float()

    return RolloutGroup(
        prompt_index=number,
        side="forget",
        mode="qa",
        step=1,
        prompt_ids=prompt.int(),
        response_ids=torch.cat(rows).int(),
        lengths=lengths.int(),
        response_mask=mask,
        old_log_probs=near(current + drift),
        ref_log_probs=near(current),
        advantages=torch.randn(ROLLOUTS, generator=generator).repeat_interleave(lengths),
        rewards=torch.rand(ROLLOUTS, generator=generator),
    )


def float64_model(folder: Path) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), dtype=torch.float64, attn_implementation="eager"
    )
    load_model(model, folder / "model.safetensors", strict=False)
    return model


def response_log_probs(model: torch.nn.Module, prompt: torch.Tensor, response: torch.Tensor) -> torch.Tensor:
    logits = model(torch.cat([prompt, response]).long()[None]).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, response.long()[:, None])[:, 0]


def valid_tokens(model: torch.nn.Module, groups: list[RolloutGroup]) -> Tokens:
    """Row by row, unpadded; tokens off the mask are context only."""
    tokens = Tokens([], [], [], [])
    for group in groups:
        ends = group.lengths.cumsum(0).tolist()
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            row = slice(start, end)
            valid = group.response_mask[row]
            log_probs = response_log_probs(model, group.prompt_ids, group.response_ids[row])
            tokens.log_probs.append(log_probs[valid])
            tokens.old.append(group.old_log_probs[row][valid].double())
            tokens.ref.append(group.ref_log_probs[row][valid].double())
            tokens.advantages.append(group.advantages[row][valid].double())
    return tokens


class Expected:
    """Gradients and metrics from the paper's formulae; each gradient is worked out once."""

    def __init__(self, folder: Path, groups: list[RolloutGroup]) -> None:
        model = float64_model(folder)
        self.parameters = dict(model.named_parameters())
        self.tokens = valid_tokens(model, groups)
        self._gradients: dict[Any, torch.Tensor] = {}

    def gradient(self, settings: ReplayConfig, aggregate: str, on_policy: bool) -> torch.Tensor:
        """sum over tokens of share * (-w A + KL's slope) * grad log pi; parameters by name, end to end."""
        key = (settings, aggregate, on_policy)
        if key not in self._gradients:
            slopes = torch.cat(self._slopes(settings, aggregate, on_policy))
            log_probs = torch.cat(self.tokens.log_probs)
            parts = torch.autograd.grad(log_probs, list(self.parameters.values()), slopes, retain_graph=True)
            by_name = dict(zip(self.parameters, parts, strict=True))
            self._gradients[key] = torch.cat([by_name[name].flatten() for name in sorted(by_name)])
        return self._gradients[key]

    def _slopes(self, settings: ReplayConfig, aggregate: str, on_policy: bool) -> list[torch.Tensor]:
        """Derivative of the loss by log pi of every token."""
        ones = [torch.ones_like(row) for row in self.tokens.advantages]
        weights = ones if on_policy else self.weights(settings.importance)
        slopes = []
        for row, weight in enumerate(weights):
            slope = -weight * self.tokens.advantages[row]
            if settings.use_kl_loss:
                ratio_to_ref = (self.tokens.ref[row] - self.tokens.log_probs[row].detach()).exp()
                slope = slope + KL_COEFFICIENT * (1 - ratio_to_ref)
            slopes.append(slope * self._share(aggregate, row))
        return slopes

    def _share(self, aggregate: str, row: int) -> float:
        lengths = [len(values) for values in self.tokens.old]
        return {
            "token-mean": 1 / sum(lengths),
            "seq-mean-token-sum": 1 / len(lengths),
            "seq-mean-token-mean": 1 / (len(lengths) * lengths[row]),
        }[aggregate]

    def log_ratios(self) -> list[torch.Tensor]:
        return [now.detach() - old for now, old in zip(self.tokens.log_probs, self.tokens.old, strict=True)]

    def units(self, level: str) -> list[torch.Tensor]:
        """Ratios of each row: one a token, or one alone."""
        logs = self.log_ratios()
        if level == "token":
            return [row.exp() for row in logs]
        return [(row.mean() if level == "sequence" else row.sum()).exp()[None] for row in logs]

    def weights(self, importance: ImportanceConfig) -> list[torch.Tensor]:
        """rho~ of every token."""
        low, high = importance.clip_low, importance.clip_high
        clipped = [row.clamp(low, high) for row in self.units(importance.level)]
        mean = torch.cat(clipped).mean() if importance.normalize else 1.0
        return [(row / mean).expand_as(old) for row, old in zip(clipped, self.tokens.old, strict=True)]

    def metrics(self, importance: ImportanceConfig) -> dict[str, float]:
        ratio, logs = torch.cat(self.units(importance.level)), torch.cat(self.log_ratios())
        low, high = importance.clip_low, importance.clip_high
        clipped = ratio.clamp(low, high)
        return {
            "replay/ratio_mean": float(ratio.mean()),
            "replay/ratio_max": float(ratio.max()),
            "replay/ratio_second_moment": float((ratio**2).mean()),
            "replay/clipped_low": float((ratio < low).double().mean()),
            "replay/clipped_high": float((ratio > high).double().mean()),
            "replay/effective_sample_size": float(clipped.mean() ** 2 / (clipped**2).mean()),
            "replay/kl_old_current": float((logs.exp() - 1 - logs).mean()),
        }


@pytest.fixture(scope="module")
def expected(micro_world: Path, groups: list[RolloutGroup]) -> Iterator[Expected]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other at this size
    yield Expected(micro_world / "model", groups)
    torch.set_num_threads(threads)


def test_the_cases_truncate(expected: Expected) -> None:
    """Guards the gradients below: with nothing to cut, both clip ranges would be the same case."""
    for level in ("token", "sequence", "sequence_sum"):
        clip = expected.metrics(ImportanceConfig(level=level))
        assert min(clip["replay/clipped_low"], clip["replay/clipped_high"]) > 0


def check(name: str, setup: Setup, folder: Path, expected: Expected) -> None:
    """Every case of a setup: gradient, its norm, and the metrics of the ratios."""
    changes = load_file(folder / f"{name}.safetensors")
    metrics = json.loads((folder / f"{name}.json").read_text())
    names = sorted(expected.parameters)
    for case, replay in setup.cases.items():
        settings = ReplayConfig.from_dict(replay)
        wanted = expected.gradient(settings, setup.aggregate, setup.on_policy)
        found = torch.cat([changes[f"{case}/{n}"].double().flatten() / -LEARNING_RATE for n in names])
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5, case
        assert metrics[case]["replay/grad_norm"] == pytest.approx(float(wanted.norm()), rel=1e-4)
        if setup.on_policy:
            check_on_policy(metrics[case])
        else:
            wanted_metrics = expected.metrics(settings.importance)
            logged = {key: metrics[case][key] for key in wanted_metrics}
            assert logged == pytest.approx(wanted_metrics, rel=1e-4), case


def check_on_policy(metrics: dict[str, float]) -> None:
    """Invariant 3: the policy has not moved, so every weight is 1."""
    assert abs(metrics["replay/ratio_max"] - 1) < 1e-5
    assert abs(metrics["replay/ratio_mean"] - 1) < 1e-5
    assert metrics["replay/effective_sample_size"] == pytest.approx(1, abs=1e-9)
    assert 0 <= metrics["replay/kl_old_current"] < 1e-10


@pytest.mark.parametrize("ranks", [1, 2])
def test_replay_gradient_through_the_worker(
    ranks: int, micro_world: Path, groups: list[RolloutGroup], expected: Expected, tmp_path: Path
) -> None:
    replay = Replay(ReplayConfig(admission="all", require_signal=False))
    replay.offer(groups, step=1)
    save(replay, tmp_path / "groups")
    job = {
        "model": str(micro_world / "model"),
        "groups": str(tmp_path / "groups"),
        "out": str(tmp_path),
        "setups": [setup.job(name) for name, setup in SETUPS.items()],
    }
    torchrun("replay_gradients.py", ranks, job, tmp_path)
    for name, setup in SETUPS.items():
        check(name, setup, tmp_path, expected)
