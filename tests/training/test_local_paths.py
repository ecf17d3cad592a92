"""Which settings of a run become absolute paths, and which stay."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from recipe.rerule.training import cluster, local_paths
from tests.training.made import composed

FILES = ("a.parquet", "b.parquet", "reward.py", "set.py", "loops.yaml", "tools.yaml", "phrases.txt")
FOLDERS = ("model", "tokenizer", "adapter", "global_step_3", "outputs")
REWARD, MODEL = "reward.custom_reward_function", "actor_rollout_ref.model"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is the home folder too, with all that the settings name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in FILES:
        (tmp_path / name).touch()
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    return tmp_path


def absolute(**values: Any) -> DictConfig:
    config = composed(2, "platform=cpu", *(f"+{key}={value}" for key, value in values.items()))
    local_paths.make_absolute(config)
    return config


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        (f"{MODEL}.path", "model", "model"),
        (f"{MODEL}.path", "~/model", "model"),
        (f"{MODEL}.tokenizer_path", "tokenizer", "tokenizer"),
        (f"{MODEL}.lora_adapter_path", "adapter", "adapter"),
        ("actor_rollout_ref.rollout.agent.agent_loop_config_path", "loops.yaml", "loops.yaml"),
        ("actor_rollout_ref.rollout.multi_turn.tool_config_path", "tools.yaml", "tools.yaml"),
        ("critic.model.tokenizer_path", "./tokenizer", "tokenizer"),
        ("data.val_files", "model/../b.parquet", "b.parquet"),
        ("data.custom_cls.path", "set.py", "set.py"),
        (f"{REWARD}.path", "reward.py", "reward.py"),
        (f"{REWARD}.path", "file://reward.py", "reward.py"),
        (f"{REWARD}.reward_kwargs.refusal_phrases", "phrases.txt", "phrases.txt"),
        ("reward.reward_manager.module.path", "reward.py", "reward.py"),
        ("trainer.resume_from_path", "global_step_3", "global_step_3"),
        # What is written need not be there.
        ("trainer.default_local_dir", "new/run", "new/run"),
        ("trainer.rollout_data_dir", "new/run", "new/run"),
        ("trainer.validation_data_dir", "new/run", "new/run"),
        # Names of models on the Hub, other file systems and texts stay.
        (f"{MODEL}.path", "org/name", None),
        (f"{MODEL}.path", "a.parquet", None),  # a file of the name of a model
        (f"{MODEL}.tokenizer_path", "gpt2", None),
        ("data.train_files", "hdfs://cluster/rows.parquet", None),
        (f"{REWARD}.path", "pkg://reward.score", None),
        ("trainer.project_name", "model", None),
        ("trainer.default_hdfs_dir", "hdfs://cluster/runs", None),
        (f"{MODEL}.path", "/model", None),
    ],
)
def test_which_settings_become_absolute(key: str, value: str, path: str | None, here: Path) -> None:
    found = absolute(**{key: value})
    assert OmegaConf.select(found, key) == (value if path is None else str(here / path))


def test_lists_what_refers_to_another_setting_and_nothing_else_changes(here: Path) -> None:
    config = absolute(**{"data.train_files": "[a.parquet,b.parquet]", f"{MODEL}.path": "model"})
    assert list(config.data.train_files) == [str(here / "a.parquet"), str(here / "b.parquet")]
    assert config.critic.model.path == str(here / "model")
    before, after = composed(2, "platform=cpu"), absolute()
    for key in ("trainer.default_local_dir", "global_profiler.save_path"):
        assert OmegaConf.select(after, key) == str(here / OmegaConf.select(before, key))
        OmegaConf.update(before, key, OmegaConf.select(after, key))
    assert OmegaConf.to_container(after, resolve=False) == OmegaConf.to_container(before, resolve=False)


def test_what_a_run_reads_on_this_machine(here: Path) -> None:
    """Each path once, by its first setting, without names of the Hub and what is not there."""
    words = [f"{MODEL}.path=model", f"{MODEL}.tokenizer_path=org/name", f"{REWARD}.path=reward.py"]
    config = composed(2, *words, "data.train_files=[a.parquet,b.parquet]", "data.val_files=b.parquet")
    before = copy.deepcopy(config)
    assert local_paths.read(config) == {
        f"{MODEL}.path": [str(here / "model")],
        "data.train_files": [str(here / "a.parquet"), str(here / "b.parquet")],
        f"{REWARD}.path": [str(here / "reward.py")],
    }
    assert config == before


@pytest.mark.parametrize("more", [[], ["+ray_kwargs.ray_init.address=auto"]], ids=["own", "joined"])
def test_every_run_gives_workers_absolute_paths(more: list[str], here: Path) -> None:
    config = composed(2, "platform=cpu", f"{MODEL}.path=model", *more)
    with cluster.of_run(config, object):
        assert config.actor_rollout_ref.model.path == str(here / "model")
        assert config.trainer.default_local_dir == str(here / "outputs" / "rerule")
