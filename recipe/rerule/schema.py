"""Every setting that the recipe knows, declared once: its dotted key, its type and bounds, and what it is.

STAGE1, STAGE2 and UNLEARN hold our own keys and those of verl's whose values matter here; `check` holds a
configuration to one of them with pydantic. In a type, `title` says what is allowed where the bounds do not;
`description` says what the setting is, and --help lists the settings that have one. Other keys of verl pass
as they are. Nothing here imports torch or verl, so that --help answers at once.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigTypeError
from pydantic import Field, TypeAdapter, ValidationError

Table = Mapping[str, TypeAdapter[Any]]
"""Of each setting, by its dotted key, what pydantic accepts."""


class SettingsError(ValueError):
    """A setting is missing, unknown or out of range; the message is one line and says what to do."""


def refuse(when: bool, line: str) -> None:
    """Raise SettingsError with this line, where `when` holds."""
    if when:
        raise SettingsError(line)


AGENT_LOOP = "rerule_single_turn_agent"
"""Name of our agent loop, which knows raw prompts and stop strings, and the module that registers it."""
AGENT_LOOP_MODULE = "recipe.rerule.training.agent_loop"

# Kinds of values.

SEED_LIMIT = 2**31 - 1
"""The highest seed; the engines add their rank and hand the sum to numpy, which takes 32 bits."""
MOST_TOKENS = 1_000_000
"""Bound on lengths in tokens: no model reads more."""

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Seed = Annotated[int, Field(ge=0, le=SEED_LIMIT)]
OrAll = Count | Literal[-1]
"""-1 takes all, or never does it."""
Number = Annotated[float, Field(allow_inf_nan=False)]
AtLeast0 = Annotated[Number, Field(ge=0)]
Above0 = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
ShareAbove0 = Annotated[Number, Field(gt=0, le=1)]
Text = Annotated[str, Field(pattern=r"\S", title="text that is not empty")]
Folder = Annotated[Text, Field(title="a folder")]
Model = Annotated[Text, Field(title="a Hugging Face folder or name")]
Module = Annotated[Text, Field(title="a module (pkg://...) or a Python file")]
Class = Annotated[Text, Field(title="the name of a class")]
File = Annotated[Text, Field(title="the path of a parquet file")]
Texts = Annotated[list[Text], Field(min_length=1)]
Files = Annotated[Texts | Text, Field(title="the path of a parquet file, or a list of paths")]
Modules = Annotated[Texts | Text, Field(title="the name of a module, a pattern of names, or a list of names")]
Libraries = Annotated[list[Text] | Text, Field(title="the name of a module, or a list of names")]
Stop = Annotated[list[Annotated[str, Field(min_length=1)]], Field(title="a list of texts that are not empty")]
Pair = Annotated[list[Share], Field(min_length=2, max_length=2, title="a list of two numbers from 0 to 1")]

# Names that verl compares with or registers parts under. Importing it takes seconds, so that they stand here.

GroupEstimator = Literal[
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
]
"""verl's advantage estimators that compare the responses of one rollout group."""
Estimator = Literal[GroupEstimator, "reinforce_plus_plus", "gae"]
"""All that stage 2 accepts; gae is PPO with a critic."""
KlEstimator = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "low_var_kl+", "k3+"
]
"""With "+": that value, with the gradient of k2."""
Aggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
Schedule = Literal["constant", "cosine"]
Engine = Literal["vllm", "sglang", "trtllm"]
Strategy = Literal["fsdp", "fsdp2", "fsdp_turbo"]
CriticStrategy = Literal["fsdp", "fsdp2"]
AgentLoop = Literal["single_turn_agent", "tool_agent"]
"""verl's own; libraries register more."""
RewardManager = Literal["naive", "dapo", "gdpo", "rate_limited", "remote"]
Contents = Annotated[list[Literal["model", "optimizer", "extra", "hf_model"]], Field(min_length=1)]
Truncation = Literal["error", "left", "right", "middle"]
KlController = Literal["fixed", "adaptive"]
Dtype = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
Logger = Literal[
    "wandb",
    "mlflow",
    "swanlab",
    "vemlp_wandb",
    "tensorboard",
    "console",
    "clearml",
    "trackio",
    "file",
    "rl_insight",
]
V1Mode = Literal["sync", "colocate_async", "separate_async"]
Storage = Literal["SimpleStorage", "MooncakeStore"]


