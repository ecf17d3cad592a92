"""Stage 2 on the real stack: Ray, verl's trainer, FSDP2 and vLLM."""

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine.models import resolve_models
from recipe.rerule.runs.history import read_metrics, read_run
from tests.e2e.run_checks import (
    PROMPTS_A_STEP,
    assert_prompts_are_in_order,
    assert_replay_is_on,
    assert_same_model,
    assert_the_best_step_is_kept,
    assert_the_buffer_follows_its_records,
    few_rows,
    kill_engine,
    read_steps,
    stored_groups,
)
from tests.e2e.stack import PARITY, Command, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
LEARNING_RATE = 1e-3
STEPS = 20  # of the settings: a warning ends the run before
SAVED = 3  # the end of the first epoch


def test_two_ranks_are_killed_resumed_and_ended_by_a_warning(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two FSDP ranks and two vLLM engines, which are killed in step 4; the run goes on from step 3.

    It goes on with the epoch's order, the buffer and the gate, and with verl's tracker torn. By the reward
    nothing is a refusal: a warning says so after four steps with forget prompts, and health.stop_after ends
    the run. The best step by validation is kept in addition to the last.
    """
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=":")
    monkeypatch.setenv("RANK_ROWS", str(tmp_path))
    run_folder = tmp_path / "run"
    rows = few_rows(micro_world / "train.parquet", tmp_path / "train.parquet", SAVED * PROMPTS_A_STEP)
    # Two ranks share four of the five groups of an update.
    more = (
        f"data.train_files={rows} trainer.n_gpus_per_node=2 trainer.total_training_steps={STEPS} "
        f"trainer.save_freq={SAVED} trainer.test_freq={SAVED} trainer.val_before_train=true "
        f"trainer.resume_mode=auto trainer.max_actor_ckpt_to_keep=1 "
        f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE} "
        "actor_rollout_ref.model.external_lib=[recipe.rerule.training.agent_loop,rank_rows] "
        "replay.groups_per_update=5 health.stop_after=2"
    )
    arguments = stage2_arguments(micro_world, run_folder, *more.split(), PARITY)
    first = command("-m", "recipe.rerule.main", *arguments)
    first.wait_until(lambda: f"step {SAVED + 1}/{STEPS}" in first.output)
    kill_engine(first)
    assert "start: forget refused 0%, retain right" in first.output
    before = read_metrics(run_folder)
    assert (run_folder / "latest_checkpointed_iteration.txt").read_text() == str(SAVED)
    (run_folder / "latest_checkpointed_iteration.txt").write_text("")

    output = command("-m", "recipe.rerule.main", *arguments).finish()
    metrics = read_metrics(run_folder)
    last = max(metrics)
    assert sorted(metrics) == list(range(1, last + 1))
    assert before[SAVED]["replay/gate_open"] == 1
    assert_prompts_are_in_order(run_folder, rows, last)
    assert_the_buffer_follows_its_records(run_folder, last)

    assert_replay_is_on(metrics)
    assert_ranks_share_the_drawn_rows(run_folder, tmp_path, last)
    # Replayed groups have ratios clearly off 1, so a sync of weights left out would show as a difference of
    # that size between rollout and trainer probabilities.
    assert_same_model(metrics)
    replayed = [data for data in metrics.values() if data["replay/updates"]]
    assert max(data["replay/ratio_second_moment"] for data in replayed) > 1.01
    assert {data["replay/drawn_groups"] for data in replayed} == {4}

    assert 6 <= last < STEPS
    assert f"warning: step {last - 2}: 0% of the forget responses of the last 4 steps are" in output
    assert f"step {last - 1}: the run ends after step {last}, because health.stop_after is 2" in output
    run = read_run("run", run_folder)
    validations = run.validations
    means = run.validated.groupby("step")["mean_reward"].mean().to_dict()
    assert means == pytest.approx(validations["val-core/rerule/world/reward/mean@1"].to_dict(), abs=1e-5)
    assert sorted(means) == [step for step in range(last + 1) if step % SAVED == 0 or step == last]
    scores = validations["val-health/score"].drop(0).to_dict()
    best = assert_the_best_step_is_kept(run_folder, scores, last)
    models = resolve_models([f"a={run_folder}", f"b={run_folder}@last"])
    assert [model.step for model in models] == [best, last]


def assert_ranks_share_the_drawn_rows(run_folder: Path, rows: Path, last: int) -> None:
    """In the last update each rank gets half of the drawn groups' rows, and together they get all."""
    (drawn,) = read_steps(run_folder, "replay.jsonl")[last]["drawn"]
    stored = stored_groups(run_folder, last)
    expected: Counter[tuple[int, ...]] = Counter()
    for group in (stored[index, step] for index, step in drawn):
        ids = group.prompt_ids.tolist()
        expected.update((*ids, *part.tolist()) for part in group.response_ids.split(group.lengths.tolist()))
    found = []
    for rank in (0, 1):
        line = (rows / f"rank_{rank}.jsonl").read_text().splitlines()[-1]
        found.append(Counter(map(tuple, json.loads(line))))
    assert [one.total() for one in found] == [4 * 4 // 2] * 2
    assert found[0] + found[1] == expected


ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
OPTIONS = {
    "ppo": "algorithm.adv_estimator=gae replay.sampling=uniform replay.store_after_start=false",
    "rloo": "algorithm.adv_estimator=rloo trainer.n_gpus_per_node=2 replay.updates_per_step=2 "
    "replay.sampling=uniform replay.threshold_rule=quantile replay.threshold=null "
    "replay.threshold_quantile=0.9 replay.importance.level=sequence replay.importance.clip_high=1.05",
    "equal_updates": "algorithm.adv_estimator=reinforce_plus_plus_baseline replay.update=on_policy "
    f"{ACTOR}.use_dynamic_bsz=false {ACTOR}.ppo_micro_batch_size_per_gpu=4 "
    f"{ACTOR}.fsdp_config.param_offload=true {ACTOR}.fsdp_config.optimizer_offload=true "
    f"{MODEL}.lora_rank=4 {MODEL}.lora_alpha=8 {MODEL}.lora.merge=true {ACTOR}.optim.lr=1e-2",
}
V1 = ("ppo", "rloo")
"""The options that are run on verl's V1 trainer, and the others on V0."""


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIONS)
def test_other_estimators_and_set_ups_run(
    name: str, command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """PPO with a critic, two ranks, several updates a step, an offloaded adapter; sampling follows each."""
    run_folder = tmp_path / "run"
    more = f"trainer.use_v1={str(name in V1).lower()} trainer.total_training_steps=5 {OPTIONS[name]}"
    rate = f"{ACTOR}.optim.lr={LEARNING_RATE}"
    arguments = stage2_arguments(micro_world, run_folder, rate, *more.split(), PARITY)
    command("-m", "recipe.rerule.main", *arguments).finish()
    metrics = read_metrics(run_folder)
    updates = [data["replay/updates"] for _, data in sorted(metrics.items())]
    a_step = 2.0 if name == "rloo" else 1.0
    assert updates[-1] == a_step
    assert updates == sorted(updates)
    # As merged weights come to the engine, they are rounded (test_v1).
    assert_same_model(metrics, 1e-4 if "lora" in OPTIONS[name] else 1e-6)
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
