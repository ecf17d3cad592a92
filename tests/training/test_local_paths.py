"""Which settings of a run become absolute paths, and which stay."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from recipe.rerule.training import cluster, local_paths

FILES = ("a.parquet", "b.parquet", "reward.py", "set.py", "loops.yaml", "tools.yaml", "phrases.txt")
FOLDERS = ("model", "tokenizer", "adapter", "global_step_3")
REWARD = "reward.custom_reward_function"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with every file and folder that the settings name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in FILES:
        (tmp_path / name).touch()
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    return tmp_path


@functools.cache
def defaults() -> DictConfig:
    with initialize_config_module("recipe.rerule.config", version_base=None):
        return compose("rerule_trainer", ["platform=cpu"])


def composed(values: Mapping[str, Any]) -> DictConfig:
    config = copy.deepcopy(defaults())
    for key, value in values.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


def absolute(values: Mapping[str, Any]) -> DictConfig:
    config = composed(values)
    local_paths.make_absolute(config)
    return config


READ = [
    ("actor_rollout_ref.model.path", "model"),
    ("actor_rollout_ref.model.tokenizer_path", "tokenizer"),
    ("actor_rollout_ref.model.lora_adapter_path", "adapter"),
    ("actor_rollout_ref.rollout.agent.agent_loop_config_path", "loops.yaml"),
    ("actor_rollout_ref.rollout.multi_turn.tool_config_path", "tools.yaml"),
    ("critic.model.path", "model"),
    ("critic.model.tokenizer_path", "./tokenizer"),
    ("data.train_files", "a.parquet"),
    ("data.val_files", "model/../b.parquet"),
    ("data.custom_cls.path", "set.py"),
    (f"{REWARD}.path", "reward.py"),
    (f"{REWARD}.reward_kwargs.refusal_phrases", "phrases.txt"),
    ("reward.reward_manager.module.path", "reward.py"),
    ("trainer.resume_from_path", "global_step_3"),
]


@pytest.mark.parametrize(("key", "value"), READ, ids=[key for key, _ in READ])
def test_what_is_read_becomes_absolute(key: str, value: str, here: Path) -> None:
    assert OmegaConf.select(absolute({key: value}), key) == str((here / value).resolve())


def test_what_is_written_and_lists_and_what_refers_to_another_setting(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("trainer.default_local_dir", "trainer.rollout_data_dir", "trainer.validation_data_dir"):
        assert OmegaConf.select(absolute({key: "new/run"}), key) == str(here / "new" / "run")
    monkeypatch.setenv("HOME", str(here))
    model = {"actor_rollout_ref.model.path": "~/model", f"{REWARD}.path": "file://reward.py"}
    config = absolute({"data.train_files": ["a.parquet", "b.parquet"], **model})
    assert list(config.data.train_files) == [str(here / "a.parquet"), str(here / "b.parquet")]
    assert config.actor_rollout_ref.model.path == config.critic.model.path == str(here / "model")
    assert config.reward.custom_reward_function.path == str(here / "reward.py")
    assert config.trainer.default_local_dir == str(here / "outputs" / "rerule")


def test_what_a_run_reads_on_this_machine(here: Path) -> None:
    """Each path once, by its first setting, without names of the Hub and what is not there."""
    config = composed(
        {
            "actor_rollout_ref.model.path": "model",
            "actor_rollout_ref.model.tokenizer_path": "org/name",
            "data.train_files": ["a.parquet", "b.parquet"],
            "data.val_files": "b.parquet",
            f"{REWARD}.path": "reward.py",
        }
    )
    before = copy.deepcopy(config)
    assert local_paths.read(config) == {
        "actor_rollout_ref.model.path": [str(here / "model")],
        "data.train_files": [str(here / "a.parquet"), str(here / "b.parquet")],
        f"{REWARD}.path": [str(here / "reward.py")],
    }
    assert config == before


STAY = [
    ("actor_rollout_ref.model.path", "org/name"),
    ("actor_rollout_ref.model.path", "a.parquet"),  # a file of the name of a model on the Hub
    ("actor_rollout_ref.model.tokenizer_path", "gpt2"),
    ("data.train_files", "hdfs://cluster/rows.parquet"),
    (f"{REWARD}.path", "pkg://reward.score"),
    ("trainer.project_name", "model"),
    ("trainer.experiment_name", "tokenizer"),
    ("trainer.default_hdfs_dir", "hdfs://cluster/runs"),
    ("actor_rollout_ref.model.path", "/model"),
]


@pytest.mark.parametrize(("key", "value"), STAY, ids=[f"{key}={value}" for key, value in STAY])
def test_names_stay(key: str, value: str) -> None:
    assert OmegaConf.select(absolute({key: value}), key) == value


def test_nothing_else_changes() -> None:
    changed = OmegaConf.to_container(absolute({}), resolve=False)
    before = OmegaConf.to_container(composed({}), resolve=False)
    assert {key for key, (_, _) in _differences(before, changed)} == {
        "trainer.default_local_dir",
        "global_profiler.save_path",
    }


def _differences(one: Any, other: Any, prefix: str = "") -> list[tuple[str, tuple[Any, Any]]]:
    if not isinstance(one, dict):
        return [(prefix, (one, other))] if one != other else []
    assert one.keys() == other.keys()
    return [
        found for key in one for found in _differences(one[key], other[key], f"{prefix}.{key}".lstrip("."))
    ]


class Runner:
    """Stands for the task runner; nothing starts it."""


@pytest.mark.parametrize("more", [{}, {"ray_kwargs.ray_init.address": "auto"}], ids=["own", "joined"])
def test_every_run_gives_workers_absolute_paths(more: dict[str, str], here: Path) -> None:
    config = composed({"actor_rollout_ref.model.path": "model", "data.train_files": "a.parquet"} | more)
    with cluster.of_run(config, Runner):
        assert config.actor_rollout_ref.model.path == str(here / "model")
        assert config.data.train_files == str(here / "a.parquet")
        assert config.trainer.default_local_dir == str(here / "outputs" / "rerule")
