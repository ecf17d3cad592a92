"""docs/running.md says of some combinations that they are refused before the start: each is, in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from data_prep.contract import write_rows
from recipe.rerule.training import settings
from tests.training.test_settings import ROOT, composed, overrides, row, write_model

V1 = "trainer.use_v1=true"
WHAT_RUNS_WHERE = {
    "actor_rollout_ref.model.lora.merge": ["actor_rollout_ref.model.lora_rank=8"],
    "ulysses_sequence_parallel_size": [
        "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
        "trainer.n_gpus_per_node=2",
    ],
    "algorithm.adv_estimator": ["algorithm.adv_estimator=remax"],
    "trainer.v1.trainer_mode": [V1, "trainer.v1.trainer_mode=colocate_async"],
}
"""The name in the row's last cell, to settings of such a combination."""
TWO_TRAINERS = {
    "trainer.v1.trainer_mode": [V1, "trainer.v1.trainer_mode=colocate_async"],
    "trainer.v1.sync.parameter_sync_step": [V1, "+trainer.v1.sync.parameter_sync_step=2"],
    "trainer.v1.sampler.custom_sampler": [V1, "trainer.v1.sampler.custom_sampler.path=mine.py"],
    "trainer.balance_batch": [V1, "trainer.balance_batch=false"],
    "algorithm.filter_groups.max_num_gen_batches": [
        V1,
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.max_num_gen_batches=3",
    ],
    "algorithm.filter_groups.metric": [
        V1,
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=acc",
    ],
    "algorithm.filter_groups.enable": ["algorithm.filter_groups.enable=true"],
}
"""The same for the rows of "Two trainers", by the first name of the row."""


def section(title: str) -> str:
    return (ROOT / "docs" / "running.md").read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_lists_here_are_the_rows_of_the_document() -> None:
    last = [line.split("|")[-2].strip() for line in section("What runs where").splitlines() if "|" in line]
    by_settings = [cell for cell in last if cell.startswith("refused: ") and "tests/" not in cell]
    assert {re.findall("`([^`]+)`", cell)[0] for cell in by_settings} == set(WHAT_RUNS_WHERE)
    table = section("Two trainers").split("These combinations are refused before the start:")[1]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {re.findall("`([^`]+)`", cell)[0].split("=")[0] for cell in first} == set(TWO_TRAINERS)


@pytest.mark.parametrize(
    ("named", "given"), [*WHAT_RUNS_WHERE.items(), *TWO_TRAINERS.items()], ids=lambda part: str(part)[:40]
)
def test_each_of_them_is_refused_in_one_line_that_names_it(
    named: str, given: list[str], tmp_path: Path
) -> None:
    write_model(tmp_path / "model")
    write_rows(tmp_path / "train.parquet", [row(index) for index in range(20)])
    files = {"model": tmp_path / "model", "train": tmp_path / "train.parquet", "run": tmp_path / "run"}
    with pytest.raises(ValueError, match=re.escape(named)) as raised:
        settings.check(composed(overrides(files, *given)))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()
