"""Conditions between settings that need no file of the user's; each function refuses one kind of mistake."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, get_args

from hydra.errors import InstantiationException
from omegaconf import DictConfig, ListConfig
from omegaconf.errors import OmegaConfBaseException

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.runs import checkpoints, run_folder
from recipe.rerule.schema import GroupEstimator, SettingsError, plain, require_set
from recipe.rerule.training.settings import devices

_VERL_REFUSES = (
    AssertionError,
    NotImplementedError,
    ValueError,
    TypeError,
    InstantiationException,
    OmegaConfBaseException,
)
"""What verl's checks raise."""


def replay_config(config: DictConfig) -> ReplayConfig:
    """The typed `replay` section.

    Raises:
        ReplayConfigError: naming the key that is unknown, of the wrong type or out of range.
        SettingsError: a threshold that its rule would not use.
    """
    replay = ReplayConfig.from_dict(plain(config, "replay"))
    if replay.threshold_rule == "quantile" and replay.threshold is not None:
        raise SettingsError(
            f"replay.threshold is {replay.threshold:g}, but replay.threshold_rule=quantile would not use it; "
            "add replay.threshold_rule=fixed, or leave the threshold out"
        )
    return replay


def check_reward_options(
    settings: Mapping[str, Any], key: str = "reward.custom_reward_function.reward_kwargs"
) -> None:
    """Refuse options that our reward does not know; a reward of the user's own checks its options itself.

    key: where the options stand.
    """
    if settings.get("path") != "pkg://reward.score":
        return
    from reward.score import check_options

    try:
        check_options(dict(settings.get("reward_kwargs") or {}))
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from None


def check_group_size(config: DictConfig) -> None:
    """Refuse groups of one response where groups are compared."""
    estimator = config.algorithm.adv_estimator
    if estimator in get_args(GroupEstimator) and config.actor_rollout_ref.rollout.n < 2:
        raise SettingsError(
            f"actor_rollout_ref.rollout.n is below 2; {estimator} needs at least two responses a prompt"
        )


def check_replay_fits(config: DictConfig) -> None:
    """Refuse a replay that the actor's settings do not allow."""
    if not config.replay.enable:
        return
    if config.replay.use_kl_loss and not config.actor_rollout_ref.actor.use_kl_loss:
        raise SettingsError(
            "replay.use_kl_loss is true but actor_rollout_ref.actor.use_kl_loss is false, so there are no "
            "reference log-probs; set both alike"
        )
    key, size = devices.sequence_parallel(config, devices.ACTOR)
    if size > 1:
        raise SettingsError(
            f"{key} is {size}, but replay does not support devices that share a sequence; set it to 1, or "
            "replay.enable=false"
        )


def check_run_folder(trainer: DictConfig, stage: run_folder.Stage) -> None:
    """Refuse a folder that a run of this stage may not write to, and a new run in a folder that holds one."""
    folder = trainer.default_local_dir
    run_folder.check_writable(folder)
    run_folder.check(folder, stage)
    checkpoints.check_trusted(folder, trainer.resume_mode)
    count = trainer.n_gpus_per_node * trainer.nnodes
    checkpoints.check_devices(folder, trainer.resume_mode, trainer.resume_from_path, count)
    if trainer.resume_mode == "disable" and run_folder.is_begun(folder):
        raise SettingsError(
            f"trainer.default_local_dir is {folder}, which already holds a run; choose another folder, or "
            "trainer.resume_mode=auto to go on with it"
        )


def check_dumps(trainer: DictConfig) -> None:
    """Refuse a folder in which verl would write responses over somebody else's files."""
    for key in ("validation_data_dir", "rollout_data_dir"):
        if (folder := trainer.get(key)) is not None:
            run_folder.check_dumps(f"trainer.{key}", folder, resumed=trainer.resume_mode != "disable")


def check_checkpoints(config: DictConfig) -> None:
    """Refuse a checkpoint that cannot be gone on from, and settings that would lose the last one."""
    trainer = config.trainer
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


def check_stop(stop: ListConfig, engine: str) -> None:
    """Refuse stop strings that would not be found."""
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


def check_sft_validation(config: DictConfig) -> None:
    """Refuse validation of stage 1 without rows."""
    if config.data.val_files is None and config.trainer.test_freq != -1:
        raise SettingsError(
            f"trainer.test_freq is {config.trainer.test_freq}, but data.val_files is null; give files to "
            "validate on, or set trainer.test_freq=-1"
        )


def check_sampling(config: DictConfig) -> None:
    """Refuse settings of stage 1's sampled responses and own answers that do not fit."""
    data, key = config.data, "data.prompt_files"
    needs = {"stop=signal": config.stop == "signal", "data.retain_share above 0": data.retain_share > 0}
    wanted = [what for what, is_set in needs.items() if is_set]
    if data.prompt_files is None:
        if wanted:
            raise SettingsError(f"{wanted[0]} needs prompts; give {key}=PATH, stage 2's train.parquet")
        return
    sharing, size = devices.sequence_parallel(config, devices.STAGE1)
    if size > 1 or config.engine.strategy != "fsdp2":
        wrong = f"{sharing} is {size}" if size > 1 else f"engine.strategy is {config.engine.strategy}"
        raise SettingsError(
            f"{wrong}, but responses are sampled from FSDP2 models on devices that share no sequence; set "
            f"{key}=null data.retain_share=0 stop=none, or {'1' if size > 1 else 'fsdp2'}"
        )
    if config.stop == "signal" and config.trainer.resume_mode != "disable":
        raise SettingsError(
            f"trainer.resume_mode is {config.trainer.resume_mode}, but with stop=signal the best step's "
            "weights are kept in memory, which a resumed run has lost; set it to disable, or stop=none"
        )
    if data.retain_share and data.train_max_samples > 0:
        raise SettingsError(
            f"data.train_max_samples is {data.train_max_samples}, but with data.retain_share above 0 verl "
            "would choose among refusals and own answers alike; set it to -1"
        )
    if data.retain_share and (config.model.tokenizer_path or config.model.custom_chat_template):
        raise SettingsError(
            "data.retain_share is above 0, but own answers are asked with the model's own tokenizer and "
            "template; leave out model.tokenizer_path and model.custom_chat_template"
        )
    reward = {"path": "pkg://reward.score", "reward_kwargs": plain(config, "signal")["reward_kwargs"]}
    check_reward_options(reward, "signal.reward_kwargs")


def check_thinking(data: DictConfig) -> None:
    """Refuse a setting of stage 1 that stage 2 lacks, so that prompts stay the same in both."""
    if data.enable_thinking_default is not None:
        raise SettingsError(
            "data.enable_thinking_default is unknown to stage 2; set data.apply_chat_template_kwargs in both"
        )


def check_verl(config: DictConfig) -> None:
    """Refuse what verl's own checks refuse, and rollout settings that its workers would refuse."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    checked = copy.deepcopy(config)
    # Of an unmerged adapter verl compares the rank, for which it imports vLLM; `lora.check_rollout` knows it.
    checked.actor_rollout_ref.model.lora.merge = True
    try:
        validate_config(
            config=checked,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    except _VERL_REFUSES as error:
        # verl builds its configuration classes through Hydra, which wraps what they raise.
        reason = error.__cause__ or error
        raise SettingsError(f"verl refuses the configuration: {str(reason) or repr(reason)}") from None