# Terms of the losses that are not reinforcement (see `unlearning.method`).

ForgetTerm = Literal[
    "none", "ga", "wga", "satimp", "npo", "simnpo", "dpo", "flat", "undial", "ceu", "pdu", "rmu", "whp"
]
RetainTerm = Literal["none", "nll", "kl", "hidden"]
AlternateTerm = Literal["none", "nll"]
Divergence = Literal["pearson", "kl", "tv", "js"]
Labels = Literal["argmax", "soft"]


def null(meaning: str) -> Any:
    """None as a value that means something."""
    return Annotated[None, Field(title=f"null ({meaning})")]


def about(kind: Any, description: str) -> Any:
    """A kind with what the setting is, which --help then lists."""
    return Annotated[kind, Field(description=description)]


def _only(value: Any) -> Any:
    """The value of a setting with which verl can do more than unlearning can."""
    kind = None if value is None else Literal[value]
    text = {None: "null", False: "false"}.get(value, value)
    return Annotated[kind, Field(title=f"{text}, since unlearning has no other")]


def _each(section: str, kind: Any, *names: str) -> dict[str, Any]:
    """Settings of one kind."""
    return {f"{section}.{name}": kind for name in names}


# Sections that several commands have.


def _optimizer(section: str) -> dict[str, Any]:
    return {
        f"{section}.lr": Share,
        f"{section}.lr_warmup_steps": Natural | Literal[-1],
        f"{section}.lr_scheduler_type": Schedule,
        f"{section}.clip_grad": Annotated[float, Field(gt=0, title="a number > 0 (inf too)")],
        f"{section}.betas": Pair,
        f"{section}.min_lr_ratio": Share | None,
        f"{section}.num_cycles": Above0,
        f"{section}.weight_decay": AtLeast0,
        f"{section}.lr_warmup_steps_ratio": Share,
        **_each(section, Text, "optimizer", "optimizer_impl"),
    }


def _rate(section: str) -> dict[str, Any]:
    """What --help lists of an optimizer."""
    return {
        f"{section}.lr": about(Share, "learning rate (0 changes nothing)"),
        f"{section}.lr_warmup_steps": about(
            Natural | Literal[-1], "steps until the full learning rate; -1 uses lr_warmup_steps_ratio"
        ),
    }


def _model(section: str) -> dict[str, Any]:
    return {
        f"{section}.path": about(Model, "the model"),
        f"{section}.tokenizer_path": Text | None,
        **_each(section, bool, "trust_remote_code", "use_remove_padding", "enable_gradient_checkpointing"),
        f"{section}.use_fused_kernels": bool,
        f"{section}.lora_rank": Annotated[int, Field(ge=0, le=65536)],
        f"{section}.lora_alpha": Count,
        f"{section}.target_modules": Modules,
        f"{section}.exclude_modules": Modules | None,
        f"{section}.lora_adapter_path": Folder | None,
        f"{section}.external_lib": Libraries | None,
    }


def _sharing(section: str) -> dict[str, Any]:
    """How the devices of an engine share weights; they share no sequence."""
    turbo = "turbo_config.distributed.ulysses_parallel_size"
    alone = _each(section, Literal[1], "ulysses_sequence_parallel_size", turbo)
    return {**alone, f"{section}.fsdp_size": OrAll}


def _run(often: Any = OrAll, nodes: Any = Count) -> dict[str, Any]:
    """Platform, trainer and saving."""
    return {
        "platform.name": Literal["gpu", "cpu"],
        "platform.require_accelerator": about(
            bool, "false lets a driver without an accelerator start a run on GPU nodes"
        ),
        "platform.attention": Literal["auto", "sdpa", "flash_attention_2"],
        "platform.bf16": bool | Literal["auto"],
        "trainer.total_epochs": about(Count, "passes over the rows"),
        "trainer.total_training_steps": about(Count | null("by total_epochs"), "the run's steps"),
        "trainer.default_local_dir": about(Folder, "the run folder"),
        "trainer.logger": about(
            Annotated[list[Logger] | Logger, Field(title=f"a list of {', '.join(get_args(Logger))}")],
            "where metrics go",
        ),
        "trainer.save_freq": about(often, "steps between checkpoints (-1 writes none between)"),
        "trainer.test_freq": about(often, "steps between validations (-1 makes none)"),
        "trainer.n_gpus_per_node": about(Annotated[int, Field(ge=1, le=1024)], "devices of a node"),
        "trainer.nnodes": about(nodes, "nodes"),
        "trainer.resume_mode": about(Literal["disable", "auto", "resume_path"], "whether the run goes on"),
        "trainer.resume_from_path": Folder | None,
        "trainer.device": Literal["cuda", "cpu", "npu"],
        "trainer.balance_batch": bool,
        **_each("trainer", Text, "project_name", "experiment_name"),
    }


