"""Settings that do not fit together, and parts that they name and Python does not find.

A file of the user is parsed, not run, and a module is only found. Where verl does not know the name of a loss
or an agent loop, the libraries of `external_lib` are imported, because they may register it.
"""

from __future__ import annotations

import ast
import copy
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from omegaconf import DictConfig, ListConfig, OmegaConf

from recipe.rerule import schema
from recipe.rerule.replay import ReplayConfig
from recipe.rerule.schema import AGENT_LOOP, AGENT_LOOP_MODULE, SettingsError, listed, refuse, shown
from recipe.rerule.training import cluster
from recipe.rerule.training.memory import has_critic
from reward import RewardConfig
from reward.refusal import RefusalPhrases
from reward.score import PARTS, check_options

_OUR_REWARD = "pkg://reward.score"
_PACKAGES = {name: name for name in ("wandb", "mlflow", "swanlab", "tensorboard", "clearml", "trackio")}
_PACKAGES |= {"rl_insight": "rl_insight", "vemlp_wandb": "volcengine_ml_platform"}
"""The package that a logger needs."""
_HIGHEST_RANK = 512
"""Of an adapter that vLLM samples with (`MaxLoRARanks`)."""


def check_stage1(config: DictConfig) -> None:
    """Refuse settings of stage 1 that do not fit together. Raises SettingsError."""
    data, trainer = config.data, config.trainer
    check_thinking(data)
    check_adapter(config.model, "model")
    refuse(
        data.val_files is None and trainer.test_freq != -1,
        f"trainer.test_freq is {trainer.test_freq}, but data.val_files is null; give files to "
        "validate on, or set trainer.test_freq=-1",
    )
    needs = {"stop=signal": config.stop == "signal", "data.retain_share above 0": data.retain_share > 0}
    if data.prompt_files is None:
        for what, is_set in needs.items():
            refuse(is_set, f"{what} needs prompts; give data.prompt_files=PATH, stage 2's train.parquet")
        return
    refuse(
        config.engine.strategy != "fsdp2",
        f"engine.strategy is {config.engine.strategy}, but responses are sampled from FSDP2 models; set it "
        "to fsdp2, or data.prompt_files=null data.retain_share=0 stop=none",
    )
    refuse(
        data.retain_share > 0 and data.train_max_samples > 0,
        f"data.train_max_samples is {data.train_max_samples}, but with data.retain_share above 0 verl "
        "would choose among refusals and own answers alike; set it to -1",
    )
    refuse(
        data.retain_share > 0 and bool(config.model.tokenizer_path or config.model.custom_chat_template),
        "data.retain_share is above 0, but own answers are asked with the model's own tokenizer and "
        "template; leave out model.tokenizer_path and model.custom_chat_template",
    )
    _check_reward_options(schema.plain(config, "signal")["reward_kwargs"], "signal.reward_kwargs")


def phrases_of_reward(config: DictConfig) -> RefusalPhrases | None:
    """Those by which the reward of a checked stage 2 judges refusals; None for a reward of one's own."""
    function = schema.plain(config, "reward.custom_reward_function")
    if function["path"] != _OUR_REWARD:
        return None
    return RewardConfig(refusal_phrases=(function["reward_kwargs"] or {}).get("refusal_phrases")).phrases


