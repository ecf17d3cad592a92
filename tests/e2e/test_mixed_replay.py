"""The mixed update on the real stack: its gradient through the worker, and a run that is resumed."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recipe.rerule.replay import ReplayConfig, RolloutGroup
from recipe.rerule.replay.state import read_groups, read_record
from recipe.rerule.runs.history import read_metrics
from tests.e2e.replay_gradients import LEARNING_RATE, write_groups
from tests.e2e.run_checks import assert_same_model, few_rows, read_steps
from tests.e2e.stack import ROOT, Command, stage2_arguments
from tests.e2e.test_replay_gradients import (
    BY_TOKENS,
    GROUPS,
    KL_COEFFICIENT,
    OF_ROLLOUTS,
    Expected,
    Tokens,
    float64_model,
    micro_batches,
    random_group,
    valid_tokens,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ACTOR = "actor_rollout_ref.actor"
OWN = 2  # groups of the gradient check that are the step's own; the others are stored
COMMON = {"update": "mixed"}
CASES: dict[str, dict[str, Any]] = {
    "token-clip-normalized-kl-share": COMMON,
    "token-clip-plain-no_kl-share": {**COMMON, "use_kl_loss": False, "importance": {"normalize": False}},
    "sequence-clip-normalized-kl-0.5": {**COMMON, "mixed_weight": 0.5, "importance": {"level": "sequence"}},
    "token-second_moment-normalized-kl-0.2": {
        **COMMON,
        "mixed_weight": 0.2,
        "importance": {"truncation": "second_moment", "max_second_moment": 1.02},
    },
    "rollouts": {**COMMON, **OF_ROLLOUTS, "groups_per_update": 1},
}
SETUPS: dict[str, tuple[list[str], str]] = {
    "micro1": (micro_batches(1), "token-mean"),
    "micro2": (micro_batches(2), "token-mean"),
    "all_rows": (micro_batches(99), "token-mean"),
    "by_tokens": (BY_TOKENS, "token-mean"),
    "seq_sum": (micro_batches(2), "seq-mean-token-sum"),
    "seq_mean": (micro_batches(2), "seq-mean-token-mean"),
}


class ExpectedMixed:
    """Gradients from the documented formula; each is worked out once."""

    def __init__(self, folder: Path, groups: list[RolloutGroup]) -> None:
        model = float64_model(folder)
        self.parameters = dict(model.named_parameters())
        self.own = valid_tokens(model, groups[:OWN])
        # `Expected` has the weights of the stored rows, among themselves.
        self.stored = object.__new__(Expected)
        self.stored.tokens = valid_tokens(model, groups[OWN:])
        self._gradients: dict[Any, torch.Tensor] = {}

    def of(self, settings: ReplayConfig) -> ExpectedMixed:
        """Of the stored rows that are drawn."""
        few = copy.copy(self)
        few.stored, few._gradients = self.stored.of(settings), {}
        return few if settings.unit == "rollout" else self

    def gradient(self, settings: ReplayConfig, aggregate: str) -> torch.Tensor:
        """Sum over tokens of w_part * share * (-rho~ A + KL's slope) * grad log pi; by name, end to end."""
        key = (settings, aggregate)
        if key not in self._gradients:
            slopes = torch.cat(
                self._own_slopes(settings, aggregate) + self._stored_slopes(settings, aggregate)
            )
            log_probs = torch.cat(self.own.log_probs + self.stored.tokens.log_probs)
            parts = torch.autograd.grad(log_probs, list(self.parameters.values()), slopes, retain_graph=True)
            by_name = dict(zip(self.parameters, parts, strict=True))
            self._gradients[key] = torch.cat([by_name[name].flatten() for name in sorted(by_name)])
        return self._gradients[key]

    def _own_slopes(self, settings: ReplayConfig, aggregate: str) -> list[torch.Tensor]:
        weights = [torch.ones_like(row) for row in self.own.advantages]  # the policy has not moved
        return self._slopes(self.own, weights, True, aggregate, self._weights(settings, aggregate)[0])

    def _stored_slopes(self, settings: ReplayConfig, aggregate: str) -> list[torch.Tensor]:
        weights, of_part = self.stored.weights(settings.importance), self._weights(settings, aggregate)[1]
        return self._slopes(self.stored.tokens, weights, settings.use_kl_loss, aggregate, of_part)

    def _slopes(
        self, tokens: Tokens, weights: list[torch.Tensor], kl: bool, aggregate: str, of_part: float
    ) -> list[torch.Tensor]:
        lengths = [len(row) for row in tokens.old]
        found = []
        for row, weight in enumerate(weights):
            slope = -weight * tokens.advantages[row]
            if kl:
                slope = slope + KL_COEFFICIENT * (
                    1 - (tokens.ref[row] - tokens.log_probs[row].detach()).exp()
                )
            share = {
                "token-mean": 1 / sum(lengths),
                "seq-mean-token-sum": 1 / len(lengths),
                "seq-mean-token-mean": 1 / (len(lengths) * lengths[row]),
            }[aggregate]
            found.append(of_part * share * slope)
        return found

    def _weights(self, settings: ReplayConfig, aggregate: str) -> tuple[float, float]:
        if settings.mixed_weight is not None:
            return 1 - settings.mixed_weight, settings.mixed_weight
        rows = [len(self.own.old), len(self.stored.tokens.old)]
        tokens = [sum(len(row) for row in part) for part in (self.own.old, self.stored.tokens.old)]
        sizes = tokens if aggregate == "token-mean" else rows
        return sizes[0] / sum(sizes), sizes[1] / sum(sizes)


@pytest.fixture(scope="module")
def groups(micro_world: Path) -> list[RolloutGroup]:
    generator = torch.Generator().manual_seed(0)
    model = float64_model(micro_world / "model")
    return [random_group(model, number, generator) for number in range(GROUPS)]


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_gradient_is_that_of_both_losses_with_their_weights(
    ranks: int, micro_world: Path, groups: list[RolloutGroup], tmp_path: Path
) -> None:
    """Through verl's own `_update_actor`, for any micro-batch size, number of ranks and aggregation."""
    write_groups(groups, tmp_path / "groups.safetensors")
    cases = [{"name": name, "replay": replay} for name, replay in CASES.items()]
    setups = [
        {"name": name, "overrides": [*overrides, f"{ACTOR}.loss_agg_mode={mode}"], "cases": cases}
        for name, (overrides, mode) in SETUPS.items()
    ]
    places = {"model": micro_world / "model", "groups": tmp_path / "groups.safetensors", "out": tmp_path}
    job = {name: str(path) for name, path in places.items()} | {"setups": setups, "own": OWN}
    (tmp_path / "job.json").write_text(json.dumps(job))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, ROOT / "tests" / "e2e" / "mixed_gradients.py", tmp_path / "job.json"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = ExpectedMixed(micro_world / "model", groups)
    for name, (_, mode) in SETUPS.items():
        check(tmp_path, name, mode, expected)


def check(folder: Path, name: str, mode: str, expected: ExpectedMixed) -> None:
    changes = load_file(folder / f"{name}.safetensors")
    metrics = json.loads((folder / f"{name}.json").read_text())
    for case, replay in CASES.items():
        settings = ReplayConfig.from_dict(replay)
        of_drawn = expected.of(settings)
        wanted = of_drawn.gradient(settings, mode)
        found = torch.cat(
            [changes[f"{case}/{n}"].double().flatten() / -LEARNING_RATE for n in sorted(expected.parameters)]
        )
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5, (name, case)
        assert metrics[case]["replay/grad_norm"] == pytest.approx(float(wanted.norm()), rel=1e-4)
        assert metrics[case]["replay/mixed_weight"] == pytest.approx(of_drawn._weights(settings, mode)[1])
        of_ratios = of_drawn.stored.metrics(settings.importance)
        assert {key: metrics[case][key] for key in of_ratios} == pytest.approx(of_ratios, rel=1e-4), case


STEPS, SAVED_STEP = 6, 3
RESUMED = [
    # By prompt alone, so that what is stored and drawn does not depend on what was sampled.
    "replay.admission=all",
    "replay.require_signal=false",
    "replay.update=mixed",
    "replay.mixed_places=unsampled",
    "replay.fresh_share=0.5",
    "replay.min_groups=4",
    "replay.max_staleness=3",
    "trainer.balance_batch=false",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.save_freq={SAVED_STEP}",
    "trainer.total_epochs=3",
    "actor_rollout_ref.actor.optim.lr=1e-3",
]


UNITS = {
    "group": [],
    "rollout": ["replay.unit=rollout", "replay.sampling=highest", "replay.priority_use_half_life=1"],
}
ROLLOUTS = {"group": 1, "rollout": 2}
"""How many of a unit take the place of a group of two responses."""


@pytest.mark.full
def test_a_resumed_run_samples_and_draws_as_one_never_stopped(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """Half of the prompts are sampled from step 2 on; a copy resumed at the end of an epoch does the same."""
    few_rows(micro_world / "train.parquet", tmp_path / "train.parquet", 12)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"

    def arguments(folder: Path) -> list[str]:
        return stage2_arguments(
            micro_world, folder, f"data.train_files={tmp_path / 'train.parquet'}", *RESUMED
        )

    first = command("-m", "recipe.rerule.main", *arguments(whole))
    assert first.wait(600) == 0, first.output[-3000:]
    metrics = read_metrics(whole)
    assert [metrics[step]["replay/fresh_groups"] for step in sorted(metrics)] == [4, 2, 2, 2, 2, 2]
    assert [metrics[step]["replay/drawn_groups"] for step in sorted(metrics)] == [0, 2, 2, 2, 2, 2]
    assert [metrics[step]["replay/updates"] for step in sorted(metrics)] == [0, 1, 1, 1, 1, 1]
    assert_same_model(metrics)
    for step in range(2, STEPS + 1):
        assert 0 < metrics[step]["replay/mixed_weight"] < 1
        assert metrics[step]["actor/grad_norm"] == metrics[step]["replay/grad_norm"] > 0
    assert max(data.get("replay/ratio_second_moment", 1.0) for data in metrics.values()) > 1.01

    copy_checkpoint(whole, resumed)
    second = command("-m", "recipe.rerule.main", *arguments(resumed), "trainer.resume_mode=auto")
    assert second.wait(600) == 0, second.output[-3000:]
    own, wanted = (read_steps(folder, "replay.jsonl") for folder in (resumed, whole))
    prompts, wanted_prompts = (read_steps(folder, "prompts.jsonl") for folder in (resumed, whole))
    for step in range(SAVED_STEP + 1, STEPS + 1):
        for part in ("stored", "drawn", "evicted", "size", "gate_open"):
            assert own[step][part] == wanted[step][part], (step, part)
        assert indices(prompts[step]) == indices(wanted_prompts[step]), step
    assert stored_keys(resumed) == stored_keys(whole)


def copy_checkpoint(run_folder: Path, target: Path) -> None:
    """A run folder as a kill after SAVED_STEP leaves it."""
    shutil.copytree(run_folder, target)
    shutil.rmtree(target / f"global_step_{STEPS}")
    (target / "latest_checkpointed_iteration.txt").write_text(str(SAVED_STEP))


def indices(record: dict[str, Any]) -> list[int]:
    return sorted(prompt["index"] for prompt in record["prompts"])


def stored_keys(run_folder: Path) -> list[tuple[int, int, int]]:
    folder = run_folder / f"global_step_{STEPS}" / "replay"
    groups = read_groups(folder, read_record(folder))
    return [(group.prompt_index, group.step, group.reuse_count) for group in groups]


@pytest.mark.full
@pytest.mark.parametrize("unit", UNITS)
def test_groups_without_signal_give_up_their_places_in_a_run(
    unit: str, command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """Two logical devices; stored groups or single rollouts take the places, and the batch keeps its size."""
    run_folder = tmp_path / "run"
    arguments = stage2_arguments(
        micro_world,
        run_folder,
        "trainer.n_gpus_per_node=2",
        # Of two responses, half of the groups have no signal by the reward below; both devices need one each.
        "actor_rollout_ref.rollout.n=2",
        "trainer.total_training_steps=8",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        f"reward.custom_reward_function.path={Path(__file__).with_name('parity_reward.py')}",
        "replay.admission=all",
        "replay.update=mixed",
        "replay.mixed_places=no_signal",
        "replay.mixed_weight=0.5",
        *UNITS[unit],
    )
    run = command("-m", "recipe.rerule.main", *arguments)
    assert run.wait(600) == 0, run.output[-3000:]
    metrics = read_metrics(run_folder)
    opened = [data for data in metrics.values() if data["replay/gate_open"]]
    assert any(data["replay/drawn_groups"] for data in opened)
    for data in opened:
        drawn = data[f"replay/drawn_{unit}s"] if data["replay/drawn_groups"] else 0
        assert data["replay/left_out_groups"] * ROLLOUTS[unit] == drawn
        assert data["replay/left_out_groups"] % 2 == 0
    assert_same_model(metrics)
