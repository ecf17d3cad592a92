"""Checks of a stage-2 configuration that need neither Ray nor an accelerator.

Everything a user can get wrong is refused here, before any worker starts, with one line naming it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from hydra.errors import InstantiationException
from omegaconf import DictConfig, ListConfig, OmegaConf

from data_prep.contract import Row
from recipe.rerule import checkpoints, prompt_checks, run_folder
from recipe.rerule.replay import ReplayConfig

Files = list[tuple[str, list[Row]]]
"""Path and rows of each data file."""

GROUP_ESTIMATORS = (
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
)
"""verl's advantage estimators that compare the responses of one rollout group."""

ESTIMATORS = (*GROUP_ESTIMATORS, "reinforce_plus_plus", "gae")
"""All that stage 2 accepts; gae is PPO with a critic."""
RESUME_MODES = ("disable", "auto", "resume_path")

AGENT_LOOP = "rerule_single_turn_agent"
"""Name of our agent loop, which knows raw prompts and stop strings, and the module that registers it."""
AGENT_LOOP_MODULE = "recipe.rerule.agent_loop"


class SettingsError(ValueError):
    """A setting is missing, unknown or out of range; the message is one line and says what to do."""


def require_set(config: DictConfig, *keys: str) -> None:
    """Refuse a configuration in which one of the mandatory `keys` is unset.

    Raises:
        SettingsError: naming the first such key.
    """
    for key in keys:
        if OmegaConf.select(config, key) is None:
            raise SettingsError(f"{key} is not set; pass {key}=PATH")


def check(config: DictConfig) -> ReplayConfig:
    """Check a resolved stage-2 configuration; returns the typed replay settings.

    Raises:
        ValueError: one line naming the setting, file, row or model at fault.
    """
    replay = replay_config(config)
    _check_reward(_plain(config.reward.custom_reward_function))
    _check_trainer(config)
    _check_replay_fits(config)
    _check_lora(config)
    _check_run_folder(config.trainer)
    _check_checkpoints(config)
    run_folder.check(config.trainer.default_local_dir, stage=2)
    _check_dumps(config.trainer)
    _check_records(_plain(config.records))
    _check_stop(config.data.stop, config.actor_rollout_ref.rollout.name)
    check_model(config.actor_rollout_ref.model.path, "actor_rollout_ref.model.path")
    _check_data(config)
    _check_verl(config)
    return replay


def check_stage1(config: DictConfig) -> None:
    """Check a resolved stage-1 configuration.

    Raises:
        ValueError: one line naming the setting, file, row or model at fault.
    """
    from data_prep.contract import read_sft_rows

    _check_run_folder(config.trainer)
    run_folder.check(config.trainer.default_local_dir, stage=1)
    if config.data.enable_thinking_default is not None:
        raise SettingsError(
            "data.enable_thinking_default is unknown to stage 2; set data.apply_chat_template_kwargs in both"
        )
    check_model(config.model.path, "model.path")
    files = [(path, read_sft_rows(path)) for path in _paths(config.data.train_files)]
    _require_batch(files, config.data.train_batch_size)
    _check_tokens(prompt_checks.check_conversations, files, config.model, config.data, config.data.max_length)


def replay_config(config: DictConfig) -> ReplayConfig:
    """The typed `replay` section.

    Raises:
        ReplayConfigError: naming the key that is unknown, of the wrong type or out of range.
        SettingsError: a threshold that its rule would not use.
    """
    replay = ReplayConfig.from_dict(_plain(config.replay))
    if replay.threshold_rule == "quantile" and replay.threshold is not None:
        raise SettingsError(
            f"replay.threshold is {replay.threshold:g}, but replay.threshold_rule=quantile would not use it; "
            "add replay.threshold_rule=fixed, or leave the threshold out"
        )
    return replay


def check_model(path: str, key: str) -> None:
    """Refuse a model that transformers cannot find.

    Raises:
        SettingsError: naming `key` and `path`.
    """
    from transformers import AutoConfig

    path = os.path.expanduser(path)
    if os.path.isabs(path) and not os.path.isdir(path):
        raise SettingsError(f"{key} is {path}, which does not exist; give a Hugging Face folder or name")
    try:
        AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingsError(f"{key} is {path}, which transformers cannot load: {reason}") from None


