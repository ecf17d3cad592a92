"""The tables of settings against verl: its registries, what its classes accept, and the configurations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from recipe.rerule import schema
from recipe.rerule.training import entry


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


@pytest.mark.parametrize(
    ("kind", "words", "right", "wrong"),
    [
        (
            schema.Share,
            "a number >= 0 and <= 1",
            (0, 1, 0.5),
            (-0.1, 1.1, math.nan, math.inf, True, "0.5", None, [0.5]),
        ),
        (schema.Number, "a number", (-3, 0, 2.5), (math.nan, math.inf, True)),
        (schema.Seed, "a whole number >= 0 and <= 2147483647", (0, 2**31 - 1), (2**31, -1)),
        (schema.OrAll, "a whole number >= 1 or -1", (1, -1), (0, -2, 1.5, True, "1", None)),
        (schema.Text, "text that is not empty", ("a",), ("", " ", 1, None)),
        (schema.Stop, "a list of texts that are not empty", ([], ["\n"]), ("x", [""], [3], None)),
        (
            schema.Files,
            "the path of a parquet file, or a list of paths",
            ("a", ["a", "b"]),
            ([], [""], "", None, {"a": 1}),
        ),
        (schema.Pair, "a list of two numbers from 0 to 1", ([0, 1],), ([], [0], [0, 1, 1], 0.5)),
        (bool, "true or false", (True, False), (0, 1, "true", None)),
        (schema.CriticStrategy, "one of fsdp, fsdp2", ("fsdp",), ("c", "", 1, None, ["fsdp"])),
        (schema.Count | schema.null("all"), "a whole number >= 1, or null (all)", (None, 1), (0,)),
    ],
)
def test_a_kind(kind: Any, words: str, right: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    adapter = TypeAdapter(kind)
    assert schema.allowed(adapter.json_schema()) == words
    for value in right:
        assert adapter.validate_python(value, strict=True) == value
    for value in wrong:
        with pytest.raises(ValidationError):
            adapter.validate_python(value, strict=True)


def test_the_nearest_setting() -> None:
    known = ["data.train_batch_size", "actor.optim.lr", "critic.optim.lr", "trainer.total_training_steps"]
    assert schema.nearest("lr", known) == "actor.optim.lr"
    assert schema.nearest("data.batch_size", known) == "data.train_batch_size"
    assert schema.nearest("trainer.total_steps", known) == "trainer.total_training_steps"
    assert schema.nearest("data.trian_batch_size", known) == "data.train_batch_size"
    assert schema.nearest("xyzzy", known) is None


MODEL = {"STAGE1": "model.path=x", "STAGE2": "actor_rollout_ref.model.path=x", "UNLEARN": "model.path=x"}
FILES = "data.train_files=x"
GIVEN = {"STAGE1": [FILES], "STAGE2": [FILES, "data.val_files=x"], "UNLEARN": ["method=npo_klr"]}


@pytest.mark.parametrize("name", MODEL)
def test_every_setting_is_one_of_the_configuration_and_its_default_is_allowed(name: str) -> None:
    """A table that names what there is not would refuse every run."""
    command: entry.Command = getattr(entry, name)
    module = f"recipe.rerule.config.{command.path}".removesuffix("..")
    with initialize_config_module(module, version_base=None):
        config = compose(command.name, ["experiment=tiny", MODEL[name], *GIVEN[name]])
    for key in command.table:
        section, _, last = key.rpartition(".")
        assert last in (OmegaConf.select(config, section) if section else config), key
    schema.check(config, command.table)


@pytest.mark.parametrize("name", MODEL)
def test_help_has_a_line_for_each_setting_of_ours(name: str) -> None:
    command: entry.Command = getattr(entry, name)
    text = entry.help_text(command)
    ours = ("replay.", "save.", "sides.", "health.", "records.", "data.train_files", "data.forget")
    keys = [key for key in command.table if key.startswith(ours)]
    for key in [*keys, "trainer.default_local_dir"]:
        assert f"\n  {key}=" in text, key
    for words in ("experiment=", "platform=", "tiny", "--cfg job", "Examples:"):
        assert words in text
    assert "rule_common" not in text


def test_experiments_are_what_stands_in_their_folder() -> None:
    benchmarks = ["muse_books", "muse_news", "rwku", "tofu"]
    both = {"custom", "tiny", *benchmarks, *(f"{name}/lora_1gpu" for name in benchmarks)}
    assert entry.STAGE1.options("experiment") == sorted(both)
    papers = {f"paper/{name}" for name in benchmarks}
    assert entry.STAGE2.options("experiment") == sorted(both | papers)
