"""Invariants 2 and 3 through the real worker: FSDP2 and gloo, one and two ranks, any micro-batch size.

And, on one rank, several updates in one step with parameter and optimiser offload.
"""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, load_model
from transformers import AutoConfig, AutoModelForCausalLM

from data_prep.world.model import one_thread
from recipe.rerule.replay import ImportanceConfig, Replay, ReplayConfig, RolloutGroup, save
from tests.e2e.replay_gradients import ACTOR, LEARNING_RATE, RATE, STEPS
from tests.e2e.stack import torchrun
from tests.replay import reference

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

KL_COEFFICIENT = 0.01  # actor.kl_loss_coef of the recipe's configuration
GROUPS, ROLLOUTS = 4, 2

CLIPS: dict[str, dict[str, Any]] = {
    "clip": {},
    "none": {"clip_low": 0.0, "clip_high": 1e9},
    "region": {"trust_region": True},
}


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
        "token-region-plain-kl",
        "sequence-region-normalized-no_kl",
        "sequence_sum-none-plain-kl",
    )
}


def setup(
    overrides: list[str],
    cases: dict[str, dict[str, Any]] = SOME,
    aggregate: str = "token-mean",
    on_policy: bool = False,
) -> dict[str, Any]:
    """One worker, and the cases to run on it."""
    return {"overrides": overrides, "cases": cases, "aggregate": aggregate, "on_policy": on_policy}


def micro_batches(size: int) -> list[str]:
    """Overrides for micro-batches of `size` rows."""
    return [
        f"{ACTOR}.use_dynamic_bsz=false",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu={size}",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=3",
    ]


BY_TOKENS = [f"{ACTOR}.ppo_max_token_len_per_gpu=24"]  # micro-batches of unequal numbers of rows


def setups(ranks: int) -> dict[str, dict[str, Any]]:
    """By name. Two ranks add nothing to most combinations, nor to a pass of all tokens."""
    alone = ranks == 1
    cases = COMBINATIONS if alone else SOME
    return {
        "micro1": setup(micro_batches(1), cases),
        "all_rows": setup(micro_batches(99), cases),  # more than there are
        "by_tokens": setup(BY_TOKENS),
        **({"all_tokens": setup([f"{ACTOR}.ppo_max_token_len_per_gpu=9999"])} if alone else {}),
        "on_policy": setup(micro_batches(2), on_policy=True),
        "seq_sum": setup(micro_batches(2), aggregate="seq-mean-token-sum"),
        "seq_mean": setup(BY_TOKENS, aggregate="seq-mean-token-mean"),
        # Every rank has a copy of the weights, as nodes with one device each; weights that stay on the host.
        "nodes": setup([*BY_TOKENS, f"{ACTOR}.fsdp_config.fsdp_size=1"]),
        "on_host": setup([*BY_TOKENS, f"{ACTOR}.fsdp_config.offload_policy=true"]),
    }


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


class Row(NamedTuple):
    """Of the valid tokens of a response: log pi in float64 with its graph, and what was stored."""

    log_probs: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    advantages: torch.Tensor


def valid_rows(model: torch.nn.Module, groups: list[RolloutGroup]) -> list[Row]:
    """Row by row, unpadded; tokens off the mask are context only."""
    rows = []
    for group in groups:
        planes = (group.response_ids, group.response_mask)
        planes += (group.old_log_probs, group.ref_log_probs, group.advantages)
        parts = [plane.split(group.lengths.tolist()) for plane in planes]
        for response, valid, *stored in zip(*parts, strict=True):
            log_probs = response_log_probs(model, group.prompt_ids, response)
            rows.append(Row(log_probs[valid], *(values[valid].double() for values in stored)))
    return rows


