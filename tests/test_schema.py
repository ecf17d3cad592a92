"""The tables of settings against verl: its registries, what its classes accept, and the configurations."""

import dataclasses
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from omegaconf import OmegaConf

from recipe.rerule import schema
from recipe.rerule.replay import ReplayConfig
from tests.document_programs import HYDRA, composed


def test_names_that_verl_registers() -> None:
    from transfer_queue.storage.bootstrap import StorageBootstrapProvider
    from verl.experimental.agent_loop import agent_loop, single_turn_agent_loop, tool_agent_loop  # noqa: F401
    from verl.experimental.reward_loop.reward_manager import registry
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils.tracking import Tracking
    from verl.workers.engine import EngineRegistry
    from verl.workers.rollout import base

    names = get_args
    assert set(names(schema.V1Mode)) == set(trainer_base.TRAINER_REGISTRY)
    assert {name.lower() for name in names(schema.Storage)} <= set(StorageBootstrapProvider._providers)
    assert list(names(schema.Logger)) == Tracking.supported_backend
    assert set(names(schema.Estimator)) <= set(ADV_ESTIMATOR_REGISTRY)
    assert {(name, "async") for name in names(schema.Engine)} == set(base._ROLLOUT_REGISTRY)
    assert set(names(schema.AgentLoop)) <= set(agent_loop._agent_loop_registry)
    assert set(names(schema.RewardManager)) == set(registry.REWARD_MANAGER)
    assert set(names(schema.Strategy)) <= set(EngineRegistry._engines["language_model"])
    assert set(names(schema.CriticStrategy)) <= set(EngineRegistry._engines["value_model"])


def test_names_that_verl_compares_with() -> None:
    from verl.trainer.ppo.core_algos import get_kl_controller, kl_penalty
    from verl.utils.torch_functional import postprocess_data
    from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig

    def refusing(make: Callable[[str], Any], names: Any) -> None:
        """verl accepts each of the names, and not another one."""
        for name in get_args(names):
            make(name)
        with pytest.raises((AssertionError, ValueError, NotImplementedError)):
            make("typo")

    one = torch.zeros(1)
    refusing(lambda name: kl_penalty(one, one, name), schema.KlEstimator)
    with pytest.raises(NotImplementedError):
        kl_penalty(one, one, "full")
    refusing(lambda name: FSDPOptimizerConfig(lr_scheduler_type=name), schema.Schedule)
    refusing(lambda name: FSDPEngineConfig(strategy=name), schema.Strategy)
    actor = {"rollout_n": 2, "ppo_micro_batch_size_per_gpu": 1}
    refusing(lambda name: FSDPActorConfig(loss_agg_mode=name, **actor), schema.Aggregation)
    control = {"kl_coef": 0.1, "horizon": 1, "target_kl": 0.1}
    refusing(lambda name: get_kl_controller(OmegaConf.create({"type": name, **control})), schema.KlController)
    ids = torch.ones(1, 2, dtype=torch.long)
    refusing(lambda name: postprocess_data(ids, ids, 2, 0, truncation=name), schema.Truncation)


GIVEN = {
    "recipe.rerule.sft": "model.path=x data.train_files=x",
    "recipe.rerule.main": "actor_rollout_ref.model.path=x data.train_files=x data.val_files=x",
    "recipe.rerule.unlearn": "model.path=x method=npo_klr",
}


@pytest.mark.parametrize("program", GIVEN)
def test_every_setting_is_one_of_the_configuration_and_its_default_is_allowed(program: str) -> None:
    """A table that names what there is not would refuse every run."""
    config, command = composed(program, ("experiment=tiny", *GIVEN[program].split())), HYDRA[program]
    for key in command.table:
        section, _, last = key.rpartition(".")
        assert last in (OmegaConf.select(config, section) if section else config), key
    schema.check(config, command.table)


def test_the_yaml_and_the_dataclass_of_replay_have_the_same_defaults() -> None:
    config = composed("recipe.rerule.main", ())
    assert OmegaConf.to_container(config.replay, resolve=True) == dataclasses.asdict(ReplayConfig())