def _check_reward(settings: Mapping[str, Any]) -> None:
    if settings.get("path") != "pkg://reward.score":
        return  # a reward of the user's own
    from reward.score import check_options

    try:
        check_options(dict(settings.get("reward_kwargs") or {}))
    except ValueError as error:
        raise SettingsError(f"reward.custom_reward_function.reward_kwargs: {error}") from None


def _check_trainer(config: DictConfig) -> None:
    if config.trainer.use_v1:
        raise SettingsError("trainer.use_v1 is true; ReRULE extends verl's RayPPOTrainer: set it to false")
    estimator = config.algorithm.adv_estimator
    if estimator not in ESTIMATORS:
        raise SettingsError(f"algorithm.adv_estimator is {estimator}; choose from {', '.join(ESTIMATORS)}")
    if estimator in GROUP_ESTIMATORS and config.actor_rollout_ref.rollout.n < 2:
        raise SettingsError(
            f"actor_rollout_ref.rollout.n is below 2; {estimator} needs at least two responses a prompt"
        )


def _check_replay_fits(config: DictConfig) -> None:
    if not config.replay.enable:
        return
    if config.replay.use_kl_loss and not config.actor_rollout_ref.actor.use_kl_loss:
        raise SettingsError(
            "replay.use_kl_loss is true but actor_rollout_ref.actor.use_kl_loss is false, so there are no "
            "reference log-probs; set both alike"
        )
    if config.actor_rollout_ref.actor.ulysses_sequence_parallel_size > 1:
        raise SettingsError(
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size is above 1, which replay does not "
            "support; set it to 1 or replay.enable=false"
        )


def _check_lora(config: DictConfig) -> None:
    model = config.actor_rollout_ref.model
    adapter = model.lora_rank > 0 or model.lora.rank > 0 or model.lora_adapter_path is not None
    if config.platform.name == "cpu" and adapter and not model.lora.merge:
        raise SettingsError(
            "platform=cpu cannot send a LoRA adapter to the rollout engine; set "
            "actor_rollout_ref.model.lora.merge=true"
        )


def _check_run_folder(trainer: DictConfig) -> None:
    folder = trainer.default_local_dir
    if trainer.resume_mode == "disable" and run_folder.is_begun(folder):
        raise SettingsError(
            f"trainer.default_local_dir is {folder}, which already holds a run; choose another folder, or "
            "trainer.resume_mode=auto to go on with it"
        )


def _check_dumps(trainer: DictConfig) -> None:
    for key in ("validation_data_dir", "rollout_data_dir"):
        if (folder := trainer.get(key)) is not None:
            run_folder.check_dumps(f"trainer.{key}", folder, resumed=trainer.resume_mode != "disable")


def _check_checkpoints(config: DictConfig) -> None:
    trainer = config.trainer
    if trainer.resume_mode not in RESUME_MODES:
        raise SettingsError(
            f"trainer.resume_mode is {trainer.resume_mode}; choose from {', '.join(RESUME_MODES)}"
        )
    if trainer.resume_mode == "resume_path":
        require_set(config, "trainer.resume_from_path")
        checkpoints.check_resume_from(trainer.default_local_dir, trainer.resume_from_path)
    if trainer.get("remove_previous_ckpt_in_save"):
        raise SettingsError(
            "trainer.remove_previous_ckpt_in_save would delete the last complete checkpoint before the next "
            "is written; use trainer.max_actor_ckpt_to_keep=1 instead"
        )
    if config.actor_rollout_ref.actor.checkpoint.get("async_save"):
        raise SettingsError(
            "actor_rollout_ref.actor.checkpoint.async_save is true, but a checkpoint must be written before "
            "it counts; set it to false"
        )
    if trainer.max_actor_ckpt_to_keep is not None and trainer.max_actor_ckpt_to_keep < 1:
        raise SettingsError(
            f"trainer.max_actor_ckpt_to_keep is {trainer.max_actor_ckpt_to_keep}; keep at least 1, or null "
            "for all"
        )


def _check_data(config: DictConfig) -> None:
    from data_prep.contract import read_rows

    train = [(path, read_rows(path)) for path in _paths(config.data.train_files)]
    files = train + [(path, read_rows(path)) for path in _paths(config.data.val_files)]
    _require_batch(train, config.data.train_batch_size)
    _check_batches(config)
    _check_agent_loop(config, files)
    model, longest = config.actor_rollout_ref.model, config.data.max_prompt_length
    _check_tokens(prompt_checks.check_prompts, files, model, config.data, longest)


