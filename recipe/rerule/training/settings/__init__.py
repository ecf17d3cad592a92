"""Checks of a configuration that need neither Ray nor an accelerator.

Everything a user can get wrong is refused here, before any worker starts, with one line that names it. What
is allowed but hardly meant is a warning. `check` and `check_stage1` are the lists of what is looked at.
"""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from recipe.rerule import io, schema
from recipe.rerule.replay import ReplayConfig
from recipe.rerule.runs import model_checks
from recipe.rerule.schema import SettingsError
from recipe.rerule.training import data_checks, learning, memory
from recipe.rerule.training.settings import (
    conditions,
    devices,
    divisions,
    lora,
    parts,
    rows,
    saving,
    steps,
    v1,
)
from recipe.rerule.training.settings.conditions import replay_config
from recipe.rerule.training.settings.parts import AGENT_LOOP, AGENT_LOOP_MODULE
from recipe.rerule.training.settings.rows import Files, check_model
from reward import RewardConfig

__all__ = [
    "AGENT_LOOP",
    "AGENT_LOOP_MODULE",
    "Files",
    "SettingsError",
    "check",
    "check_model",
    "check_stage1",
    "replay_config",
]


def check(config: DictConfig) -> ReplayConfig:
    """Check a resolved stage-2 configuration; returns the typed replay settings.

    Raises:
        ValueError: one line naming the setting, file, row or model at fault.
    """
    # Settings, each by itself and together.
    schema.check(config, schema.STAGE2)
    replay = replay_config(config)
    conditions.check_reward_options(schema.plain(config, "reward.custom_reward_function"))
    v1.check(config)
    conditions.check_group_size(config)
    conditions.check_replay_fits(config)
    lora.check(config.actor_rollout_ref.model, "actor_rollout_ref.model")
    lora.check_rollout(config)
    divisions.check_stage2(config)
    divisions.check_draws(config, replay)
    conditions.check_stop(config.data.stop, config.actor_rollout_ref.rollout.name)
    # Parts that they name.
    parts.check_libraries(config.actor_rollout_ref.model.external_lib, "actor_rollout_ref.model.external_lib")
    parts.check_agent_loop(config)
    parts.check_policy_loss(config)
    parts.check_reward_function(config)
    parts.check_replay_rules(replay)
    parts.check_data_set(config.data)
    parts.check_optimizer(config, "actor_rollout_ref.actor.optim")
    parts.check_loggers(config.trainer.logger)
    # Folders.
    conditions.check_run_folder(config.trainer, stage=2)
    conditions.check_checkpoints(config)
    conditions.check_dumps(config.trainer)
    # Model and rows.
    model_checks.check_stage2(config)
    policy = config.actor_rollout_ref.model
    model = check_model(policy.path, "actor_rollout_ref.model.path", policy.trust_remote_code)
    lora.check_modules(policy, "actor_rollout_ref.model")
    devices.check_heads(config, model, devices.ACTOR)
    limit = rows.context_limit(model)
    rows.check_context(config, limit)
    train, val = rows.read(config.data.train_files), rows.read(config.data.val_files)
    data_checks.check_stage2(train, val)
    data_checks.check_sides(train, config.data)
    rows.require_batch(train, config.data)
    rows.check_raw(config, train + val)
    rows.check_prompts(config, train + val)
    rows.check_end(config, policy, train)
    run_steps = steps.run_steps(config, train)
    # verl's own.
    conditions.check_verl(config)
    lora.warn_of_reference(config)
    rows.warn_of_template(config, policy, train + val)
    _warn(rows.context_warnings(config.data, limit))
    _warn(rows.length_warnings(config, train))
    _warn(steps.warm_up_warnings(config, "actor_rollout_ref.actor.optim", run_steps))
    _warn(steps.replay_warnings(config, replay, run_steps))
    _warn(divisions.draw_warnings(config, replay))
    _warn(steps.checkpoint_warnings(config.trainer))
    _warn(memory.warnings(config, memory.of_stage2(config)))
    saving.say_disk_stage2(config, run_steps)
    learning.before_stage2(config)
    return replay


def check_stage1(config: DictConfig) -> None:
    """Check a resolved stage-1 configuration.

    Raises:
        ValueError: one line naming the setting, file, row or model at fault.
    """
    # Settings, each by itself and together.
    schema.check(config, schema.STAGE1)
    conditions.check_thinking(config.data)
    lora.check(config.model, "model")
    divisions.check_stage1(config)
    conditions.check_sft_validation(config)
    conditions.check_sampling(config)
    # Parts that they name.
    parts.check_libraries(config.model.external_lib, "model.external_lib")
    parts.check_data_set(config.data)
    parts.check_optimizer(config, "optim")
    parts.check_loggers(config.trainer.logger)
    # Folders.
    conditions.check_run_folder(config.trainer, stage=1)
    # Model and rows.
    model_checks.check_stage1(config)
    model = check_model(config.model.path, "model.path", config.model.trust_remote_code)
    lora.check_modules(config.model, "model")
    devices.check_heads(config, model, devices.STAGE1)
    train, val = rows.read_sft(config.data.train_files), rows.read_sft(config.data.val_files or [])
    data_checks.check_stage1(train, val)
    phrases = OmegaConf.select(config, "signal.reward_kwargs.refusal_phrases")
    data_checks.warn_of_refusals(train, RewardConfig(refusal_phrases=phrases))
    rows.require_batch(train, config.data)
    rows.require_validation_batch(val, config.data)
    rows.check_conversations(config, train)
    rows.check_end(config, config.model, train)
    if config.data.prompt_files is not None:
        prompts = rows.read(config.data.prompt_files)
        data_checks.check_prompts(prompts)
        rows.check_sampled(config, prompts)
    run_steps = steps.run_steps(config, train)
    rows.warn_of_template(config, config.model, train)
    _warn(steps.warm_up_warnings(config, "optim", run_steps))
    _warn(memory.warnings(config, memory.of_stage1(config)))
    saving.say_disk_stage1(config, run_steps)
    learning.before_stage1(config)


def _warn(lines: list[str]) -> None:
    for line in lines:
        io.warn(line)
