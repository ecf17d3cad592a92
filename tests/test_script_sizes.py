"""The settings that the run scripts pass, for each number of devices, by the checks of the commands.

A `python` that only notes its arguments stands where the scripts look for one.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from data_prep.contract import rl_row, sft_row, write_rows, write_sft_rows
from recipe.rerule.training import settings
from tests.training.test_settings import write_model

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ("rwku", "muse_books", "tofu")
LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (8, 2), (8, 4)]
"""Devices a node, and nodes."""
STAGE1 = {1: (1, 2), 2: (2, 2), 4: (4, 2), 8: (8, 1), 16: (8, 1)}
"""Devices a node: ranks of stage 1, and its micro-batch; by hand."""
LOG_PROBS = {"rwku": 16, "muse_books": 16, "tofu": 8}
"""The paper's micro-batches of log-probs, which 32 devices with 8 rows each cannot have."""
STAND_IN = """#!/usr/bin/env bash
printf '%s\\t' "$@" >> "$CALLS"
echo >> "$CALLS"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, the rows of all stages, and a folder with the stand-in for python."""
    folder = tmp_path_factory.mktemp("made")
    write_model(folder / "model")
    (folder / "data").mkdir()
    (folder / "data" / "manifest.json").write_text("{}")
    write_rows(folder / "data" / "train.parquet", [_row(index, "Where") for index in range(96)])
    write_rows(folder / "data" / "val.parquet", [_row(index, "When") for index in range(8)])
    write_sft_rows(folder / "data" / "sft.parquet", [_sft_row(index) for index in range(40)])
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(STAND_IN)
    (folder / "bin" / "python").chmod(0o755)
    return folder


def _row(index: int, word: str) -> dict[str, Any]:
    side, keyword = ("forget", "Ada Quill") if index % 2 else ("retain", "")
    info = {"index": index, "mode": "qa", "subject": "Ada Quill", "split": "train"}
    return rl_row(
        data_source="rerule/test",
        prompt=f"{word} {index}?",
        side=side,
        golds=["Tarn"],
        keyword=keyword,
        extra_info=info | {"section": side, "family": "question"},
    )


def _sft_row(index: int) -> dict[str, Any]:
    info = {"index": index, "mode": "qa", "subject": "Ada Quill"}
    return sft_row(prompt=f"Where {index}?", answer="No idea.", extra_info=info)


def script(benchmark: str, out: Path, made: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{made / 'bin'}:{os.environ['PATH']}",
        "CALLS": str(out / "calls"),
        "OUT": str(out),
    }
    return subprocess.run(
        ["bash", f"examples/run_{benchmark}.sh"],
        cwd=ROOT,
        env={**environment, "MODEL": str(made / "model"), "DATA": "unused", **variables},
        capture_output=True,
        text=True,
    )


def calls(benchmark: str, out: Path, made: Path, **variables: str) -> dict[str, list[str]]:
    """Module to arguments of each command that the script would have run."""
    out.mkdir()
    (out / "data").symlink_to(made / "data")
    if benchmark == "rwku":  # a folder for each target
        (out / "data").unlink()
        (out / "data").mkdir()
        (out / "data" / "manifest.json").write_text("{}")
        (out / "data" / "1_Ada").symlink_to(made / "data")
    done = script(benchmark, out, made, **variables)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t")[:-1] for line in (out / "calls").read_text().splitlines()]
    return {line[1]: line[2:] for line in reversed(lines) if line[0] == "-m"}


@functools.cache
def _composed(module: str, name: str, experiment: str) -> DictConfig:
    with initialize_config_module(module, version_base=None):
        return compose(name, [experiment])


def config(module: str, name: str, overrides: list[str]) -> DictConfig:
    """As Hydra composes it, but once an experiment: that takes a second, and sizes are resolved when read."""
    experiment, *others = overrides
    made = OmegaConf.create(OmegaConf.to_container(_composed(module, name, experiment)))
    assert isinstance(made, DictConfig)
    made.merge_with_dotlist([override.removeprefix("+") for override in others])
    OmegaConf.resolve(made)
    return made


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout[0]}x{layout[1]}")
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_a_script_passes_is_accepted(
    benchmark: str, layout: tuple[int, int], made: Path, tmp_path: Path
) -> None:
    gpus, nodes = layout
    out = tmp_path / "out"
    found = calls(benchmark, out, made, N_GPUS=str(gpus), NNODES=str(nodes))
    stage1 = config("recipe.rerule.config.stage1", "sft_trainer", found["recipe.rerule.sft"])
    settings.check_stage1(stage1)
    assert (stage1.trainer.n_gpus_per_node, stage1.data.micro_batch_size_per_gpu) == STAGE1[gpus]
    stage2 = config("recipe.rerule.config", "rerule_trainer", found["recipe.rerule.main"])
    model = Path(stage2.actor_rollout_ref.model.path)
    model.parent.mkdir()
    model.symlink_to(made / "model")
    settings.check(stage2)
    assert (stage2.trainer.n_gpus_per_node, stage2.trainer.nnodes) == layout
    expected = min(LOG_PROBS[benchmark], 256 // (gpus * nodes))
    assert stage2.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == expected
    assert stage2.actor_rollout_ref.rollout.max_model_len == (768 if benchmark == "tofu" else 1536)


def test_a_try_has_one_device_whatever_is_said(made: Path, tmp_path: Path) -> None:
    found = calls("tofu", tmp_path / "out", made, SMOKE="1", N_GPUS="3")
    stage1 = config("recipe.rerule.config.stage1", "sft_trainer", found["recipe.rerule.sft"])
    assert (stage1.trainer.n_gpus_per_node, stage1.data.micro_batch_size_per_gpu) == (1, 2)
    stage2 = config("recipe.rerule.config", "rerule_trainer", found["recipe.rerule.main"])
    actor, rollout = stage2.actor_rollout_ref.actor, stage2.actor_rollout_ref.rollout
    assert (actor.ppo_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size_per_gpu) == (4, 8)
    assert rollout.max_model_len == 512


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (
            {"N_GPUS": "3"},
            "N_GPUS x NNODES is 3; give 1, 2, 4, 8, 16 or 32 devices: others cannot share the 256",
        ),
        ({"N_GPUS": "8", "NNODES": "8"}, "N_GPUS x NNODES is 64; give 1, 2, 4, 8, 16 or 32 devices"),
        ({"N_GPUS": "0"}, "N_GPUS is 0; give a whole number above 0"),
        ({"N_GPUS": "four"}, "N_GPUS is four; give a whole number above 0"),
        ({"NNODES": "08"}, "NNODES is 08; give a whole number above 0"),
    ],
)
def test_devices_that_cannot_share_a_step_end_the_script_first(
    variables: dict[str, str], line: str, made: Path, tmp_path: Path
) -> None:
    done = script("tofu", tmp_path / "out", made, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
