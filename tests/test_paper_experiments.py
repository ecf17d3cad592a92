"""experiment=paper/...: the paper's method with every key named, so that later defaults cannot change it."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from recipe.rerule import io
from recipe.rerule.replay import ImportanceConfig, ReplayConfig
from tests.e2e.stack import ROOT

BENCHMARKS = ("rwku", "muse_books", "tofu")
FOLDER = ROOT / "recipe" / "rerule" / "config" / "experiment"
COMMON = FOLDER.parent / "common"
CHOICE = {
    "threshold_rule",
    "threshold",
    "threshold_quantile",
    "threshold_window",
    "min_groups",
    "require_signal",
    "sampling",
}
"""Keys of the replay in which our defaults are not the paper's (docs/method.md)."""
OF_A_RUN = {"enable", "restore", "seed"}
"""Keys of the replay that say nothing of the method."""


@functools.cache
def stage2(experiment: str, *overrides: str) -> DictConfig:
    with initialize_config_module("recipe.rerule.config", version_base=None):
        return compose("rerule_trainer", [f"experiment={experiment}", *overrides])


def leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key to value, of unresolved nested mappings."""
    if not isinstance(config, dict) or not config:
        return {prefix: config}
    return {
        key: value
        for name, node in config.items()
        for key, value in leaves(node, f"{prefix}.{name}".lstrip(".")).items()
    }


def named(folder: Path, *files: str) -> dict[str, Any]:
    """Keys that files name themselves, without what they include."""
    held: dict[str, Any] = {}
    for file in files:
        own = OmegaConf.to_container(OmegaConf.load(folder / f"{file}.yaml"))
        assert isinstance(own, dict)
        own.pop("defaults", None)
        held |= leaves(own)
    return held


def pinned(benchmark: str) -> dict[str, Any]:
    return named(COMMON / "paper", "method_common", "replay_common") | named(FOLDER / "paper", benchmark)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_experiment_differs_in_the_choice_of_groups_and_the_form_of_the_reward(benchmark: str) -> None:
    ours, paper = (
        leaves(OmegaConf.to_container(stage2(name), resolve=False))
        for name in (benchmark, f"paper/{benchmark}")
    )
    assert ours.keys() == paper.keys()
    form = "reward.custom_reward_function.reward_kwargs.form"
    assert {key for key in ours if ours[key] != paper[key]} == {form, *(f"replay.{name}" for name in CHOICE)}
    assert (ours[form], paper[form]) == ("guarded", "additive")


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_key_of_the_replay_is_named(benchmark: str) -> None:
    keys = {field.name for field in fields(ReplayConfig)} - OF_A_RUN - {"importance"}
    keys |= {f"importance.{field.name}" for field in fields(ImportanceConfig)}
    replay = {key.removeprefix("replay.") for key in pinned(benchmark) if key.startswith("replay.")}
    assert replay == keys


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_key_that_the_experiment_sets_is_named(benchmark: str) -> None:
    assert (named(COMMON, "rule_common") | named(FOLDER, benchmark)).keys() <= pinned(benchmark).keys()


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_is_named_is_what_counts(benchmark: str) -> None:
    config = leaves(OmegaConf.to_container(stage2(f"paper/{benchmark}"), resolve=False))
    for key, value in pinned(benchmark).items():
        assert config[key] == value, key


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_files_share_no_key(benchmark: str) -> None:
    parts = [named(COMMON / "paper", name) for name in ("method_common", "replay_common")]
    parts.append(named(FOLDER / "paper", benchmark))
    assert sum(map(len, parts)) == len(pinned(benchmark))


def test_the_papers_replay() -> None:
    """Against the paper's algorithm and table, by hand."""
    tables = {"rwku": (0.6, 100, 15, 1200), "muse_books": (0.4, 500, 26, 1200), "tofu": (0.6, 80, 6, 400)}
    for benchmark, (threshold, min_groups, warmup_steps, capacity) in tables.items():
        settings: Any = OmegaConf.to_container(stage2(f"paper/{benchmark}").replay, resolve=True)
        assert ReplayConfig.from_dict(settings) == ReplayConfig(
            update="stored",
            updates_per_step=1,
            threshold=threshold,
            threshold_rule="fixed",
            threshold_quantile=0.4,
            threshold_window=256,
            min_groups=min_groups,
            warmup_steps=warmup_steps,
            start="after",
            admission="hard",
            require_signal=False,
            store_after_start=True,
            capacity=capacity,
            eviction="fifo",
            max_staleness=None,
            groups_per_update=32,
            sampling="uniform",
            use_kl_loss=True,
            importance=ImportanceConfig("token", clip_low=0.8, clip_high=1.3, normalize=True),
        )


def test_the_command_line_still_wins() -> None:
    config = stage2("paper/rwku", "replay.enable=false", "replay.threshold=0.4", "platform=cpu")
    assert (config.replay.enable, config.replay.threshold, config.platform.name) == (False, 0.4, "cpu")


def test_an_unknown_one_is_a_line_that_names_it() -> None:
    with pytest.raises(HydraException) as raised:
        stage2("paper/nowhere")
    line = io.describe(raised.value)
    assert "\n" not in line
    assert "experiment/paper/nowhere" in line


def test_the_files_are_packaged() -> None:
    declared = re.search(r'"recipe.rerule.config": (\[.*\])', (ROOT / "setup.py").read_text())
    assert declared is not None
    folder = FOLDER.parent
    packaged = {path for pattern in json.loads(declared[1]) for path in folder.glob(pattern)}
    assert set(folder.rglob("*.yaml")) <= packaged
