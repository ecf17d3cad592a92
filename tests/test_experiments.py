"""The experiments against the papers' tables, and the same checks as before a run, without an accelerator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

import recipe.rerule.config.stage1
from recipe.rerule.preflight import checks
from reward import RewardConfig
from reward.score import benchmark_reward
from tests.e2e.stack import ROOT

BENCHMARKS = ("rwku", "muse_books", "tofu")

# The paper's table of settings, and what its text and RULE's code add; by hand.
PAPER = {
    "rwku": {"threshold": 0.6, "min_groups": 100, "warmup_steps": 15, "capacity": 1200, "micro": (8, 16)},
    "muse_books": {
        "threshold": 0.4,
        "min_groups": 500,
        "warmup_steps": 26,
        "capacity": 1200,
        "micro": (8, 16),
    },
    "tofu": {"threshold": 0.6, "min_groups": 80, "warmup_steps": 6, "capacity": 400, "micro": (4, 8)},
}


def stage2(benchmark: str, *overrides: str) -> DictConfig:
    with initialize_config_module("recipe.rerule.config", version_base=None):
        return compose("rerule_trainer", [f"experiment={benchmark}", *overrides])


def stage1(benchmark: str) -> DictConfig:
    with initialize_config_module(recipe.rerule.config.stage1.__name__, version_base=None):
        return compose("sft_trainer", [f"experiment={benchmark}"])


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_stage_2_has_the_papers_settings(benchmark: str) -> None:
    config, paper = stage2(benchmark), PAPER[benchmark]
    for name in ("warmup_steps", "capacity"):
        assert config.replay[name] == paper[name]
    assert config.replay.groups_per_update == 32
    replay = stage2(f"paper/{benchmark}").replay
    for name in ("threshold", "min_groups", "warmup_steps", "capacity"):
        assert replay[name] == paper[name]
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    update, experience = paper["micro"]
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


def test_one_seed_is_the_whole_run_s() -> None:
    config = stage2("rwku", "data.seed=7")
    assert (config.replay.seed, config.actor_rollout_ref.rollout.seed) == (7, 7)
    apart = stage2("rwku", "data.seed=7", "replay.seed=8", "actor_rollout_ref.rollout.seed=9")
    assert (apart.data.seed, apart.replay.seed, apart.actor_rollout_ref.rollout.seed) == (7, 8, 9)


def test_lengths_and_steps() -> None:
    assert stage2("tofu").data.max_response_length == 256
    assert stage2("rwku").data.max_response_length == 1024
    assert stage2("tofu").trainer.total_training_steps == 11
    assert stage2("tofu").trainer.total_epochs * (80 // 32) >= 11
    assert stage2("rwku").trainer.total_training_steps is None
    assert stage2("rwku").trainer.total_epochs * (1200 // 32) == 37
    assert stage2("muse_books").trainer.total_epochs * (5988 // 32) == 187


def test_muse_news_has_the_settings_of_muse_books() -> None:
    for name in ("", "paper/"):
        assert stage2(f"{name}muse_news") == stage2(f"{name}muse_books")
    assert stage1("muse_news") == stage1("muse_books")
    assert benchmark_reward("rerule/muse_news") == benchmark_reward("rerule/muse_books")
    assert benchmark_reward("rerule/muse_news") != benchmark_reward("rerule/other")


def test_only_muse_goes_raw_and_stops_at_the_line() -> None:
    assert list(stage2("muse_books").data.stop) == ["\n"]
    agent = stage2("muse_books").actor_rollout_ref.rollout.agent
    assert agent.default_agent_loop == "rerule_single_turn_agent"
    for benchmark in ("rwku", "tofu"):
        assert list(stage2(benchmark).data.stop) == []
        assert stage2(benchmark).actor_rollout_ref.rollout.agent.default_agent_loop == "single_turn_agent"


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_experiments_reward_is_the_benchmarks_own(benchmark: str) -> None:
    kwargs: Any = OmegaConf.to_container(stage2(benchmark).reward.custom_reward_function.reward_kwargs)
    assert RewardConfig(**kwargs) == benchmark_reward(f"rerule/{benchmark}")
    assert kwargs["form"] == "guarded"
    assert (kwargs["lambda_forget"], kwargs["lambda_retain"], kwargs["gamma"]) == (
        1.0 if benchmark == "muse_books" else 0.5,
        0.5,
        0.3,
    )


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_stage_1_has_rules_settings(benchmark: str) -> None:
    config = stage1(benchmark)
    assert (config.optim.lr, config.optim.lr_scheduler_type, config.optim.lr_warmup_steps) == (
        4e-7,
        "cosine",
        20,
    )
    assert (config.trainer.total_epochs, config.data.train_batch_size) == (3, 8)


def prepared(folder: Path) -> Path:
    """Rows of a user's own: 40 questions on either side, and a small model for them."""
    rows = [
        {
            "question": f"Who was number {n} on side {side}?",
            "answer": f"The answer {n}",
            "side": side,
            "keyword": "Ada Thorn",
        }
        for side in ("forget", "retain")
        for n in range(40)
    ]
    (folder / "rows.json").write_text(json.dumps(rows))
    command("-m", "data_prep", "custom", "--source", folder / "rows.json", "--out", folder / "data")
    command("examples/small_model.py", "--data", folder / "data", "--out", folder / "model")
    return folder


def command(*arguments: object, code: int = 0) -> str:
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout if code == 0 else done.stderr


def test_full_size_experiments_pass_the_checks_without_an_accelerator(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    overrides = [
        f"actor_rollout_ref.model.path={folder}/model",
        *(f"data.{name}_files={folder}/data/{name}.parquet" for name in ("train", "val")),
        f"trainer.default_local_dir={folder}/run",
    ]
    for benchmark in BENCHMARKS:
        checks.require(checks.findings(checks.stage2, stage2(benchmark, *overrides)))
    checked = command("-m", "recipe.rerule.check", "stage2", "experiment=rwku/lora_1gpu", *overrides)
    assert checked.endswith("stage 2: nothing wrong\n")
    assert "memory of a device, computed and not measured: sending weights" in checked
    assert not (folder / "run").exists()


def test_check_wants_a_stage() -> None:
    assert command("-m", "recipe.rerule.check", "stage3", code=2).startswith("usage: ")


def test_check_names_what_stage_1_lacks() -> None:
    assert "model.path" in command("-m", "recipe.rerule.check", "stage1", "experiment=tiny", code=2)
