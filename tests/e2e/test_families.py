"""Each family of models through stage 1 and stage 2 with replay on the real stack."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from data_prep.world.splits import make_world
from recipe.rerule.runs.history import read_metrics
from tests.e2e.run_checks import assert_same_model
from tests.e2e.stack import PARITY, Command, stage2_arguments
from tests.families.made import FAMILIES, Family, save
from tests.made_worlds import MICRO

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1800)]

STEPS = 3  # replay from the second step on, so that the third samples from replayed weights


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_family_goes_through_both_stages(
    family: Family, command: Callable[..., Command], micro_world: Path, tmp_path: Path
) -> None:
    given = [f"+data.apply_chat_template_kwargs.{name}={value}" for name, value in family.arguments.items()]
    made = save(family, tmp_path / "made", [text for pair in make_world(MICRO).base_pairs for text in pair])
    stage1, run = tmp_path / "stage1", tmp_path / "run"
    command(
        *("-m", "recipe.rerule.sft", "experiment=tiny", f"model.path={made}", *given),
        *(f"data.train_files={micro_world / 'sft.parquet'}", "data.max_length=192"),
        *(f"trainer.default_local_dir={stage1}", "trainer.logger=[file]"),
    ).finish()
    assert_changed(made, stage1 / "model")
    more = (
        f"actor_rollout_ref.model.path={stage1}/model data.max_prompt_length=160 "
        f"data.max_response_length=16 trainer.total_training_steps={STEPS} "
        "actor_rollout_ref.actor.optim.lr=1e-3 replay.min_groups=4"
    )
    stage2 = stage2_arguments(micro_world, run, *more.split(), PARITY, *given)
    command("-m", "recipe.rerule.main", *stage2).finish(800)
    assert_changed(stage1 / "model", run / f"global_step_{STEPS}" / "actor" / "huggingface")

    metrics = read_metrics(run)
    assert [metrics[step]["replay/updates"] for step in range(1, STEPS + 1)] == [0, 1, 1]
    for step in (2, 3):
        assert metrics[step]["replay/drawn_groups"] == 4
        assert metrics[step]["replay/drawn_zero_signal"] < 4
        assert metrics[step]["replay/grad_norm"] > 0
    assert_same_model(metrics)  # p is about 0.003
    assert min(data["training/rollout_actor_probs_pearson_corr"] for data in metrics.values()) > 0.9999


def assert_changed(before: Path, after: Path) -> None:
    """Every tensor of a model has other values, and there are the same ones."""
    old, new = (
        dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
        for folder in (before, after)
    )
    assert old.keys() == new.keys()
    assert [name for name in old if torch.equal(old[name], new[name])] == []