_WEIGHTS = about(
    Literal["float32", "bfloat16"], "dtype of the written Hugging Face folder; bfloat16 rounds the weights"
)
_REWARD = "reward.custom_reward_function.reward_kwargs"


def _by_the_reward(words: str, description: str, without: str = "the benchmark's") -> Any:
    """An option that the reward checks itself, because it may be the user's own."""
    return Annotated[Any, Field(title=f"{words}, or null ({without})", description=description)]


def _of_replay() -> dict[str, Any]:
    """The kinds that `replay.config` declares."""
    module = _replay_module()
    sections = {"replay": module.ReplayConfig, "replay.importance": module.ImportanceConfig}
    return {
        f"{section}.{name}": kind
        for section, config in sections.items()
        for name, kind in get_type_hints(config, include_extras=True).items()
        if name != "importance"
    }


def _replay_module() -> ModuleType:
    # Importing it through its package takes torch's two seconds, which --help must not wait for.
    name = "recipe.rerule.replay.config"
    if name in sys.modules:
        return sys.modules[name]
    file = Path(__file__).parent / "replay" / "config.py"
    spec = importlib.util.spec_from_file_location("rerule_replay_declarations", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its annotations are looked up there
    spec.loader.exec_module(module)
    return module


def _adapters(kinds: Mapping[str, Any]) -> Table:
    return {key: TypeAdapter(kind) for key, kind in kinds.items()}


# The tables.

_SFT: dict[str, Any] = {
    "data.use_dynamic_bsz": bool,
    "data.max_token_len_per_gpu": Count,
    "data.num_workers": Annotated[int, Field(ge=0, le=1024)],
    "engine.strategy": Strategy,
    **_sharing("engine"),
    **_optimizer("optim"),
    **_rate("optim"),
    "checkpoint.save_contents": Contents,
    **_run(often=OrAll | Literal["after_each_epoch"], nodes=Literal[1]),
    "trainer.max_ckpt_to_keep": Count | None,
    "trainer.seed": Seed,
    "save.weights_dtype": _WEIGHTS,
}
"""What stage 1 and the other unlearning methods share: verl's SFT trainer."""

STAGE1: Table = _adapters(
    {
        **_model("model"),
        "data.train_files": about(Files, "rows of stage 1 (sft.parquet)"),
        "data.prompt_files": about(
            Files | null("none are sampled"),
            "prompts of stage 2 (train.parquet), of which responses are sampled",
        ),
        "data.retain_share": about(
            Annotated[Number, Field(ge=0, le=0.9)],
            "share of the model's own right answers to retain prompts in each batch",
        ),
        "data.train_batch_size": about(Count, "rows in each step"),
        "data.micro_batch_size_per_gpu": about(Count, "rows in each pass of a device"),
        "data.max_length": about(Tokens, "the most tokens of prompt and refusal"),
        "data.max_response_length": about(
            Tokens, "the most tokens of a sampled response and of an own answer"
        ),
        "data.truncation": about(Literal["error", "left", "right"], "what happens to longer rows"),
        "signal.every": about(Count, "steps between two samplings"),
        "signal.prompts": about(Count, "prompts of each side that are sampled"),
        "signal.samples": about(Annotated[int, Field(ge=2)], "responses to each of them"),
        "stop": about(
            Literal["none", "signal"],
            "signal: the model of the step that is the best start of stage 2; none: of the last step",
        ),
        "signal.temperature": Annotated[Number, Field(gt=0, le=2)],
        "signal.reward_kwargs": dict[str, Any],
        "data.val_files": Files | None,
        "data.stop": Stop,
        **_each("data", OrAll, "train_max_samples", "val_max_samples"),
        "data.pad_mode": Literal["no_padding", "right"],
        "data.custom_cls.path": Module | None,
        "data.custom_cls.name": Class | None,
        **_SFT,
    }
)

STAGE2: Table = _adapters(
    {
        "model_engine": Literal["dp"],
        **_model("actor_rollout_ref.model"),
        "actor_rollout_ref.model.lora.merge": bool,
        "data.train_files": about(Files, "prompts to train on (train.parquet)"),
        "data.val_files": about(Files, "prompts of validation (val.parquet)"),
        "data.train_batch_size": about(Count, "prompts in each step"),
        "data.max_prompt_length": about(Tokens, "the most tokens of a prompt"),
        "data.max_response_length": about(Tokens, "the most tokens of a response"),
        "data.stop": about(Stop, "strings that end a response"),
        "data.seed": about(Seed, "seed of the run: order, responses, draws of replay, a new adapter"),
        "data.sides": about(
            Literal["as_given", "balanced"],
            "balanced: half of each batch from each side; the smaller side repeats",
        ),
        "data.truncation": about(Truncation, "what happens to a longer prompt"),
        **_each("data", bool, "shuffle", "filter_overlong_prompts"),
        **_each("data", OrAll, "train_max_samples", "val_max_samples"),
        **_each("data", Count | None, "gen_batch_size", "val_batch_size"),
        "data.dataloader_num_workers": Annotated[int, Field(ge=0, le=1024)],
        "data.custom_cls.path": Module | None,
        "data.custom_cls.name": Class | None,
        "actor_rollout_ref.actor.ppo_mini_batch_size": about(Count, "prompts in each optimiser step"),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": about(
            Count | null("with use_dynamic_bsz"), "responses in each pass of a device"
        ),
        "actor_rollout_ref.actor.clip_ratio_low": about(AtLeast0, "how far below 1 the ratio is clipped"),
        "actor_rollout_ref.actor.clip_ratio_high": about(AtLeast0, "how far above 1 the ratio is clipped"),
        "actor_rollout_ref.actor.use_kl_loss": about(bool, "add KL to the stage-1 model to the loss"),
        "actor_rollout_ref.actor.kl_loss_coef": about(AtLeast0, "weight of that KL"),
        "actor_rollout_ref.actor.kl_loss_type": KlEstimator,
        "actor_rollout_ref.actor.loss_agg_mode": Aggregation,
        "actor_rollout_ref.actor.policy_loss.loss_mode": Text,
        "actor_rollout_ref.actor.clip_ratio_c": Annotated[Number, Field(gt=1)],
        "actor_rollout_ref.actor.strategy": Strategy,
        **_each("actor_rollout_ref.actor", AtLeast0, "clip_ratio", "entropy_coeff"),
        **_each("actor_rollout_ref.actor", bool, "use_dynamic_bsz", "shuffle", "use_torch_compile"),
        **_each("actor_rollout_ref.actor", Count, "ppo_max_token_len_per_gpu", "ppo_epochs"),
        "actor_rollout_ref.actor.use_prefix_grouper": bool,
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": Literal[1],
        **_each("actor_rollout_ref.actor.checkpoint", Contents, "save_contents", "load_contents"),
        "actor_rollout_ref.actor.fsdp_config.seed": Seed,
        **_sharing("actor_rollout_ref.actor.fsdp_config"),
        **_optimizer("actor_rollout_ref.actor.optim"),
        **_rate("actor_rollout_ref.actor.optim"),
        "actor_rollout_ref.ref.strategy": Strategy,
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": bool,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": Count | None,
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": Count,
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size": Literal[1],
        **_sharing("actor_rollout_ref.ref.fsdp_config"),
        "actor_rollout_ref.rollout.n": about(Count, "responses to each prompt, which are a rollout group"),
        "actor_rollout_ref.rollout.temperature": about(
            Annotated[Number, Field(gt=0, le=100)], "temperature of sampling"
        ),
        "actor_rollout_ref.rollout.gpu_memory_utilization": about(
            ShareAbove0, "share of a device's memory for the rollout engine"
        ),
        "actor_rollout_ref.rollout.max_model_len": about(
            Tokens | null("the model's limit"),
            "tokens that the rollout engine holds of prompt and response together",
        ),
        "actor_rollout_ref.rollout.agent.default_agent_loop": about(
            Annotated[Text, Field(title="the name of an agent loop")],
            "agent loop; raw rows and data.stop need rerule_single_turn_agent",
        ),
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": Text | None,
        "actor_rollout_ref.rollout.agent.num_workers": Count,
        "actor_rollout_ref.rollout.name": Engine,
        "actor_rollout_ref.rollout.dtype": Dtype,
        "actor_rollout_ref.rollout.seed": Seed,
        "actor_rollout_ref.rollout.top_p": ShareAbove0,
        "actor_rollout_ref.rollout.top_k": Count | Literal[-1, 0],
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": Count | None,
        **_each("actor_rollout_ref.rollout", Count, "tensor_model_parallel_size", "data_parallel_size"),
        **_each("actor_rollout_ref.rollout", Count, "max_num_seqs", "max_num_batched_tokens"),
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": Count,
        **_each("actor_rollout_ref.rollout", bool, "do_sample", "enforce_eager", "free_cache_engine"),
        **_each("actor_rollout_ref.rollout", bool, "calculate_log_probs", "log_prob_use_dynamic_bsz"),
        "actor_rollout_ref.rollout.val_kwargs.temperature": Annotated[Number, Field(ge=0, le=100)],
        "actor_rollout_ref.rollout.val_kwargs.top_p": ShareAbove0,
        "actor_rollout_ref.rollout.val_kwargs.top_k": Count | Literal[-1, 0],
        "actor_rollout_ref.rollout.val_kwargs.n": Count,
        "actor_rollout_ref.rollout.val_kwargs.do_sample": bool,
        "critic.enable": bool | None,
        "critic.strategy": CriticStrategy,
        "critic.ppo_micro_batch_size_per_gpu": Count | None,
        **_each("critic", Count, "ppo_mini_batch_size", "ppo_max_token_len_per_gpu", "ppo_epochs"),
        "critic.cliprange_value": Above0,
        "critic.loss_agg_mode": Aggregation,
        **_sharing("critic.fsdp"),
        "algorithm.adv_estimator": about(Estimator, "estimator of the advantage"),
        **_each("algorithm", bool, "norm_adv_by_std_in_grpo", "use_kl_in_reward"),
        **_each("algorithm", Share, "gamma", "lam"),
        "algorithm.kl_penalty": KlEstimator,
        "algorithm.kl_ctrl.type": KlController,
        "algorithm.kl_ctrl.kl_coef": AtLeast0,
        "algorithm.kl_ctrl.horizon": Count,
        "algorithm.kl_ctrl.target_kl": Above0,
        "algorithm.rollout_correction.rollout_is": Literal["token", "sequence"] | None,
        "algorithm.rollout_correction.bypass_mode": bool,
        "reward.custom_reward_function.path": about(Module, "module or file of the reward function"),
        f"{_REWARD}.form": _by_the_reward(
            "guarded, nested or additive", "whether the second term counts without the first"
        ),
        f"{_REWARD}.lambda_forget": _by_the_reward("0 to 1", "forget side: weight of being a refusal"),
        f"{_REWARD}.lambda_retain": _by_the_reward("0 to 1", "retain side: weight of not being a refusal"),
        f"{_REWARD}.gamma": _by_the_reward("0 to 1", "retain side: the ROUGE-L that an answer must exceed"),
        f"{_REWARD}.rouge": _by_the_reward("a convention", "ROUGE-L convention"),
        f"{_REWARD}.refusal_phrases": _by_the_reward(
            "a file", "phrases that extend the refusal detector", "none"
        ),
        f"{_REWARD}.keyword_any_case": _by_the_reward(
            "a bool", "a name in any case names the target", "false"
        ),
        f"{_REWARD}.keyword_part": _by_the_reward("a bool", "a word of a name names the target", "false"),
        "reward.custom_reward_function.name": Annotated[Text, Field(title="the name of a function")],
        "reward.num_workers": Count,
        "reward.reward_manager.source": Literal["register", "importlib"],
        "reward.reward_manager.name": Text,
        **_run(),
        "trainer.max_actor_ckpt_to_keep": about(
            Count | null("all"), "how many complete checkpoints are kept"
        ),
        "trainer.use_v1": about(bool, "verl's V1 trainer, which can filter groups"),
        "trainer.max_critic_ckpt_to_keep": Count | None,
        **_each("trainer", bool, "val_before_train", "val_only"),
        **_each("trainer", Natural, "log_val_generations", "critic_warmup"),
        **_each("trainer", Folder | None, "rollout_data_dir", "validation_data_dir"),
        "trainer.esi_redundant_time": AtLeast0,
        "trainer.ray_wait_register_center_timeout": Count,
        "trainer.v1.trainer_mode": V1Mode,
        "trainer.v1.sampler.sync_refill_failed_groups": bool,
        "trainer.v1.sampler.custom_sampler.path": Text | None,
        "trainer.v1.sampler.custom_sampler.name": Class | None,
        "algorithm.filter_groups.enable": bool,
        "algorithm.filter_groups.metric": Text,
        "algorithm.filter_groups.max_inflight_gen_batches": Count,
        "algorithm.filter_groups.max_num_gen_batches": Natural,
        "transfer_queue.backend.storage_backend": Storage,
        "transfer_queue.backend.SimpleStorage.total_storage_size": Count,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": Count,
        "save.minutes": about(
            Above0 | null("none is saved by time"),
            "minutes after which a checkpoint is saved between those of trainer.save_freq",
        ),
        "save.best": about(bool, "where the run validates, also keep the checkpoint of the best validation"),
        "save.weights_dtype": _WEIGHTS,
        "sides.weights": about(
            Literal["equal", "by_error"],
            "by_error: the advantages of the side that errs more often weigh more",
        ),
        "health.stop_after": about(
            Count | null("warnings end no run"),
            "steps for which a warning must have held to end the run",
        ),
        "records.rollouts": about(bool, "keep every response of every step as text"),
        "ray_kwargs.ray_init.num_cpus": Above0 | None,
        **_optimizer("critic.optim"),
        **_of_replay(),
    }
)