class Expected:
    """Gradients and metrics from the paper's formulae."""

    def __init__(self, folder: Path, groups: list[RolloutGroup]) -> None:
        model = float64_model(folder)
        self.parameters = dict(sorted(model.named_parameters()))
        self.rows = valid_rows(model, groups)

    def gradient(self, settings: ReplayConfig, aggregate: str, on_policy: bool) -> torch.Tensor:
        """Of the sum over tokens of share * (-w A log pi + KL); parameters by name, end to end."""
        lengths = [len(row.old) for row in self.rows]
        ones = [[1.0] * length for length in lengths]
        advantages = [row.advantages.tolist() for row in self.rows]
        weights = reference.weights(self.log_ratios(), settings.importance, advantages)
        weights = ones if on_policy else weights
        loss = torch.zeros((), dtype=torch.float64)
        for number, (row, weight) in enumerate(zip(self.rows, weights, strict=True)):
            of_token = -float64(weight) * row.advantages * row.log_probs
            if settings.use_kl_loss:
                to_ref = row.ref - row.log_probs
                of_token = of_token + KL_COEFFICIENT * (to_ref.exp() - to_ref - 1)
            loss = loss + reference.share(aggregate, lengths, number) * of_token.sum()
        parts = torch.autograd.grad(loss, list(self.parameters.values()), retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    def log_ratios(self) -> reference.Rows:
        return [(row.log_probs.detach() - row.old).tolist() for row in self.rows]

    def metrics(self, importance: ImportanceConfig) -> dict[str, float]:
        units = reference.ratios(self.log_ratios(), importance.level)
        ratio, logs = (float64(list(itertools.chain(*rows))) for rows in (units, self.log_ratios()))
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


def float64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(scope="module")
def expected(micro_world: Path, groups: list[RolloutGroup]) -> Iterator[Expected]:
    with one_thread():  # more only wait for each other at this size
        yield Expected(micro_world / "model", groups)


def test_the_cases_truncate(expected: Expected) -> None:
    """Guards the gradients below: with nothing to cut, both clip ranges would be the same case."""
    for level in ("token", "sequence", "sequence_sum"):
        clip = expected.metrics(ImportanceConfig(level=level))
        assert min(clip["replay/clipped_low"], clip["replay/clipped_high"]) > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_updates_through_the_worker(
    ranks: int, micro_world: Path, groups: list[RolloutGroup], expected: Expected, tmp_path: Path
) -> None:
    replay = Replay(ReplayConfig(admission="all", require_signal=False))
    replay.offer(groups, step=1)
    save(replay, tmp_path / "groups")
    job = {"model": str(micro_world / "model"), "groups": str(tmp_path / "groups"), "out": str(tmp_path)}
    torchrun("replay_gradients.py", ranks, job | {"setups": setups(ranks)}, tmp_path)
    for name, of_worker in setups(ranks).items():
        check_gradients(name, of_worker, tmp_path, expected)
    if ranks == 1:
        check_updates_of_a_step(json.loads((tmp_path / "updates.json").read_text()))


def check_gradients(name: str, of_worker: dict[str, Any], folder: Path, expected: Expected) -> None:
    """Every case of a setup: gradient, its norm, and the metrics of the ratios."""
    changes = load_file(folder / f"{name}.safetensors")
    metrics = json.loads((folder / f"{name}.json").read_text())
    aggregate, on_policy = of_worker["aggregate"], of_worker["on_policy"]
    for case, replay in of_worker["cases"].items():
        settings = ReplayConfig.from_dict(replay)
        wanted = expected.gradient(settings, aggregate, on_policy)
        found = [changes[f"{case}/{key}"].double().flatten() / -LEARNING_RATE for key in expected.parameters]
        assert float((torch.cat(found) - wanted).norm() / wanted.norm()) < 1e-5, case
        assert metrics[case]["replay/grad_norm"] == pytest.approx(float(wanted.norm()), rel=1e-4)
        if on_policy:
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


def check_updates_of_a_step(seen: dict[str, Any]) -> None:
    """They share one round trip of offloading, which changes no parameter; the schedule moves once."""
    once = seen["verl_once"]["moves"]
    assert once, "offloading is on"
    assert seen["replay"]["moves"] == once
    assert seen["apart"]["moves"] == 3 * once
    assert seen["replay"]["parameters"] == seen["apart"]["parameters"]
    assert seen["replay"]["parameters"] != seen["verl_once"]["parameters"]
    rate = RATE * (1 + math.cos(math.pi / STEPS)) / 2
    for name, of_step in seen.items():
        assert of_step["schedule"] == 1, name
        assert of_step["rates"] == pytest.approx([rate] * len(of_step["rates"])), name
