"""What is looked at before a run, in order: everything a user can get wrong, one line each.

A check yields its warnings and raises a ValueError or an OSError at the first error, since what follows
builds on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError

from data_prep.contract import read_rows, read_sft_rows
from recipe.rerule import io, platform, schema
from recipe.rerule.preflight import (
    disk,
    divisions,
    identity,
    installation,
    models,
    rows,
    settings,
    unlearning,
)
from recipe.rerule.replay import Replay
from recipe.rerule.runs import checkpoints, model_checks, run_folder
from recipe.rerule.schema import SettingsError, listed, plain, refuse
from recipe.rerule.training import cluster, learning, memory, sizes
from recipe.rerule.unlearning.method import Method
from reward import RewardConfig

_IN_HOME = (
    *("model.path", "actor_rollout_ref.model.path", "reference.path", "reinforced.path"),
    "trainer.default_local_dir",
)
"""Settings whose ~ is the home folder; verl would take it for a part of a name."""


def require(check: Callable[[DictConfig], Iterator[str]], config: DictConfig) -> None:
    """Let one of the checks below look at a resolved configuration, and print its warnings on stderr.

    Raises SettingsError with the line of the first error.
    """
    try:
        for line in check(config):
            io.warn(line)
    except (ValueError, OSError) as error:
        raise SettingsError(io.describe(error)) from None


def prepare(config: DictConfig, *required: str, require_accelerator: bool) -> None:
    """Resolve a configuration in which the keys `required` are set, and set its platform.

    Raises ValueError: one line naming the key, or what is not there: an accelerator, flash attention.
    """
    schema.require_set(config, *required)
    try:
        for key in _IN_HOME:
            if isinstance(path := OmegaConf.select(config, key), str) and path.startswith("~"):
                OmegaConf.update(config, key, os.path.expanduser(path))
        OmegaConf.resolve(config)
    except InterpolationResolutionError as error:
        raise ValueError(sizes.reason(error)) from error
    platform.select(config.platform.name, require_accelerator=require_accelerator)
    if require_accelerator and config.platform.name == "gpu":
        import torch

        asked, there = config.trainer.n_gpus_per_node, torch.accelerator.device_count()
        # Whether a Ray cluster that the run joins has them, `nodes` looks.
        own = "ray_kwargs" not in config or cluster.joined(config) is None
        refuse(
            own and type(asked) is int and asked > there,
            f"trainer.n_gpus_per_node is {asked}, but torch sees {there} here; lower it",
        )
    installation.require_attention(config)


def stage1(config: DictConfig) -> Iterator[str]:
    """Check a resolved stage-1 configuration."""
    # Settings, each by itself and together, and the parts that they name.
    schema.check(config, schema.STAGE1)
    divisions.check_stage1(config)
    settings.check_stage1(config)
    settings.check_parts(config, config.model, "model", "optim")
    _require_model(config, "checkpoint.save_contents")
    _check_run_folder(config, stage=1)
    # Model and rows.
    models.check(config.model.path, "model.path", config.model.trust_remote_code)
    models.check_adapter(config.model, "model")
    train = [(path, read_sft_rows(path)) for path in listed(config.data.train_files)]
    val = [(path, read_sft_rows(path)) for path in listed(config.data.val_files)]
    rows.refuse_probes(train)
    yield from rows.warnings(train, val)
    reward = RewardConfig(refusal_phrases=OmegaConf.select(config, "signal.reward_kwargs.refusal_phrases"))
    taught = [row["messages"][-1]["content"] for _, found in train for row in found]
    yield from reward.unseen(taught, "refusal_phrases of the reward")
    count = rows.usable(train, config.data)
    rows.require_validation_batch(val, config.data)
    prompts = [(path, read_rows(path)) for path in listed(config.data.prompt_files)]
    if prompts:
        rows.check_sampled_prompts(prompts)
    yield from rows.token_warnings(config, config.model, [*train, *val, *prompts])
    steps = settings.run_steps(config, count)
    yield from settings.warm_up_warnings(config, "optim", steps)
    yield from memory.warnings(config)
    yield from disk.warnings(config, steps, count)
    yield from learning.rate_warnings(config, "optim")


def stage2(config: DictConfig) -> Iterator[str]:
    """Check a resolved stage-2 configuration."""
    # Settings, each by itself and together, and the parts that they name.
    schema.check(config, schema.STAGE2)
    replay = settings.replay_config(config)
    settings.check_stage2(config)
    divisions.check_stage2(config)
    draws = list(divisions.draw_warnings(config, replay))
    policy, optimizer = config.actor_rollout_ref.model, "actor_rollout_ref.actor.optim"
    key = "actor_rollout_ref.model"
    settings.check_parts(config, policy, key, optimizer)
    settings.check_parts_of_stage2(config)
    Replay(replay)  # makes the rules of the user's own
    if config.trainer.save_freq != -1:
        _require_model(config, "actor_rollout_ref.actor.checkpoint.save_contents")
    _check_run_folder(config, stage=2)
    identity.check(config, identity.of_stage2)
    for name in ("validation_data_dir", "rollout_data_dir"):
        if (folder := config.trainer.get(name)) is not None:
            resumed = config.trainer.resume_mode != "disable"
            run_folder.check_dumps(f"trainer.{name}", folder, resumed=resumed)
    # Model and rows.
    if config.algorithm.adv_estimator == "gae":
        model_checks.check(config.critic.model.path, "critic.model.path")
    model = models.check(policy.path, f"{key}.path", policy.trust_remote_code)
    models.check_adapter(policy, key)
    divisions.check_heads(config, model)
    context = list(models.context_warnings(config, model))
    train = [(path, read_rows(path)) for path in listed(config.data.train_files)]
    val = [(path, read_rows(path)) for path in listed(config.data.val_files)]
    rows.refuse_probes(train)
    yield from rows.stage2_warnings(train, settings.phrases_of_reward(config))
    yield from rows.warnings(train, val)
    yield from rows.side_warnings(train, config.data)
    count = rows.usable(train, config.data)
    rows.check_raw(config, [*train, *val])
    yield from rows.token_warnings(config, policy, [*train, *val])
    if config.data.filter_overlong_prompts:
        count = rows.remaining(config, policy, train)
    steps = settings.run_steps(config, count)
    settings.check_verl(config)
    yield from settings.warnings_of_stage2(config)
    yield from context
    yield from rows.length_warnings(config, train)
    yield from settings.warm_up_warnings(config, optimizer, steps)
    yield from learning.never_replays(config)
    yield from draws
    yield from memory.warnings(config)
    yield from disk.warnings(config, steps)
    yield from learning.rate_warnings(config, optimizer)


def unlearn(config: DictConfig) -> Iterator[str]:
    """Check a resolved configuration of `recipe.rerule.unlearn`."""
    # Settings, each by itself and together, and the parts that they name.
    unlearning.require_method(config)
    schema.check(config, schema.UNLEARN)
    method = Method(**plain(config, "method"))
    settings.check_thinking(config.data)
    settings.check_adapter(config.model, "model")
    divisions.share_batch(config)
    settings.check_parts(config, config.model, "model", "optim")
    _require_model(config, "checkpoint.save_contents")
    _check_run_folder(config, stage="unlearn")
    # Models and rows.
    models.check(config.model.path, "model.path", config.model.trust_remote_code)
    models.check_adapter(config.model, "model")
    unlearning.check_layer(config, method)
    yield from unlearning.frozen_warnings(config, method)
    yield from unlearning.unread_settings(method)
    yield from unlearning.unread_files(config, method)
    files = unlearning.read(config, method)
    identity.check(config, identity.of_unlearn)
    named = [(config.data[side], found) for side, found in files.items()]
    for one in named:
        rows.refuse_probes([one])
        yield from rows.warnings([one], [])
    yield from rows.token_warnings(config, config.model, named)
    yield from unlearning.group_warnings(config, method, files)
    frozen = bool(method.referenced) + bool(method.reinforced)
    yield from memory.warnings(config, len(method.layout), frozen)
    count = len(files[unlearning.leading(method, files)])
    yield from disk.warnings(config, settings.run_steps(config, count), count)


def _require_model(config: DictConfig, key: str) -> None:
    """Refuse contents of checkpoints, the setting `key`, without the weights that others read.

    verl writes the folder huggingface, with the model's configuration and tokenizer, in any case.
    """
    contents = list(OmegaConf.select(config, key))
    refuse(
        "hf_model" not in contents,
        f"{key} is {contents}, without hf_model, so that the run would end without a model; add it",
    )


def _check_run_folder(config: DictConfig, stage: run_folder.Stage) -> None:
    """Refuse a folder that a run of this stage may not write to or go on in, or that already holds a run."""
    trainer, folder = config.trainer, config.trainer.default_local_dir
    run_folder.check_writable(folder)
    run_folder.check(folder, stage)
    # verl's SFT trainer loses an epoch where a checkpoint ends one.
    refuse(
        stage == 1 and trainer.resume_mode != "disable",
        f"trainer.resume_mode is {trainer.resume_mode}, but stage 1 starts from the beginning; set it to "
        "disable",
    )
    if trainer.resume_mode == "resume_path":
        schema.require_set(config, "trainer.resume_from_path")
    checkpoints.check_trusted(trainer)
    checkpoints.check_devices(trainer)
    # verl's SFT trainer takes it with auto too, where the checks of trust look at the run folder.
    refuse(
        stage != 1 and trainer.resume_mode != "resume_path" and trainer.resume_from_path is not None,
        f"trainer.resume_from_path is {trainer.resume_from_path}, but trainer.resume_mode is "
        f"{trainer.resume_mode}; set that to resume_path, or leave trainer.resume_from_path out",
    )
    instead = "delete this one" if stage == 1 else "trainer.resume_mode=auto to go on with it"
    refuse(
        trainer.resume_mode == "disable" and run_folder.is_begun(folder),
        f"trainer.default_local_dir is {folder}, which already holds a run; choose another folder, or "
        f"{instead}",
    )
    if trainer.resume_mode == "resume_path":
        checkpoints.check_resume_from(folder, trainer.resume_from_path)
