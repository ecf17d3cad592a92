"""Stage 2 on verl's V1 trainer: Ray, TransferQueue, FSDP2 and vLLM."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.rerule.runs import checkpoints
from recipe.rerule.runs.history import read_metrics
from tests.e2e.run_checks import (
    PROMPTS_A_STEP,
    assert_prompts_are_in_order,
    assert_replay_is_on,
    assert_same_model,
    assert_the_buffer_follows_its_records,
    few_rows,
    kill_engine,
    read_steps,
    stored_groups,
)
from tests.e2e.stack import PARITY, Command, stage2_arguments

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

USE_V1 = "trainer.use_v1=true"


def test_lora_with_replay_beside_filtered_groups(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """An adapter is trained, replayed and saved; the engine samples from the model with it.

    Groups without signal are replaced.
    """
    run_folder, steps, adapter = tmp_path / "run", 3, "actor_rollout_ref.model"
    # Of two responses every second pair has one reward; of four, no group of a run may.
    more = (
        f"{USE_V1} {adapter}.lora_rank=4 {adapter}.lora_alpha=8 {adapter}.lora.merge=true "
        f"trainer.total_training_steps={steps} actor_rollout_ref.actor.optim.lr=1e-2 "
        f"algorithm.filter_groups.enable=true actor_rollout_ref.rollout.n=2 replay.admission=all"
    )
    arguments = stage2_arguments(micro_world, run_folder, *more.split(), PARITY)
    command("-m", "recipe.rerule.main", *arguments).finish()
    metrics = read_metrics(run_folder)
    assert sorted(metrics) == list(range(1, steps + 1))
    assert sum(data.get("training/filter_groups/evicted_samples", 0) for data in metrics.values()) > 0
    assert {data["replay/zero_signal_share"] for data in metrics.values()} == {0}
    assert [data["replay/admitted"] for data in metrics.values()] == [PROMPTS_A_STEP] * steps
    for record in read_steps(run_folder, "prompts.jsonl").values():
        assert all(len(set(prompt["rewards"])) > 1 for prompt in record["prompts"])
    assert all(group.has_signal for group in stored_groups(run_folder, steps).values())

    assert_replay_is_on(metrics)
    assert metrics[steps]["replay/drawn_groups"] == 4
    assert {data["replay/short_groups"] for data in metrics.values()} == {0}
    assert_same_model(metrics, 1e-4)
    assert max(data.get("replay/ratio_second_moment", 0) for data in metrics.values()) > 1.001
    assert_the_buffer_follows_its_records(run_folder, steps)
    last = run_folder / f"global_step_{steps}"
    assert checkpoints.newest_complete(run_folder) == steps
    named = set(json.loads((last / "complete.json").read_text())["files"])
    assert {"data.pt", "actor/lora_train_meta.json"} <= named, named
    assert any(name.startswith("replay/") for name in named)
    kept_metrics = json.loads((run_folder / "records" / "metrics_at_save.jsonl").read_text().splitlines()[-1])
    assert kept_metrics["step"] == steps
    # Filtering may leave groups of one side alone.
    rewards = [name for name in metrics[steps] if re.fullmatch("reward/(forget|retain)/mean", name)]
    assert rewards
    for name in ("critic/score/mean", "actor/pg_loss", "replay/size", *rewards):
        assert kept_metrics["data"][name] == pytest.approx(metrics[steps][name], rel=1e-5), name


@pytest.mark.full
def test_a_killed_run_goes_on(command: Callable[..., Command], micro_world: Path, tmp_path: Path) -> None:
    """Engines that die end the run within a minute; it goes on at the end of an epoch, with its buffer."""
    run_folder, saved, steps = tmp_path / "run", 3, 6
    rows = few_rows(micro_world / "train.parquet", tmp_path / "train.parquet", saved * PROMPTS_A_STEP)
    more = (
        f"{USE_V1} data.train_files={rows} trainer.total_training_steps={steps} trainer.save_freq={saved} "
        "trainer.resume_mode=auto replay.admission=all replay.updates_per_step=2"
    )
    arguments = stage2_arguments(micro_world, run_folder, *more.split())
    first = command("-m", "recipe.rerule.main", *arguments)
    first.wait_until(lambda: f"step {saved + 1}/{steps}" in first.output)
    kill_engine(first)
    assert checkpoints.newest_complete(run_folder) == saved
    command("-m", "recipe.rerule.main", *arguments).finish()
    assert_prompts_are_in_order(run_folder, rows, steps)
    assert_the_buffer_follows_its_records(run_folder, steps)
    assert read_metrics(run_folder)[steps]["replay/updates"] == 2