UNLEARN: Table = _adapters(
    {
        "method.forget": about(ForgetTerm, "the term on the answers to forget"),
        "method.retain": about(RetainTerm, "the term on rows to keep"),
        "method.forget_weight": about(Number, "factor of the forget term"),
        "method.retain_weight": about(Number, "factor of the retain term"),
        "method.alternate_weight": about(Number, "factor of the alternate term"),
        "method.beta": about(Above0 | null("for other terms"), "beta of npo, simnpo, dpo, wga and satimp"),
        "method.beta2": about(AtLeast0 | null("for other terms"), "power of 1 - p in satimp"),
        "method.gamma": about(Number, "gamma of simnpo, as in its paper"),
        "method.divergence": about(Divergence, "divergence of flat"),
        "method.dpo_scale": about(Above0 | null("1"), "factor of the loss of dpo"),
        "method.alpha": about(AtLeast0 | null("for other terms"), "alpha of whp and undial"),
        "method.labels": about(Labels, "labels of whp"),
        "method.smoothing": about(Number | null("none"), "r of SGA, which sets both weights"),
        "method.dual_rate": about(
            Above0 | null("the weight stays"), "pdu: step by which the retain term's weight moves"
        ),
        "method.dual_warmup": about(Natural, "pdu: epochs before the weight moves"),
        "method.retain_limit": about(AtLeast0 | null("none"), "pdu: what the retain term should not exceed"),
        "method.layer": about(Natural | null("for other terms"), "rmu, hidden: the decoder layer, from 0"),
        "method.steering": about(Above0 | null("for other terms"), "rmu: length of the control vector"),
        "method.trained_layers": about(
            Count | null("all parameters"), "layers up to method.layer that train; nothing else does"
        ),
        "method.trained_module": about(Text | null("all"), "what trains in them: parameters with this name"),
        "method.retain_rows": about(Annotated[int, Field(ge=1, le=1024)], "retain rows for each forget row"),
        "method.name": Text | None,
        "method.alternate": AlternateTerm,
        "method.retain_positions": Literal["all", "answer"],
        "method.alternate_rows": Annotated[int, Field(ge=1, le=1024)],
        "method.alternate_answers": Literal["file", "forget", "retain"],
        "reinforced.path": about(Model | null("not needed"), "of whp: model.path, trained on data.forget"),
        "reference.path": Model | None,
        "data.forget": about(File | null("not needed"), "answers to forget (forget_gold.parquet)"),
        "data.retain": about(File | null("not needed"), "rows to keep (retain.parquet)"),
        "data.alternate": about(File | null("not needed"), "refusals (alternate.parquet)"),
        "data.train_batch_size": about(Count, "forget rows in each step, without their partners"),
        "data.micro_batch_size_per_gpu": about(
            Count, "forget rows a pass of one device, partners not counted"
        ),
        "data.truncation": about(Literal["error", "right"], "what happens to longer rows"),
        **_model("model"),
        "data.max_length": about(Tokens, "the most tokens of prompt and answer"),
        **_SFT,
        # What verl has and the losses cannot work with.
        **dict.fromkeys(("model.use_fused_kernels", "engine.pad_to_length"), _only(False)),
        **dict.fromkeys(("model.lora_adapter_path", "data.train_files", "data.val_files"), _only(None)),
        **dict.fromkeys(("data.train_max_samples", "trainer.test_freq"), _only(-1)),
        "data.pad_mode": _only("no_padding"),
    }
)


