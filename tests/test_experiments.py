"""The experiments against the papers' tables, and the checks of full-size runs without an accelerator.

experiment=paper/... names every key of the paper's method, so that later defaults cannot change it.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from recipe.rerule import schema
from recipe.rerule.preflight import checks
from recipe.rerule.replay import ImportanceConfig, ReplayConfig
from recipe.rerule.training.prompts import turn_ids
from reward import RewardConfig
from reward.score import benchmark_reward
from reward.thoughts import with_thought
from tests.document_programs import HYDRA, composed
from tests.e2e.stack import ROOT
from tests.made_tokenizers import byte_level
from tests.refused.configurations import build, placed

CONFIG = ROOT / "recipe" / "rerule" / "config"
FOLDER, COMMON = CONFIG / "experiment", CONFIG / "common"
PAPER = {
    "rwku": {"threshold": 0.6, "min_groups": 100, "warmup_steps": 15, "capacity": 1200},
    "muse_books": {"threshold": 0.4, "min_groups": 500, "warmup_steps": 26, "capacity": 1200},
    "tofu": {"threshold": 0.6, "min_groups": 80, "warmup_steps": 6, "capacity": 400},
}
"""The paper's table of settings, by hand."""
MICRO = {"rwku": (8, 16), "muse_books": (8, 16), "tofu": (4, 8)}
"""Rows of an update and of experience on a device, of the same table."""
CHOICE = {"threshold_rule", "threshold", "threshold_quantile", "threshold_window", "min_groups", "sampling"}
CHOICE |= {"require_signal"}
"""Keys of the replay in which our defaults are not the paper's (docs/method.md)."""
OF_A_RUN = {"enable", "restore", "seed"}
"""Keys of the replay that say nothing of the method."""


def stage2(experiment: str, *overrides: str) -> DictConfig:
    return composed("recipe.rerule.main", (f"experiment={experiment}", *overrides))


def stage1(benchmark: str) -> DictConfig:
    return composed("recipe.rerule.sft", (f"experiment={benchmark}",))


def leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key to value, of unresolved nested mappings."""
    if not isinstance(config, dict) or not config:
        return {prefix: config}
    return {
        key: value
        for name, node in config.items()
        for key, value in leaves(node, f"{prefix}.{name}".lstrip(".")).items()
    }


def named(folder: Path, *files: str) -> list[tuple[str, Any]]:
    """Keys that files name themselves with their values, without what they include."""
    held: list[tuple[str, Any]] = []
    for file in files:
        own: Any = OmegaConf.to_container(OmegaConf.load(folder / f"{file}.yaml"))
        own.pop("defaults", None)
        held += leaves(own).items()
    return held


@pytest.mark.parametrize("benchmark", PAPER)
def test_stage_2_has_the_papers_settings(benchmark: str) -> None:
    config, paper = stage2(benchmark), PAPER[benchmark]
    assert {name: config.replay[name] for name in ("warmup_steps", "capacity")}.items() <= paper.items()
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    update, experience = MICRO[benchmark]
    assert actor.ppo_micro_batch_size_per_gpu == update
    assert rollout.log_prob_micro_batch_size_per_gpu == experience
    assert config.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu == experience
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n) == (32, 32, 8)
    assert (actor.optim.lr, actor.kl_loss_coef, actor.kl_loss_type) == (2e-6, 1e-2, "low_var_kl")
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.3)
    assert (actor.optim.weight_decay, actor.optim.clip_grad, rollout.temperature) == (0.01, 1.0, 1.0)
    assert (config.algorithm.adv_estimator, actor.use_kl_loss) == ("grpo", True)
    assert (config.data.seed, config.data.max_prompt_length) == (42, 512)
    assert config.trainer.n_gpus_per_node == 4
    settings: Any = OmegaConf.to_container(stage2(f"paper/{benchmark}").replay, resolve=True)
    assert ReplayConfig.from_dict(settings) == ReplayConfig(
        update="stored",
        updates_per_step=1,
        threshold_rule="fixed",
        threshold_quantile=0.4,
        threshold_window=256,
        admission="hard",
        require_signal=False,
        store_after_start=True,
        eviction="fifo",
        max_staleness=None,
        groups_per_update=32,
        sampling="uniform",
        use_kl_loss=True,
        importance=ImportanceConfig("token", clip_low=0.8, clip_high=1.3, normalize=True),
        **paper,
    )


@pytest.mark.parametrize("benchmark", PAPER)
def test_the_paper_s_experiment_names_each_key_once_and_what_it_names_counts(benchmark: str) -> None:
    held = named(COMMON / "paper", "method_common", "replay_common") + named(FOLDER / "paper", benchmark)
    pinned = dict(held)
    assert len(held) == len(pinned)
    keys = {field.name for field in fields(ReplayConfig)} - OF_A_RUN - {"importance"}
    keys |= {f"importance.{field.name}" for field in fields(ImportanceConfig)}
    assert {key.removeprefix("replay.") for key in pinned if key.startswith("replay.")} == keys
    assert dict(named(COMMON, "rule_common") + named(FOLDER, benchmark)).keys() <= pinned.keys()
    ours, paper = (
        leaves(OmegaConf.to_container(stage2(name), resolve=False))
        for name in (benchmark, f"paper/{benchmark}")
    )
    assert pinned.items() <= paper.items()
    assert ours.keys() == paper.keys()
    form = "reward.custom_reward_function.reward_kwargs.form"
    assert {key for key in ours if ours[key] != paper[key]} == {form, *(f"replay.{name}" for name in CHOICE)}
    assert (ours[form], paper[form]) == ("guarded", "additive")


def test_the_seed_of_the_data_is_that_of_replay_and_of_the_engines() -> None:
    config = stage2("rwku", "data.seed=7")
    both = config.actor_rollout_ref
    assert (config.replay.seed, both.rollout.seed, both.actor.fsdp_config.seed) == (7, 7, 7)


def test_muse_goes_raw_and_stops_at_the_line_and_news_is_as_books() -> None:
    for name in ("", "paper/"):
        assert stage2(f"{name}muse_news") == stage2(f"{name}muse_books")
    assert stage1("muse_news") == stage1("muse_books")
    assert benchmark_reward("rerule/muse_news") == benchmark_reward("rerule/muse_books")
    for benchmark in PAPER:
        raw, config = benchmark == "muse_books", stage2(benchmark)
        assert list(config.data.stop) == ["\n"] * raw
        loop = config.actor_rollout_ref.rollout.agent.default_agent_loop
        assert loop == ("rerule_single_turn_agent" if raw else "single_turn_agent")


def test_rtofu_is_as_tofu_and_trains_on_the_texts_of_its_code() -> None:
    """dataset/data_module.py there: tags, question, tags, thought, tags, answer, EOS."""
    configs = (stage1("rtofu"), stage1("tofu")), (stage2("rtofu"), stage2("tofu"))
    for ours, theirs in configs:
        own, other = (leaves(OmegaConf.to_container(config)) for config in (ours, theirs))
        changed = {name for name in own | other if own.get(name) != other.get(name)}
        assert changed <= {"data.max_length", "model.custom_chat_template", "data.max_response_length"}
    methods = composed("recipe.rerule.unlearn", ("experiment=rtofu", "method=npo_gdr"))
    assert methods.data.max_length == configs[0][0].data.max_length == configs[1][0].data.max_response_length
    template = configs[0][0].model.custom_chat_template
    assert methods.model.custom_chat_template == template
    tokenizer = byte_level(template)
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": with_thought("Hm.", "Ada.")},
    ]
    said = [tokenizer.decode(turn_ids(tokenizer, messages, turn, raw=False)) for turn in (0, 1)]
    assert said == ["<|begin|><｜User｜>Who?<｜Assistant｜>", "<think>\nHm.\n</think>\n\nAda.<|end|>"]
    assert benchmark_reward("rerule/rtofu") == benchmark_reward("rerule/tofu")


@pytest.mark.parametrize("benchmark", PAPER)
def test_the_reward_and_stage_1_have_the_benchmarks_settings(benchmark: str) -> None:
    kwargs: Any = OmegaConf.to_container(stage2(benchmark).reward.custom_reward_function.reward_kwargs)
    given = {name: value for name, value in kwargs.items() if value is not None}
    assert RewardConfig(**given) == benchmark_reward(f"rerule/{benchmark}")
    assert (kwargs["lambda_forget"], kwargs["lambda_retain"], kwargs["gamma"], kwargs["form"]) == (
        *(1.0 if benchmark == "muse_books" else 0.5, 0.5, 0.3, "guarded"),
    )
    optim, config = stage1(benchmark).optim, stage1(benchmark)
    assert (optim.lr, optim.lr_scheduler_type, optim.lr_warmup_steps) == (4e-7, "cosine", 20)
    assert (config.trainer.total_epochs, config.data.train_batch_size) == (3, 8)


def test_full_size_experiments_pass_the_checks_without_an_accelerator(tmp_path: Path) -> None:
    build(tmp_path)
    words = ["actor_rollout_ref.model.path=MODEL", "data.train_files=MANY", "data.val_files=VAL"]
    given = [placed(tmp_path, word) for word in (*words, "trainer.default_local_dir=RUN")]
    for experiment in (*PAPER, "rwku/lora_1gpu"):
        checks.require(checks.stage2, stage2(experiment, *given))
    assert not (tmp_path / "RUN").exists()


# the tables of settings against verl: its registries, what its classes accept, and the configurations


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
