"""Stage 2 on the real stack: Ray, verl's trainer, FSDP2 and vLLM."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine.models import resolve_models
from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.history import read_metrics, read_validations
from tests.e2e.run_checks import (
    PROMPTS_A_STEP,
    assert_a_finished_run_does_nothing_more,
    assert_prompts_are_in_order,
    assert_records_are_complete,
    assert_replay_is_on,
    assert_same_model,
    assert_the_buffer_follows_its_records,
    few_rows,
    kill_engine,
)
from tests.e2e.stack import Command, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

LEARNING_RATE = 1e-3
STEPS = 8
SAVED_STEP = 3
EPOCH_STEPS = 3  # the run is killed and resumed at the end of its first epoch


def assert_sampling_follows_training(metrics: dict[int, dict[str, float]]) -> None:
    """The engine samples from the model as it is after both updates.

    Replayed groups of earlier steps have ratios clearly off 1, so a sync left out would show as a difference
    of that size between rollout and trainer probabilities.
    """
    assert_same_model(metrics)
    moved = [data["replay/ratio_second_moment"] for data in metrics.values() if data["replay/updates"]]
    assert max(moved) > 1.01


def test_run_is_killed_saved_and_resumed(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """A dead engine ends the run within a minute, with the reason; the checkpoint before it goes on.

    The run is resumed at the end of an epoch, with verl's tracker torn, and ends in the middle of one.
    """
    run_folder = tmp_path / "run"
    indices = few_rows(
        micro_world / "train.parquet", tmp_path / "train.parquet", EPOCH_STEPS * PROMPTS_A_STEP
    )
    arguments = stage2_arguments(
        micro_world,
        run_folder,
        f"data.train_files={tmp_path / 'train.parquet'}",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.save_freq={SAVED_STEP}",
        f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
        "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
    )
    first = command("-m", "recipe.rerule.main", *arguments)
    first.wait_until(lambda: f"step {SAVED_STEP + 1}/{STEPS}" in first.output)
    kill_engine(first)
    killed_at = time.monotonic()
    assert first.wait(60) == 1
    assert time.monotonic() - killed_at < 60
    error = [line for line in first.output.splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    assert "engine" in error[0].lower()
    assert (run_folder / "latest_checkpointed_iteration.txt").read_text() == str(SAVED_STEP)
    before = read_metrics(run_folder)
    (run_folder / "latest_checkpointed_iteration.txt").write_text("")

    second = command("-m", "recipe.rerule.main", *arguments, "trainer.resume_mode=auto")
    assert second.wait() == 0, second.output[-3000:]
    assert f"says ''; going on from global_step_{SAVED_STEP}" in second.output
    resumed = read_metrics(run_folder)
    assert sorted(resumed) == list(range(1, STEPS + 1))
    after = resumed[SAVED_STEP + 1]
    grown = before[SAVED_STEP]["replay/size"] + after["replay/admitted"] - after["replay/evicted"]
    assert after["replay/size"] == grown
    assert before[SAVED_STEP]["replay/gate_open"] == 1

    assert_replay_is_on(resumed)
    assert_sampling_follows_training(resumed)
    for step, data in resumed.items():
        # One schedule step a training step, replay or not: cosine from LEARNING_RATE to 0 over STEPS.
        expected = LEARNING_RATE * (1 + math.cos(math.pi * step / STEPS)) / 2
        assert data["actor/lr"] == pytest.approx(expected, rel=1e-6)
    assert_records_are_complete(run_folder, tmp_path / "train.parquet", STEPS)
    assert_prompts_are_in_order(run_folder, indices, STEPS)
    assert_the_buffer_follows_its_records(run_folder, STEPS)
    assert (run_folder / f"global_step_{STEPS}" / "actor" / "huggingface" / "config.json").is_file()


def test_two_logical_devices(command: Callable[..., Command], micro_world: Path, tmp_path: Path) -> None:
    """Two FSDP ranks and two vLLM replicas: replay draws a multiple of the ranks, both engines follow.

    By the reward nothing is a refusal: a warning says so after four steps with forget prompts, and
    health.stop_after ends the run. The best step by validation is kept in addition to the last.
    """
    run_folder = tmp_path / "run"
    arguments = stage2_arguments(
        micro_world,
        run_folder,
        "trainer.n_gpus_per_node=2",
        "trainer.total_training_steps=20",
        f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
        "replay.groups_per_update=5",
        f"reward.custom_reward_function.path={Path(__file__).with_name('parity_reward.py')}",
        "trainer.test_freq=3",
        "trainer.val_before_train=true",
        "health.stop_after=1",
    )
    run = command("-m", "recipe.rerule.main", *arguments)
    assert run.wait() == 0, run.output[-3000:]
    metrics = read_metrics(run_folder)
    last = max(metrics)
    assert_replay_is_on(metrics)
    assert_sampling_follows_training(metrics)
    assert {data["replay/drawn_groups"] for data in metrics.values() if data["replay/updates"]} == {4}
    for side in ("forget", "retain"):
        tokens = [data[f"tokens/{side}/mean"] for data in metrics.values() if f"tokens/{side}/mean" in data]
        assert tokens
        assert all(0 < mean <= 24 for mean in tokens)

    assert 5 <= last < 20
    assert "start: forget refused 0%, retain right" in run.output
    assert f"warning: step {last - 1}: 0% of the forget responses of the last 4 steps are" in run.output
    assert f"step {last - 1}: the run ends after step {last}, because health.stop_after is 1" in run.output
    validations = read_validations(run_folder)
    assert sorted(validations) == [step for step in range(last + 1) if step % 3 == 0 or step == last]
    scores = {step: data["val-health/score"] for step, data in validations.items() if step}
    noted = checkpoints.best(run_folder)
    assert noted is not None
    assert (noted.step, noted.score) == (max(scores, key=lambda step: scores[step]), max(scores.values()))
    assert {path.name for path in run_folder.glob("global_step_*")} == {
        f"global_step_{step}" for step in (noted.step, last)
    }
    assert [model.step for model in resolve_models([f"a={run_folder}", f"b={run_folder}@last"])] == [
        noted.step,
        last,
    ]


def test_without_replay_it_is_plain_rule(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """replay.enable=false: the worker calls of verl's RayPPOTrainer, with the same data (invariant 1)."""
    run_folder = tmp_path / "run"
    script = Path(__file__).parent / "plain_rule.py"
    arguments = stage2_arguments(
        micro_world, run_folder, "replay.enable=false", "trainer.total_training_steps=2"
    )
    run = command(script, tmp_path / "calls.json", *arguments)
    assert run.wait() == 0, run.output[-3000:]
    steps = json.loads((tmp_path / "calls.json").read_text())
    assert [step["ours"] for step in steps] == [["update_actor"]] * 2
    assert [step["verl"] for step in steps] == [["update_actor"]] * 2
    assert all(step["same_data"] for step in steps)
    assert not list(run_folder.glob("global_step_*/replay"))
    assert all("replay/updates" not in data for data in read_metrics(run_folder).values())