# Holding a configuration to a table.


def check(config: DictConfig, table: Table) -> None:
    """Refuse the first setting whose value is none of those allowed, or that our own sections do not have.

    A setting that the configuration lacks counts as null.

    Raises SettingsError: naming the key, its value and what is allowed, or the key that was probably meant.
    """
    for key, adapter in table.items():
        value = _value(config, key)
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError:
            schema = adapter.json_schema()
            meaning = f": {schema['description']}" if "description" in schema else ""
            raise SettingsError(f"{key} is {shown(value)}; set it to {allowed(schema)}{meaning}") from None
    for section in _OURS & {key.rpartition(".")[0] for key in table}:
        known = [key for key in table if key.startswith(f"{section}.")]
        for name in plain(config, section):
            if not any(key == f"{section}.{name}" or key.startswith(f"{section}.{name}.") for key in known):
                near = nearest(f"{section}.{name}", known)
                hint = f"did you mean {near}?" if near else f"this command has {', '.join(known)}"
                raise SettingsError(f"{section}.{name} is no setting; {hint}")


_OURS = {"replay", "replay.importance", "save", "sides", "health", "records", "method", "signal"}
"""Sections that hold settings of ours alone."""


def allowed(schema: Mapping[str, Any]) -> str:
    """The values that a JSON Schema allows, as the end of the sentence "set it to ..."."""
    if "title" in schema:
        return str(schema["title"])
    if "anyOf" in schema:
        first, *others = schema["anyOf"]
        return allowed(first) + "".join(
            f" or {one['const']}" if isinstance(one.get("const"), int) else f", or {allowed(one)}"
            for one in others
        )
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    kind = schema["type"]
    if kind == "array":
        return f"a list, each {allowed(schema['items'])}"
    words = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}.get(kind, kind)
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "maximum": "<="}
    bounds = [f"{sign} {_number(schema[name])}" for name, sign in signs.items() if name in schema]
    return f"{words} {' and '.join(bounds)}".strip()


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def nearest(name: str, known: list[str]) -> str | None:
    """The one of `known` with the same last part, or with all words of `name`, or else one much alike."""
    same_end = [key for key in known if key.endswith(f".{name.split('.')[-1]}")]
    same_words = [key for key in known if all(word in key for word in re.split(r"[._]", name))]
    for candidates, cutoff in ((same_end, 0.0), (same_words, 0.0), (known, 0.7)):
        if close := difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff):
            return close[0]
    return None