def _check_batches(config: DictConfig) -> None:
    mini_batch = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if config.data.train_batch_size % mini_batch:
        raise SettingsError(
            f"data.train_batch_size is {config.data.train_batch_size}, no multiple of "
            f"actor_rollout_ref.actor.ppo_mini_batch_size, which is {mini_batch}; make them equal for one "
            "optimiser step a training step"
        )
    rows_a_step = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    if rows_a_step % devices:
        raise SettingsError(
            f"data.train_batch_size x rollout.n gives {rows_a_step} rows a step, which {devices} devices "
            "cannot share evenly; change one of them"
        )


def _require_batch(files: Files, batch_size: int) -> None:
    rows = sum(len(rows) for _, rows in files)
    if rows < batch_size:
        raise SettingsError(
            f"data.train_batch_size is {batch_size} but data.train_files hold {rows} rows; lower it"
        )


def _check_records(records: Mapping[str, Any]) -> None:
    unknown = sorted(set(records) - {"rollouts"})
    if unknown:
        raise SettingsError(f"records.{unknown[0]} is unknown; the only key is records.rollouts")
    if not isinstance(records["rollouts"], bool):
        raise SettingsError(f"records.rollouts is {records['rollouts']!r}; it must be true or false")


def _check_stop(stop: Any, engine: str) -> None:
    if not isinstance(stop, ListConfig) or not all(isinstance(text, str) and text for text in stop):
        raise SettingsError(f"data.stop is {stop!r}; it must be a list of non-empty strings")
    escaped = [text for text in stop if "\\n" in text]
    if escaped:
        raise SettingsError(
            f'data.stop holds {escaped[0]}, a backslash and an n; for a newline write "\\n" in YAML and '
            "data.stop=$'[\"\\n\"]' in bash"
        )
    if stop and engine != "vllm":
        raise SettingsError(
            f"data.stop is set, but verl gives {engine} no tokenizer to find stop strings with; set "
            "actor_rollout_ref.rollout.name=vllm"
        )


def _check_agent_loop(config: DictConfig, files: Files) -> None:
    """Refuse raw prompts and stop strings that the agent loop of the run would not know of."""
    agent = config.actor_rollout_ref.rollout.agent.default_agent_loop
    raw = [path for path, rows in files if any(row["extra_info"]["raw"] for row in rows)]
    if agent == AGENT_LOOP:
        _check_agent_loop_is_registered(config.actor_rollout_ref.model.external_lib)
    elif raw or config.data.stop:
        reason = f"{raw[0]} holds raw prompts" if raw else "data.stop is set"
        raise SettingsError(
            f"{reason}, which the agent loop {agent} does not know; set "
            f"actor_rollout_ref.rollout.agent.default_agent_loop={AGENT_LOOP}"
        )
    if raw and config.data.filter_overlong_prompts:
        raise SettingsError(
            f"{raw[0]} holds raw prompts, but data.filter_overlong_prompts measures with the chat template; "
            "set it to false"
        )


def _check_agent_loop_is_registered(external: str | ListConfig | None) -> None:
    if AGENT_LOOP_MODULE not in _paths(external or ""):
        raise SettingsError(
            f"the agent loop {AGENT_LOOP} needs {AGENT_LOOP_MODULE} in actor_rollout_ref.model.external_lib, "
            f"which is {external}"
        )


def _check_tokens(
    check: Callable[..., None], files: Files, model: DictConfig, data: DictConfig, limit: int
) -> None:
    """Run a check of `prompt_checks` on every file; no row is too long where verl is told to cut or drop."""
    tokenizer = prompt_checks.load_tokenizer(model)
    template = _plain(data.apply_chat_template_kwargs)
    shortens = data.truncation != "error" or data.get("filter_overlong_prompts", False)
    for path, rows in files:
        check(path, rows, tokenizer, template, limit=math.inf if shortens else limit)


def _check_verl(config: DictConfig) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(
            config=config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
    except (AssertionError, ValueError, InstantiationException) as error:
        # verl builds its configuration classes through Hydra, which wraps what they raise.
        raise SettingsError(f"verl refuses the configuration: {error.__cause__ or error}") from None


def _paths(files: str | ListConfig) -> list[str]:
    return [files] if isinstance(files, str) else list(files)


def _plain(node: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
