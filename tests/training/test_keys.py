"""The tables of settings against verl: its registries, and what its configuration classes accept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from recipe.rerule.training.keys import replay, usage
from recipe.rerule.training.keys import verl_names as names
from recipe.rerule.training.keys.kinds import Choice, Either, Flag, ListOf, Number, Text, Whole
from recipe.rerule.training.keys.overrides import nearest


def test_names_that_verl_registers() -> None:
    from transfer_queue.storage.bootstrap import StorageBootstrapProvider
    from verl.experimental.agent_loop import agent_loop, single_turn_agent_loop, tool_agent_loop  # noqa: F401
    from verl.experimental.reward_loop.reward_manager import registry
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils.tracking import Tracking
    from verl.workers.engine import EngineRegistry
    from verl.workers.rollout import base

    assert set(names.V1_MODES) == set(trainer_base.TRAINER_REGISTRY)
    assert {name.lower() for name in names.QUEUE_STORAGES} <= set(StorageBootstrapProvider._providers)
    assert list(names.LOGGERS) == Tracking.supported_backend
    assert set(names.ESTIMATORS) <= set(ADV_ESTIMATOR_REGISTRY)
    assert {(name, "async") for name in names.ENGINES} == set(base._ROLLOUT_REGISTRY)
    assert set(names.AGENT_LOOPS) <= set(agent_loop._agent_loop_registry)
    assert set(names.REWARD_MANAGERS) == set(registry.REWARD_MANAGER)
    assert set(names.ACTOR_STRATEGIES) <= set(EngineRegistry._engines["language_model"])
    assert set(names.CRITIC_STRATEGIES) <= set(EngineRegistry._engines["value_model"])


def refusing(make: Callable[[str], Any], accepted: tuple[str, ...]) -> None:
    """verl accepts each of the names, and not another one."""
    for name in accepted:
        make(name)
    with pytest.raises((AssertionError, ValueError, NotImplementedError)):
        make("typo")


def test_names_that_verl_compares_with() -> None:
    from omegaconf import OmegaConf
    from verl.trainer.ppo.core_algos import get_kl_controller, kl_penalty
    from verl.utils.torch_functional import postprocess_data
    from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig

    one = torch.zeros(1)
    refusing(lambda name: kl_penalty(one, one, name), names.KL_ESTIMATORS)
    with pytest.raises(NotImplementedError):
        kl_penalty(one, one, "full")
    refusing(lambda name: FSDPOptimizerConfig(lr_scheduler_type=name), names.SCHEDULES)
    refusing(lambda name: FSDPEngineConfig(strategy=name), names.ACTOR_STRATEGIES)
    actor = {"rollout_n": 2, "ppo_micro_batch_size_per_gpu": 1}
    refusing(lambda name: FSDPActorConfig(loss_agg_mode=name, **actor), names.LOSS_AGGREGATIONS)
    control = {"kl_coef": 0.1, "horizon": 1, "target_kl": 0.1}
    refusing(
        lambda name: get_kl_controller(OmegaConf.create({"type": name, **control})), names.KL_CONTROLLERS
    )
    ids = torch.ones(1, 2, dtype=torch.long)
    refusing(lambda name: postprocess_data(ids, ids, 2, 0, truncation=name), names.TRUNCATIONS)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Number(0, 1), (0, 1, 0.5), (-0.1, 1.1, math.nan, math.inf, True, "0.5", None, [0.5])),
        (Number(above=0, infinite=True), (1e-9, math.inf), (0, -1, -math.inf, math.nan)),
        (Whole(1, 4, also=(-1,)), (1, 4, -1), (0, 5, -2, 1.0, True, "1", None)),
        (Whole(), (-3, 0, 10**30), (1.5, True, math.inf)),
        (Flag(), (True, False), (0, 1, "true", None)),
        (Choice(("a", "b")), ("a", "b"), ("c", "", 1, None, ["a"])),
        (Text(), ("a",), ("", " ", 1, None)),
        (Text(blank=True), ("\n",), ("",)),
        (ListOf(Text(), alone=True), ("a", ["a", "b"]), ([], [""], "", None, {"a": 1})),
        (ListOf(Number(0, 1), length=2, empty=True), ([0, 1],), ([], [0], [0, 1, 1], 0.5)),
    ],
)
def test_kinds(kind: Any, right: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    assert [value for value in right if not kind.accepts(value)] == []
    assert [value for value in wrong if kind.accepts(value)] == []


def test_kinds_say_what_they_allow() -> None:
    assert Number(above=0, high=1).allowed == "a number > 0 and <= 1"
    assert Number(0, infinite=True).allowed == "a number >= 0 (inf too)"
    assert Whole(1, also=(-1,)).allowed == "a whole number >= 1 or -1"
    assert Whole(1, 1).allowed == "1"
    assert Choice(("a", "b")).allowed == "one of a, b"
    assert Choice(("a",)).allowed == "a"


def test_the_replay_s_settings_are_its_own() -> None:
    """Read without the package and through it they are the same."""
    keys = {key.name: key for key in replay.declared()}
    assert keys["replay.importance.clip_high"].kind == Number(1, infinite=True)
    assert keys["replay.min_groups"].kind == Whole(1)
    assert keys["replay.seed"].kind == Whole()
    assert (keys["replay.threshold"].null, keys["replay.threshold"].kind) == ("not used", Number(0, 1))
    assert keys["replay.start"].kind == Choice(("after", "at"))
    built_in = Choice(("recent", "uniform"))
    assert keys["replay.sampling"].kind == Either(built_in, replay.ClassPath())
    assert keys["replay.sampling"].accepts("rules.mine:Own")
    assert not keys["replay.sampling"].accepts("rules.mine")
    assert keys["replay.sampling"].allowed == f"{built_in.allowed}, or package.module:Class"
    assert len(keys) == 25


def test_the_nearest_setting() -> None:
    known = ["data.train_batch_size", "actor.optim.lr", "critic.optim.lr", "trainer.total_training_steps"]
    assert nearest("lr", known) == "actor.optim.lr"
    assert nearest("data.batch_size", known) == "data.train_batch_size"
    assert nearest("trainer.total_steps", known) == "trainer.total_training_steps"
    assert nearest("data.trian_batch_size", known) == "data.train_batch_size"
    assert nearest("xyzzy", known) is None


def test_experiments_are_what_stands_in_their_folder() -> None:
    benchmarks = ["muse_books", "muse_news", "rwku", "tofu"]
    both = {"custom", "tiny", *benchmarks, *(f"{name}/lora_1gpu" for name in benchmarks)}
    assert usage.STAGE1.options("experiment") == sorted(both)
    papers = {f"paper/{name}" for name in benchmarks}
    assert usage.STAGE2.options("experiment") == sorted(both | papers)