def shown(value: Any) -> str:
    """A value as a message shows it: as in YAML where Python writes it otherwise."""
    return {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))


def plain(config: DictConfig, section: str) -> dict[str, Any]:
    """A section as plain values.

    Raises SettingsError: the section is a single value.
    """
    node = OmegaConf.select(config, section)
    if not isinstance(node, DictConfig):
        raise SettingsError(f"{section} is {shown(node)}, but it is a group of settings; set one of its keys")
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def listed(value: str | ListConfig | None) -> list[str]:
    """One value, a list of them or none as a list."""
    return [value] if isinstance(value, str) else list(value or [])


def require_set(config: DictConfig, *keys: str) -> None:
    """Refuse a configuration in which one of the mandatory `keys` is unset.

    Raises SettingsError: naming the first such key.
    """
    for key in keys:
        if OmegaConf.select(config, key) is None:
            raise SettingsError(f"{key} is not set; pass {key}=PATH")


def _value(config: DictConfig, name: str) -> Any:
    """The plain value. Raises SettingsError where a value stands in place of the setting's group."""
    try:
        value = OmegaConf.select(config, name)
    except ConfigTypeError:  # a list where a group should be
        value = None
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True)
    if value is None:
        parts = name.split(".")
        for end in range(1, len(parts)):
            section = ".".join(parts[:end])
            group = OmegaConf.select(config, section)
            if group is None:
                break
            if not isinstance(group, DictConfig):
                line = f"{section} is {shown(group)}, but it is a group of settings"
                raise SettingsError(f"{line}; set its keys, such as {name}")
    return value
