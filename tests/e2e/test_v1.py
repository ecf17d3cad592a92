"""Stage 2 on verl's V1 trainer: Ray, TransferQueue, FSDP2 and vLLM."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.rerule.replay.state import read_groups, read_record
from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.history import read_metrics
from tests.e2e.run_checks import (
    PROMPTS_A_STEP,
    assert_a_finished_run_does_nothing_more,
    assert_prompts_are_in_order,
    assert_replay_is_on,
    assert_same_model,
    assert_the_buffer_follows_its_records,
    few_rows,
    kill_engine,
    read_steps,
)
from tests.e2e.stack import Command, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

USE_V1 = "trainer.use_v1=true"
# By the benchmark's own reward no group of so small a model may have different rewards, by chance.
OTHER_REWARD = f"reward.custom_reward_function.path={Path(__file__).with_name('parity_reward.py')}"
EPOCH_STEPS = 3
STEPS = 6


def test_lora_with_replay(command: Callable[..., Command], micro_world: Path, tmp_path: Path) -> None:
    """An adapter is trained, replayed and saved; the engine samples from the model with it.

    Steps 2 and 3 are validated: the better one is kept in addition to the last.
    """
    run_folder, steps, adapter = tmp_path / "run", 3, "actor_rollout_ref.model"
    arguments = stage2_arguments(
        micro_world,
        run_folder,
        USE_V1,
        f"{adapter}.lora_rank=4",
        f"{adapter}.lora_alpha=8",
        f"{adapter}.lora.merge=true",
        f"trainer.total_training_steps={steps}",
        "actor_rollout_ref.actor.optim.lr=1e-2",
        "trainer.test_freq=2",
        OTHER_REWARD,
    )
    run = command("-m", "recipe.rerule.main", *arguments)
    assert run.wait() == 0, run.output[-3000:]
    metrics = read_metrics(run_folder)
    assert sorted(metrics) == list(range(1, steps + 1))
    scores = {step: metrics[step]["val-health/score"] for step in (2, 3)}
    noted = checkpoints.best(run_folder)
    assert noted is not None
    assert (noted.step, noted.score) == (max(scores, key=lambda step: scores[step]), max(scores.values()))
    assert {path.name for path in run_folder.glob("global_step_*")} == {
        f"global_step_{step}" for step in (noted.step, steps)
    }
    assert_replay_is_on(metrics)
    assert metrics[steps]["replay/drawn_groups"] == 4
    assert {data["replay/short_groups"] for data in metrics.values()} == {0}
    assert_same_model(metrics, 1e-4)
    assert (
        max(data["replay/ratio_second_moment"] for data in metrics.values() if data["replay/updates"]) > 1.001
    )
    assert_the_buffer_follows_its_records(run_folder, steps)
    last = run_folder / f"global_step_{steps}"
    assert checkpoints.newest_complete(run_folder) == steps
    named = set(json.loads((last / "complete.json").read_text())["files"])
    assert {"data.pt", "actor/lora_train_meta.json"} <= named, named
    assert any(name.startswith("replay/") for name in named)
    kept = json.loads((run_folder / "records" / "metrics_at_save.jsonl").read_text().splitlines()[-1])
    assert kept["step"] == steps
    logged = metrics[steps]
    for name in (
        "response_length/mean",
        "critic/score/mean",
        "actor/pg_loss",
        "replay/size",
        "reward/forget/mean",
    ):
        assert kept["data"][name] == pytest.approx(logged[name], rel=1e-5), name


@pytest.mark.full
def test_a_killed_run_goes_on_with_the_draws_of_one_never_stopped(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """A dead engine ends the run within a minute; the run is resumed at the end of an epoch.

    What is drawn then follows from the order of the prompts alone, since every group is stored.
    """
    rows = tmp_path / "train.parquet"
    indices = few_rows(micro_world / "train.parquet", rows, EPOCH_STEPS * PROMPTS_A_STEP)

    def arguments(run_folder: Path, *more: str) -> list[str]:
        return stage2_arguments(
            micro_world,
            run_folder,
            USE_V1,
            f"data.train_files={rows}",
            f"trainer.total_training_steps={STEPS}",
            f"trainer.save_freq={EPOCH_STEPS}",
            "replay.admission=all",
            "replay.updates_per_step=2",
            *more,
        )

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run = command("-m", "recipe.rerule.main", *arguments(whole))
    assert run.wait() == 0, run.output[-3000:]

    first = command("-m", "recipe.rerule.main", *arguments(stopped))
    first.wait_until(lambda: f"step {EPOCH_STEPS + 1}/{STEPS}" in first.output)
    kill_engine(first)
    killed_at = time.monotonic()
    assert first.wait(60) == 1
    assert time.monotonic() - killed_at < 60
    (error,) = [line for line in first.output.splitlines() if line.startswith("error: ")]
    assert "engine" in error.lower()
    assert checkpoints.newest_complete(stopped) == EPOCH_STEPS

    second = command("-m", "recipe.rerule.main", *arguments(stopped, "trainer.resume_mode=auto"))
    assert second.wait() == 0, second.output[-3000:]
    assert_prompts_are_in_order(stopped, indices, STEPS)
    assert_the_buffer_follows_its_records(stopped, STEPS)
    expected, found = (read_steps(folder, "replay.jsonl") for folder in (whole, stopped))
    assert any(record["drawn"] for record in expected.values())
    for step in range(1, STEPS + 1):
        for part in ("stored", "evicted", "drawn"):
            assert found[step][part] == expected[step][part], (step, part)

    assert_a_finished_run_does_nothing_more(command, stopped, arguments(stopped))


@pytest.mark.full
def test_groups_without_signal_are_filtered_beside_replay(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    run_folder = tmp_path / "run"
    arguments = stage2_arguments(
        micro_world,
        run_folder,
        USE_V1,
        "trainer.total_training_steps=4",
        "algorithm.filter_groups.enable=true",
        # Of two responses every second pair has one reward; of four, no group of a run may.
        "actor_rollout_ref.rollout.n=2",
        OTHER_REWARD,
        "replay.admission=all",
    )
    run = command("-m", "recipe.rerule.main", *arguments)
    assert run.wait() == 0, run.output[-3000:]
    metrics = read_metrics(run_folder)
    assert sum(data.get("training/filter_groups/evicted_samples", 0) for data in metrics.values()) > 0
    assert {data["replay/zero_signal_share"] for data in metrics.values()} == {0}
    assert [data["replay/admitted"] for data in metrics.values()] == [PROMPTS_A_STEP] * 4
    for record in read_steps(run_folder, "prompts.jsonl").values():
        assert all(len(set(prompt["rewards"])) > 1 for prompt in record["prompts"])
    folder = run_folder / "global_step_4" / "replay"
    assert all(group.group().has_signal for group in read_groups(folder, read_record(folder)))
    assert_replay_is_on(metrics)
