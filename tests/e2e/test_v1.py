"""Stage 2 on verl's V1 trainer: Ray, TransferQueue, FSDP2 and vLLM."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from recipe.rerule.runs import checkpoints, model_checks
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
MODEL = "actor_rollout_ref.model"
LORA = f"{MODEL}.lora_rank=4 {MODEL}.lora_alpha=8 {MODEL}.lora.merge=true"
LORA += " actor_rollout_ref.actor.optim.lr=1e-2"
MERGED = 1e-4
"""verl rounds merged weights to bfloat16 as it sends them to the engine (`_merged_lora_per_tensor_param`):
6e-6 was seen."""


def test_lora_with_replay_beside_filtered_groups(
    command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    """An adapter is trained, replayed and saved; the engine samples from the model with it.

    Groups without signal are replaced.
    """
    run_folder, steps = tmp_path / "run", 3
    # Of two responses every second pair has one reward; of four, no group of a run may.
    more = (
        f"{USE_V1} {LORA} trainer.total_training_steps={steps} algorithm.filter_groups.enable=true "
        "actor_rollout_ref.rollout.n=2 replay.admission=all"
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
    assert_same_model(metrics, MERGED)
    assert max(data.get("replay/ratio_second_moment", 0) for data in metrics.values()) > 1.001
    assert_the_buffer_follows_its_records(run_folder, steps)
    last = run_folder / f"global_step_{steps}"
    assert_the_adapter_on_its_base_is_the_merged_model(micro_world, last / "actor")
    assert checkpoints.newest_complete(run_folder) == steps
    named = set(json.loads((last / "complete.json").read_text())["files"])
    assert {"data.pt", "actor/lora_train_meta.json"} <= named, named
    assert any(name.startswith("replay/") for name in named)
    kept_metrics = json.loads((run_folder / "records" / "metrics_at_save.jsonl").read_text().splitlines()[-1])
    assert kept_metrics["step"] == steps
    # Filtering may leave groups of one side alone.
    rewards = [name for name in metrics[steps] if re.fullmatch("reward/(forget|retain)/mean", name)]
    assert rewards
    for name in ("actor/pg_loss", "replay/size", *rewards):
        assert kept_metrics["data"][name] == pytest.approx(metrics[steps][name], rel=1e-5), name


def assert_the_adapter_on_its_base_is_the_merged_model(world: Path, actor: Path) -> None:
    """By peft's own computation, in float32."""

    def logits(model: Any) -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=torch.arange(5, 45)[None]).logits

    assert model_checks.problem(actor / "huggingface") is None
    folders = (actor / "huggingface", world / "model")
    merged, base = (AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32) for one in folders)
    whole, alone = logits(merged), logits(base)
    assert (whole - alone).abs().max() > 1e-2, "the adapter was trained"
    with_adapter = logits(PeftModel.from_pretrained(base, actor / "lora_adapter"))
    torch.testing.assert_close(with_adapter, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_a_killed_run_goes_on(command: Callable[..., Command], micro_world: Path, tmp_path: Path) -> None:
    """Engines that die end the run within a minute; it goes on at the end of an epoch, with its buffer.

    And from its adapter: the KL to the start is 0 with a new one, and not with the one that was loaded.
    """
    run_folder, saved, steps = tmp_path / "run", 3, 6
    rows = few_rows(micro_world / "train.parquet", tmp_path / "train.parquet", saved * PROMPTS_A_STEP)
    more = (
        f"{USE_V1} {LORA} data.train_files={rows} trainer.total_training_steps={steps} "
        f"trainer.save_freq={saved} trainer.resume_mode=auto replay.admission=all replay.updates_per_step=2"
    )
    arguments = stage2_arguments(micro_world, run_folder, *more.split(), PARITY)
    first = command("-m", "recipe.rerule.main", *arguments)
    first.wait_until(lambda: f"step {saved + 1}/{steps}" in first.output)
    kill_engine(first)
    assert checkpoints.newest_complete(run_folder) == saved
    command("-m", "recipe.rerule.main", *arguments).finish()
    assert_prompts_are_in_order(run_folder, rows, steps)
    assert_the_buffer_follows_its_records(run_folder, steps)
    metrics = read_metrics(run_folder)
    assert metrics[steps]["replay/updates"] == 2
    assert abs(metrics[1]["actor/kl_loss"]) < 1e-6
    assert metrics[saved + 1]["actor/kl_loss"] > 1e-4
    assert_same_model(metrics, MERGED)