def check_stage2(config: DictConfig) -> None:
    """Refuse settings of stage 2 that do not fit together. Raises SettingsError."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    function = schema.plain(config, "reward.custom_reward_function")
    if function["path"] == _OUR_REWARD:
        _check_reward_options(function["reward_kwargs"], "reward.custom_reward_function.reward_kwargs")
    _check_v1(config)
    refuse(
        config.trainer.critic_warmup > 0 and not has_critic(config),
        f"trainer.critic_warmup is {config.trainer.critic_warmup}, but no critic is trained; set it to 0",
    )
    refuse(
        config.trainer.max_critic_ckpt_to_keep is not None,
        "trainer.max_critic_ckpt_to_keep is not read: checkpoints hold actor and critic; leave it null, and "
        "set trainer.max_actor_ckpt_to_keep",
    )
    estimator = config.algorithm.adv_estimator
    refuse(
        estimator in get_args(schema.GroupEstimator) and rollout.n < 2,
        f"actor_rollout_ref.rollout.n is below 2; {estimator} needs at least two responses a prompt",
    )
    refuse(
        config.replay.enable and config.replay.use_kl_loss and not actor.use_kl_loss,
        "replay.use_kl_loss is true but actor_rollout_ref.actor.use_kl_loss is false, so there are no "
        "reference log-probs; set both alike",
    )
    refuse(
        config.replay.enable
        and actor.loss_agg_mode == "seq-mean-token-sum-norm"
        and actor.loss_scale_factor is None,
        "actor_rollout_ref.actor.loss_scale_factor is null, and loss_agg_mode=seq-mean-token-sum-norm would "
        "divide by the longest response of a batch, which the replay update does not share; set it, such as "
        "to data.max_response_length",
    )
    key, model = "actor_rollout_ref.model", config.actor_rollout_ref.model
    check_adapter(model, key)
    sent = model.lora_rank > 0 and not model.lora.merge
    refuse(
        sent and config.platform.name == "cpu",
        f"platform=cpu cannot send a LoRA adapter to the rollout engine; set {key}.lora.merge=true",
    )
    refuse(
        sent and rollout.name == "vllm" and model.lora_rank > _HIGHEST_RANK,
        f"{key}.lora_rank is {model.lora_rank}, but vLLM samples with adapters of rank {_HIGHEST_RANK} at "
        f"most; lower it, or set {key}.lora.merge=true",
    )
    refuse(
        config.trainer.val_only and not config.trainer.val_before_train,
        "trainer.val_only is true, but trainer.val_before_train is false, so that verl would train; set both "
        "to true",
    )
    refuse(
        config.algorithm.use_pf_ppo,
        "algorithm.use_pf_ppo is true, which draws the responses of a step anew and leaves no whole rollout "
        "groups; set it to false",
    )
    escaped = [text for text in config.data.stop if "\\n" in text]
    refuse(
        bool(escaped),
        f'data.stop holds {"".join(escaped[:1])}, a backslash and an n; for a newline write "\\n" in YAML '
        "and data.stop=$'[\"\\n\"]' in bash",
    )
    refuse(
        bool(config.data.stop) and rollout.name != "vllm",
        f"data.stop is set, but verl gives {rollout.name} no tokenizer to find stop strings with; set "
        "actor_rollout_ref.rollout.name=vllm",
    )
    refuse(
        bool(config.trainer.get("remove_previous_ckpt_in_save")),
        "trainer.remove_previous_ckpt_in_save would delete the last complete checkpoint before the next "
        "is written; use trainer.max_actor_ckpt_to_keep=1 instead",
    )
    refuse(
        bool(actor.checkpoint.get("async_save")),
        "actor_rollout_ref.actor.checkpoint.async_save is true, but a checkpoint must be written before "
        "it counts; set it to false",
    )
    _check_processors(config)


def _check_processors(config: DictConfig) -> None:
    """Refuse a count of processors with which Ray would wait for ever, in a cluster of the run's own."""
    count, devices = config.ray_kwargs.ray_init.num_cpus, config.trainer.n_gpus_per_node
    each, others = cluster.CPUS_OF_DEVICE, 1 + cluster.queue_cpus(config)
    needed = each * devices + others
    refuse(
        count is not None and count < needed and cluster.joined(config) is None,
        f"ray_kwargs.ray_init.num_cpus is {count}, but verl asks Ray for {needed} processors "
        f"({each} with each of the {devices} devices, and {others}) and would wait for ever; they are only "
        f"counted, so set it to {needed + cluster.OTHER_CPUS - 1} or more, however many there are",
    )


def replay_config(config: DictConfig) -> ReplayConfig:
    """The typed `replay` section.

    Raises:
        ReplayConfigError: naming the key that is unknown, of the wrong type or out of range.
        SettingsError: a threshold that its rule would not use.
    """
    replay = ReplayConfig.from_dict(schema.plain(config, "replay"))
    refuse(
        replay.threshold_rule == "quantile" and replay.threshold is not None,
        f"replay.threshold is {replay.threshold}, but replay.threshold_rule=quantile would not use it; "
        "add replay.threshold_rule=fixed, or leave the threshold out",
    )
    return replay


def check_thinking(data: DictConfig) -> None:
    """Refuse a setting of stage 1 that stage 2 lacks, so that prompts stay the same in both."""
    refuse(
        data.enable_thinking_default is not None,
        "data.enable_thinking_default is unknown to stage 2; set data.apply_chat_template_kwargs in both",
    )