@pytest.mark.full
@pytest.mark.parametrize("victim", ["ray::WorkerDict", "ray::RewardLoopWorker"])
def test_a_killed_actor_ends_the_run_with_the_reason(
    victim: str, command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    run = command("-m", "recipe.rerule.main", *stage2_arguments(micro_world, tmp_path / "run"))
    run.wait_until(lambda: "step 2/" in run.output)
    killed = [process for process in run.descendants() if victim in " ".join(process.cmdline())]
    assert killed
    for process in killed:
        process.kill()
    assert run.wait(60) == 1
    assert any(line.startswith("error: ") for line in run.output.splitlines())


@pytest.mark.full
def test_with_learning_rate_zero_every_weight_is_one(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """Invariant 3 on the real stack: stored and current log-probs come from the same model."""
    run_folder = tmp_path / "run"
    arguments = stage2_arguments(
        micro_world, run_folder, "trainer.total_training_steps=4", "actor_rollout_ref.actor.optim.lr=0"
    )
    run = command("-m", "recipe.rerule.main", *arguments)
    assert run.wait() == 0, run.output[-3000:]
    replayed = [data for data in read_metrics(run_folder).values() if data["replay/updates"]]
    assert replayed
    for data in replayed:
        assert abs(data["replay/ratio_max"] - 1) < 1e-5
        assert abs(data["replay/ratio_mean"] - 1) < 1e-5
        assert data["replay/effective_sample_size"] > 1 - 1e-5
    assert_a_finished_run_does_nothing_more(command, run_folder, arguments)


OPTIONS = {
    "ppo": [
        "algorithm.adv_estimator=gae",
        "replay.sampling=uniform",
        "replay.store_after_start=false",
    ],
    "lora": [
        "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.model.lora.merge=true",
        "replay.admission=random",
        "replay.max_staleness=2",
    ],
    "rloo": [
        "algorithm.adv_estimator=rloo",
        "trainer.n_gpus_per_node=2",
        "replay.updates_per_step=2",
        "replay.sampling=uniform",
        "replay.threshold_rule=quantile",
        "replay.threshold=null",
        "replay.threshold_quantile=0.9",
        "replay.importance.level=sequence",
        "replay.importance.clip_high=1.05",
    ],
    "equal_updates": [
        "algorithm.adv_estimator=reinforce_plus_plus_baseline",
        "replay.update=on_policy",
        "actor_rollout_ref.actor.use_dynamic_bsz=false",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
    ],
}


MOST_DIFFERENCE = {"lora": 2e-5}
"""Of engine and trainer, where it is more. verl rounds merged weights to bfloat16 as it sends them to the
engine (`_merged_lora_per_tensor_param` of its FSDP engine). In a model of this size, with probabilities of
0.002, rounding all weights changes them by 3e-6 on average; runs showed up to 7e-6."""


@pytest.mark.full
@pytest.mark.parametrize("use_v1", ["false", "true"])
@pytest.mark.parametrize("name", OPTIONS)
def test_other_estimators_and_set_ups_run(
    name: str, use_v1: str, command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """PPO with a critic, LoRA, two ranks, offload, several updates a step; sampling follows each of them."""
    run_folder = tmp_path / "run"
    arguments = stage2_arguments(
        micro_world,
        run_folder,
        f"trainer.use_v1={use_v1}",
        "trainer.total_training_steps=5",
        f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
        # By the benchmark's own reward no group of so small a model may have different rewards, by chance.
        f"reward.custom_reward_function.path={Path(__file__).with_name('parity_reward.py')}",
        *OPTIONS[name],
    )
    run = command("-m", "recipe.rerule.main", *arguments)
    assert run.wait() == 0, run.output[-3000:]
    metrics = read_metrics(run_folder)
    updates = [data["replay/updates"] for _, data in sorted(metrics.items())]
    a_step = 2.0 if name == "rloo" else 1.0
    assert updates[-1] == a_step
    assert updates == sorted(updates)
    assert_same_model(metrics, MOST_DIFFERENCE.get(name, 1e-6))
    updated = [data for data in metrics.values() if data["replay/updates"]]
    assert all(math.isfinite(data["replay/grad_norm"]) for data in updated)
    with_signal = [data for data in updated if has_signal(data)]
    assert with_signal
    assert all(data["replay/grad_norm"] > 0 for data in with_signal)


def has_signal(data: dict[str, float]) -> bool:
    """Whether the step's last update was on a group with different rewards."""
    if data["replay/drawn_groups"]:
        return data["replay/drawn_zero_signal"] < data["replay/drawn_groups"]
    return data["replay/zero_signal_share"] < 1