def check_adapter(model: DictConfig, key: str) -> None:
    """Refuse settings of a LoRA adapter that do not fit together.

    `key`: of the section, such as "actor_rollout_ref.model".

    Raises SettingsError: one line naming the setting.
    """
    rank = OmegaConf.select(model, "lora.rank", default=0)
    refuse(
        bool(rank),
        f"{key}.lora.rank is {shown(rank)}, which is for verl's other engines: with FSDP there would be "
        f"no adapter; set it to 0, and {key}.lora_rank",
    )
    refuse(
        model.lora_rank == 0 and model.lora_adapter_path is not None,
        f"{key}.lora_adapter_path is {model.lora_adapter_path}, but {key}.lora_rank is 0, so that verl "
        f"would train all weights without the adapter; set {key}.lora_rank to the adapter's rank",
    )
    parameters = OmegaConf.select(model, "target_parameters")
    refuse(
        parameters is not None,
        f"{key}.target_parameters is {parameters}, but only adapters on modules can be merged; set it to "
        f"null, and {key}.target_modules",
    )
    refuse(
        model.lora_rank > 0 and importlib.util.find_spec("peft") is None,
        f"{key}.lora_rank is {model.lora_rank}, which needs the package peft; install it",
    )


def check_verl(config: DictConfig) -> None:
    """Refuse what verl's own checks refuse, and rollout settings that its workers would refuse."""
    from hydra.errors import InstantiationException
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    checked = copy.deepcopy(config)
    # Of an unmerged adapter verl compares the rank, for which it imports vLLM; `check_stage2` knows it.
    checked.actor_rollout_ref.model.lora.merge = True
    wrong = (AssertionError, NotImplementedError, ValueError, TypeError)
    try:
        validate_config(
            config=checked,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    except (*wrong, InstantiationException, OmegaConfBaseException) as error:
        # verl builds its configuration classes through Hydra, which wraps what they raise.
        reason = error.__cause__ or error
        raise SettingsError(f"verl refuses the configuration: {str(reason) or repr(reason)}") from None


def warnings_of_stage2(config: DictConfig) -> Iterator[str]:
    """What is allowed, but hardly meant."""
    actor = config.actor_rollout_ref
    if actor.model.lora_adapter_path is not None and actor.actor.use_kl_loss:
        yield (
            "with actor_rollout_ref.model.lora_adapter_path the reference of the KL term is "
            "actor_rollout_ref.model.path without that adapter; for the model with it, give the merged model "
            "as actor_rollout_ref.model.path, and no lora_adapter_path"
        )
    if config.trainer.save_freq == -1:
        yield (
            "trainer.save_freq is -1: no checkpoint is written, so that the trained model is lost; a number "
            "above the run's steps writes one at the last step"
        )


def run_steps(config: DictConfig, rows: int) -> int:
    """How many steps a run on so many rows has.

    Raises SettingsError: the rows end before trainer.total_training_steps; verl would then save nothing,
    since it never reaches its last step.
    """
    trainer, batch = config.trainer, config.data.train_batch_size
    steps = rows // batch * trainer.total_epochs
    wanted = steps if trainer.total_training_steps is None else trainer.total_training_steps
    refuse(
        wanted > steps,
        f"trainer.total_training_steps is {wanted}, but {trainer.total_epochs} epochs of {rows} rows at "
        f"data.train_batch_size={batch} are {steps} steps, so that the last step, which saves the model, "
        "would never come; raise trainer.total_epochs, or lower the steps",
    )
    return int(wanted)


def warm_up_warnings(config: DictConfig, section: str, steps: int) -> Iterator[str]:
    """What to say where the learning rate is 0, or the run ends before the rate is reached.

    section: where the optimiser's settings stand.
    """
    optimizer = OmegaConf.select(config, section)
    if optimizer.lr == 0:
        yield f"{section}.lr is 0: the run changes nothing in the model"
    elif optimizer.lr_warmup_steps >= steps:
        yield (
            f"{section}.lr_warmup_steps is {optimizer.lr_warmup_steps}, but the run has {steps} steps: the "
            f"learning rate never reaches {optimizer.lr:g}; lower it, or make the run longer"
        )


def _check_reward_options(options: Mapping[str, Any] | None, key: str) -> None:
    """Refuse options that our reward does not know; a reward of the user's own checks its options itself."""
    try:
        check_options(dict(options or {}))
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from None


def _check_v1(config: DictConfig) -> None:
    """Refuse settings of the trainer that `trainer.use_v1` does not choose, or that ours does not extend."""
    v1, groups, reward = config.trainer.v1, config.algorithm.filter_groups, config.reward
    sampler, filtering = "trainer.v1.sampler", "algorithm.filter_groups"
    if not config.trainer.use_v1:
        for key in (f"{filtering}.enable", f"{sampler}.sync_refill_failed_groups"):
            refuse(
                bool(OmegaConf.select(config, key)),
                f"{key} is true, but verl's trainer before V1 ignores it; set trainer.use_v1=true, or leave "
                "it false",
            )
        return
    refuse(
        v1.trainer_mode != "sync",
        f"trainer.v1.trainer_mode is {v1.trainer_mode!r}; ReRULE extends verl's synchronous trainer "
        "alone, because replay needs groups of one policy: set it to sync",
    )
    updates = v1.sync.get("parameter_sync_step", 1)
    refuse(
        updates != 1,
        f"trainer.v1.sync.parameter_sync_step is {updates}, but ReRULE's extra updates come once a step, "
        "after its only on-policy update; leave it out",
    )
    own = v1.sampler.custom_sampler.path
    refuse(
        config.replay.enable and own is not None,
        f"{sampler}.custom_sampler.path is {own!r}, but replay needs whole groups of the step, which verl's "
        "own sampler gives; set it to null, or replay.enable=false",
    )
    refuse(
        config.sides.weights != "equal",
        "sides.weights is by_error, but on verl's V1 trainer the driver has no advantages to weigh; "
        "set it to equal, or trainer.use_v1=false",
    )
    refuse(
        not config.trainer.balance_batch,
        "trainer.balance_batch is false, but verl's V1 trainer always gives ranks rows of alike length; "
        "leave it true, or set trainer.use_v1=false",
    )
    if not groups.enable:
        return
    refuse(
        groups.max_num_gen_batches > 0,
        f"{filtering}.max_num_gen_batches is {groups.max_num_gen_batches}, but verl's V1 trainer ignores "
        f"it; set it to 0 ({filtering}.max_inflight_gen_batches bounds what is generated at once)",
    )
    refuse(
        reward.reward_model.enable and not reward.reward_model.enable_resource_pool,
        f"{filtering}.enable is true, but a reward model on the trainer's devices gives rewards only after "
        "groups are chosen; set reward.reward_model.enable_resource_pool=true",
    )
    function, returned = reward.custom_reward_function, ("reward", *PARTS)
    refuse(
        (function.path, function.name) == (_OUR_REWARD, "compute_score") and groups.metric not in returned,
        f"{filtering}.metric is {groups.metric!r}, which the reward does not return; set it to one of "
        f"{', '.join(returned)}",
    )


# Parts that settings name.


def check_parts(config: DictConfig, model: DictConfig, key: str, optimizer: str) -> None:
    """Refuse libraries, a data set, an optimiser or loggers that Python does not find.

    Args:
        model, key: the model's section, and where it stands.
        optimizer: where the optimiser's section stands.

    Raises SettingsError: naming the setting.
    """
    for name in listed(model.external_lib):
        _check_module(f"{key}.external_lib", name)
    refuse(
        bool(model.use_liger) and importlib.util.find_spec("liger_kernel") is None,
        f"{key}.use_liger is true, but the package liger-kernel is not installed; install it, or set "
        f"{key}.use_liger=false",
    )
    if (data_set := config.data.get("custom_cls")) is not None and data_set.path is not None:
        _check_defined("data.custom_cls", data_set.path, data_set.name)
    chosen = OmegaConf.select(config, optimizer)
    _check_module(f"{optimizer}.optimizer_impl", chosen.optimizer_impl)
    if chosen.optimizer_impl == "torch.optim":
        import torch

        refuse(
            not isinstance(getattr(torch.optim, chosen.optimizer, None), type),
            f"{optimizer}.optimizer is {chosen.optimizer!r}, which torch.optim does not have; set it to the "
            "name of one of its classes, such as AdamW",
        )
    for name in listed(config.trainer.logger):
        package = _PACKAGES.get(name)
        refuse(
            package is not None and importlib.util.find_spec(package) is None,
            f"trainer.logger names {name}, but the package {package} is not installed; install it, or set "
            "trainer.logger=[console,file]",
        )


def check_parts_of_stage2(config: DictConfig) -> None:
    """Refuse an agent loop, a policy loss or a reward that nothing registers or defines."""
    _check_agent_loop(config)
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    libraries, loss = config.actor_rollout_ref.model.external_lib, config.actor_rollout_ref.actor.policy_loss
    if loss.loss_mode not in POLICY_LOSS_REGISTRY:
        _import_all(libraries)
    refuse(
        loss.loss_mode not in POLICY_LOSS_REGISTRY,
        f"actor_rollout_ref.actor.policy_loss.loss_mode is {loss.loss_mode!r}; set it to one of "
        f"{', '.join(POLICY_LOSS_REGISTRY)}, or name the module that registers it in "
        "actor_rollout_ref.model.external_lib",
    )
    function, manager = config.reward.custom_reward_function, config.reward.reward_manager
    _check_defined("reward.custom_reward_function", function.path, function.name)
    if manager.source == "importlib":
        _check_defined("reward.reward_manager", manager.module.path, manager.name, path_key="module.path")
        return
    known = get_args(schema.RewardManager)
    refuse(
        manager.name not in known,
        f"reward.reward_manager.name is {manager.name!r}; set it to one of {', '.join(known)}, or "
        "reward.reward_manager.source=importlib for one of your own",
    )


def _check_agent_loop(config: DictConfig) -> None:
    agent, libraries = config.actor_rollout_ref.rollout.agent, config.actor_rollout_ref.model.external_lib
    name, of_verl = agent.default_agent_loop, get_args(schema.AgentLoop)
    if agent.agent_loop_config_path is not None or name in of_verl:  # verl reads the names from that file
        return
    if name == AGENT_LOOP:
        refuse(
            AGENT_LOOP_MODULE not in listed(libraries),
            f"the agent loop {name} needs {AGENT_LOOP_MODULE} in actor_rollout_ref.model.external_lib, "
            f"which is {libraries}",
        )
        return
    from verl.experimental.agent_loop import agent_loop

    _import_all(libraries)
    refuse(
        name not in agent_loop._agent_loop_registry,
        f"actor_rollout_ref.rollout.agent.default_agent_loop is {name!r}; set it to one of "
        f"{', '.join((*of_verl, AGENT_LOOP))}, or name the module that registers it in "
        "actor_rollout_ref.model.external_lib",
    )


def _import_all(libraries: str | ListConfig | None) -> None:
    # As verl does in each process: they register their parts.
    for library in listed(libraries):
        importlib.import_module(library)


def _check_module(key: str, name: str) -> Path | None:
    """Refuse a module that Python does not find; the file of its source where it has one."""
    module = name.removeprefix("pkg://").replace("/", ".") if name.startswith("pkg://") else name
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # of the package above it; of a name such as "a..b"
        spec = None
    if spec is None:
        raise SettingsError(
            f"{key} is {name!r}, but Python finds no module of that name; correct it, or put its folder on "
            "PYTHONPATH"
        )
    return Path(spec.origin) if spec.origin is not None and spec.origin.endswith(".py") else None


def _check_defined(section: str, path: str | None, name: str | None, path_key: str = "path") -> None:
    """Refuse a path (a file, or pkg://MODULE) that is not there, and a name that it does not define."""
    key = f"{section}.{path_key}"
    if path is None:
        raise SettingsError(f"{key} is null; set it to a Python file, or to pkg://MODULE")
    source = _check_module(key, path) if path.startswith("pkg://") else Path(path.removeprefix("file://"))
    if source is None:
        return  # a module without Python source
    refuse(
        not source.is_file(),
        f"{key} is {path!r}, which is no file; set it to a Python file, or to pkg://MODULE",
    )
    try:
        defined = set(_defined(ast.parse(source.read_text("utf-8"), str(source))))
    except (SyntaxError, ValueError, OSError) as error:
        raise SettingsError(f"{key} is {path!r}, which is no Python file: {error}") from None
    refuse(
        not {name, "*"} & defined,
        f"{section}.name is {shown(name)}, which {path} does not define; set it to a name that it defines",
    )


def _defined(node: ast.AST) -> Iterator[str]:
    """Names that a module binds outside of functions and classes; "*" where it imports all of another's."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in child.names)
        else:
            yield from _defined(child)
