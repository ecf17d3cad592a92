"""Settings that were tried on the composed configuration, with what must happen; written by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

from tests.refused.cases import Case

STAGE1, STAGE2 = "settings of stage 1", "settings of stage 2"
MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout"))
REWARD = "reward.custom_reward_function"
FILTER, SAMPLER = "algorithm.filter_groups", "trainer.v1.sampler"
MANY = 10**12

NOT_A_NUMBER: tuple[Any, ...] = (nan, "many", "", None, [1], True)
NOT_FINITE: tuple[Any, ...] = (inf, -inf)
NOT_WHOLE: tuple[Any, ...] = (2.5, 4.0, "4")


@dataclass(frozen=True)
class SettingsCase(Case):
    """Values of settings.

    values: setting to value, as YAML would give it.
    named: what the line must hold; by default the setting and its value.
    added: settings that the configuration does not have.
    """

    values: dict[str, Any] = field(default_factory=dict)
    named: str = ""
    added: bool = False


def shown(value: Any) -> str:
    """A value as messages show it."""
    return {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))


def refused(group: str, key: str, *values: Any, named: str = "") -> list[SettingsCase]:
    """A case for each value; the line names the key and the value."""
    return [
        SettingsCase(
            group, f"{key}={shown(value)}", "refused", {key: value}, named or f"{key} is {shown(value)}"
        )
        for value in values
    ]


def valid(group: str, *pairs: tuple[str, Any]) -> list[SettingsCase]:
    """A case for each setting with a value that is documented."""
    return [SettingsCase(group, f"{key}={shown(value)}", "valid", {key: value}) for key, value in pairs]


def together(
    group: str, outcome: Any, named: str, values: dict[str, Any], added: bool = False
) -> SettingsCase:
    """A case of several settings that do not fit."""
    name = " ".join(f"{key}={shown(value)}" for key, value in values.items())
    return SettingsCase(group, name, outcome, values, named, added)


def count(group: str, *keys: str, more: tuple[Any, ...] = ()) -> list[SettingsCase]:
    """What no count of things may be."""
    wrong = (*NOT_A_NUMBER, *NOT_FINITE, *NOT_WHOLE, -1, 0, *more)
    return [case for key in keys for case in refused(group, key, *wrong)]


def without(values: tuple[Any, ...], *allowed: Any) -> tuple[Any, ...]:
    """`values` without those allowed, compared as Python prints them."""
    return tuple(value for value in values if repr(value) not in map(repr, allowed))


NUMBERS_2 = [
    *count(STAGE2, "data.train_batch_size", more=(-5, MANY)),
    *count(STAGE2, "transfer_queue.backend.SimpleStorage.num_data_storage_units"),
    *count(STAGE2, "algorithm.filter_groups.max_inflight_gen_batches"),
    *count(STAGE2, "data.max_prompt_length", "data.max_response_length", more=(1e8, 100_000_000, MANY)),
    *count(STAGE2, f"{ROLLOUT}.n", f"{ACTOR}.ppo_mini_batch_size"),
    *count(STAGE2, "trainer.n_gpus_per_node", more=(MANY,)),
    *count(STAGE2, "trainer.nnodes", "trainer.total_epochs"),
    *refused(STAGE2, "trainer.nnodes", MANY, named="devices cannot share evenly"),
    *refused(STAGE2, "trainer.total_training_steps", *without(NOT_A_NUMBER, None), *NOT_FINITE, 0, -5, 2.5),
    *refused(STAGE2, f"{ROLLOUT}.max_model_len", *without(NOT_A_NUMBER, None), inf, 0, -1, 256.0, MANY),
    *refused(STAGE2, f"{ACTOR}.optim.lr", *NOT_A_NUMBER, *NOT_FINITE, -1, -2e-6, "2e-6", 1e8),
    *refused(STAGE2, f"{ACTOR}.kl_loss_coef", *NOT_A_NUMBER, *NOT_FINITE, -0.01),
    *refused(STAGE2, f"{ACTOR}.clip_ratio_low", *NOT_A_NUMBER, *NOT_FINITE, -0.2),
    *refused(STAGE2, f"{ACTOR}.clip_ratio_high", *NOT_A_NUMBER, *NOT_FINITE, -0.2),
    *refused(STAGE2, f"{ACTOR}.clip_ratio_c", nan, inf, 1, 0, -1, "x", None),
    *refused(STAGE2, f"{ACTOR}.entropy_coeff", nan, inf, -1, "x", None),
    *refused(STAGE2, f"{ACTOR}.optim.weight_decay", nan, inf, -1, "x", None),
    *refused(STAGE2, f"{ACTOR}.optim.clip_grad", nan, -inf, -1, 0, "x", None),
    *refused(STAGE2, f"{ACTOR}.optim.lr_warmup_steps", nan, inf, -2, 2.5, "x", None),
    *refused(STAGE2, f"{ACTOR}.optim.lr_warmup_steps_ratio", nan, inf, -1, 1.5, "x", None),
    *refused(STAGE2, f"{ACTOR}.optim.betas", [0.9], [0.9, 2], 0.9, None, ["a", "b"]),
    *refused(STAGE2, f"{ROLLOUT}.temperature", *NOT_A_NUMBER, *NOT_FINITE, -1, 0, 1e8),
    *refused(STAGE2, f"{ROLLOUT}.top_p", nan, 0, -1, 1.5, "x", None),
    *refused(STAGE2, f"{ROLLOUT}.top_k", nan, -2, 2.5, "x", None),
    *refused(STAGE2, f"{ROLLOUT}.gpu_memory_utilization", nan, 0, -0.5, 1.5, "x", None),
    *refused(STAGE2, f"{ROLLOUT}.max_num_seqs", nan, 0, -1, 2.5, None),
    *refused(STAGE2, f"{ROLLOUT}.tensor_model_parallel_size", nan, 0, -1, 2.5, None),
    *refused(STAGE2, "data.seed", nan, inf, -1, 2.5, "x", None, 2**32),
    *refused(STAGE2, "trainer.save_freq", nan, 0, -2, 2.5, "often", None),
    *refused(STAGE2, "trainer.test_freq", nan, 0, -2, 2.5, "often", None),
    *refused(STAGE2, "trainer.max_actor_ckpt_to_keep", nan, 0, -1, 2.5, "all"),
    *refused(STAGE2, "sides.weights", "by_side", "", None, True, 0.1),
    *refused(STAGE2, "health.stop_after", *without(NOT_A_NUMBER, None), *NOT_FINITE, 0, -1, 2.5),
    *refused(STAGE2, "save.minutes", *without(NOT_A_NUMBER, None), *NOT_FINITE, 0, -60, "60"),
    *refused(STAGE2, "algorithm.gamma", nan, -0.1, 1.1, None),
    *refused(STAGE2, "critic.optim.lr", nan, -1, "x", None),
    *refused(STAGE2, "data.train_max_samples", 0, -2, 2.5, "all", None),
    *refused(STAGE2, "reward.num_workers", nan, 0, -1, 2.5),
]
_REPLAY_COUNTS = ("updates_per_step", "threshold_window", "min_groups", "capacity", "groups_per_update")
REPLAY_2 = [
    *(case for name in _REPLAY_COUNTS for case in refused(STAGE2, f"replay.{name}", 0, 2.5, nan, named=name)),
    *refused(STAGE2, "replay.warmup_steps", -1, 2.5, nan, "x", named="replay.warmup_steps"),
    *refused(STAGE2, "replay.threshold_quantile", -0.1, 1.1, nan, "x", named="threshold_quantile"),
    *refused(STAGE2, "replay.max_staleness", -1, 2.5, nan, "x", named="replay.max_staleness"),
    *refused(STAGE2, "replay.seed", 2.5, nan, "x", None, named="replay.seed"),
    *refused(STAGE2, "replay.importance.clip_low", -1, 2, nan, inf, named="clip_low"),
    *refused(STAGE2, "replay.importance.clip_high", 0.5, -1, nan, "x", named="clip_high"),
    *(
        case
        for name in ("update", "threshold_rule", "start", "admission", "eviction", "sampling")
        for case in refused(STAGE2, f"replay.{name}", "typo", None, 3, named=f"replay.{name}")
    ),
    *(
        case
        for name in ("threshold_rule", "admission", "eviction", "sampling")
        for case in refused(STAGE2, f"replay.{name}", "nowhere.rules:Own", ":Own", "rules:", "my rules:Own")
    ),
    *refused(STAGE2, "replay.start", "rules:Own"),
    *refused(STAGE2, "replay.importance.level", "typo", None, named="replay.importance.level"),
    *(
        case
        for name in ("enable", "require_signal", "store_after_start", "use_kl_loss", "restore")
        for case in refused(STAGE2, f"replay.{name}", "maybe", 1, None, named=f"replay.{name}")
    ),
    *refused(STAGE2, "replay", 5, named="replay is 5, but it is a group of settings"),
    *refused(STAGE2, "replay", None, named="replay.enable is null"),
]
CHOICES_2 = [
    *refused(STAGE2, f"{ACTOR}.kl_loss_type", "low_var", "full", "", None, 3),
    *refused(STAGE2, f"{ACTOR}.loss_agg_mode", "token_mean", None),
    *refused(STAGE2, f"{ACTOR}.policy_loss.loss_mode", "vanila", None, ""),
    *refused(STAGE2, f"{ACTOR}.strategy", "fsdp3", "ddp", None),
    *refused(STAGE2, "actor_rollout_ref.ref.strategy", "fsdp3"),
    *refused(STAGE2, "critic.strategy", "fsdp3"),
    *refused(STAGE2, "model_engine", "megatron", None),
    *refused(STAGE2, f"{ACTOR}.optim.lr_scheduler_type", "linear", None),
    *refused(STAGE2, f"{ACTOR}.optim.optimizer", "AdamX", "", None),
    *refused(STAGE2, f"{ACTOR}.optim.optimizer_impl", "torch.optimus", None),
    *refused(STAGE2, f"{ROLLOUT}.name", "vlm", "hf", "", None),
    *refused(STAGE2, f"{ROLLOUT}.dtype", "fp33"),
    *refused(STAGE2, f"{ROLLOUT}.agent.default_agent_loop", "single_turn", "", None),
    *refused(STAGE2, "data.truncation", "cut", "", None),
    *refused(STAGE2, "data.sides", "equal", "", None, True),
    *refused(STAGE2, "algorithm.adv_estimator", "grop", "remax", None),
    *refused(STAGE2, "algorithm.kl_penalty", "klx"),
    *refused(STAGE2, "algorithm.kl_ctrl.type", "fix"),
    *refused(STAGE2, "trainer.logger", "consol", ["console", "wandbb"], 3, None),
    *refused(STAGE2, "trainer.resume_mode", "yes", True, None),
    *refused(STAGE2, "trainer.device", "tpu"),
    *refused(STAGE2, "reward.reward_manager.name", "naiv"),
    *refused(STAGE2, f"{ACTOR}.checkpoint.save_contents", ["modell"], [], None),
    *refused(STAGE2, "save.weights_dtype", "bf16", "float16", "auto", "", None, 16),
    *refused(STAGE2, "save", 60, named="save is 60, but it is a group of settings"),
    *refused(STAGE2, "save", None, named="save.best is null"),
    together(
        STAGE2,
        "refused",
        "save.hours is no setting; this command has save.minutes, save.best, save.weights_dtype",
        {"save.hours": 1},
        added=True,
    ),
]
_FLAGS = (
    f"{ACTOR}.use_kl_loss",
    f"{ACTOR}.use_dynamic_bsz",
    f"{ROLLOUT}.calculate_log_probs",
    "algorithm.use_kl_in_reward",
    "algorithm.norm_adv_by_std_in_grpo",
    "data.shuffle",
    "data.filter_overlong_prompts",
    "records.rollouts",
    "save.best",
    "trainer.val_before_train",
    "trainer.use_v1",
    "platform.require_accelerator",
)
FLAGS_2 = [case for key in _FLAGS for case in refused(STAGE2, key, "yes", 1, None)]
PARTS_2 = [
    *refused(STAGE2, f"{MODEL}.external_lib", "no_such_module", ["json", "no.such"], named="no module"),
    *refused(STAGE2, f"{MODEL}.external_lib", 3, [""]),
    *refused(
        STAGE2, f"{REWARD}.path", "/no/such/reward.py", "pkg://no_such", "", None, named="function.path is"
    ),
    *refused(STAGE2, f"{REWARD}.name", "compute_scor", "", None),
    *refused(STAGE2, "data.custom_cls.path", "/no/such/set.py", "pkg://recipe.rerule.nothing"),
    together(
        STAGE2,
        "refused",
        "data.custom_cls.name is 'Nothing', which pkg://recipe.rerule.sft_dataset does not define",
        {"data.custom_cls.path": "pkg://recipe.rerule.sft_dataset", "data.custom_cls.name": "Nothing"},
    ),
    *refused(STAGE2, "data.train_files", "/no/such.parquet", named="/no/such.parquet"),
    *refused(STAGE2, "data.train_files", "", [], 3, [""], None),
    *refused(STAGE2, "data.val_files", "/no/such.parquet", named="/no/such.parquet"),
    *refused(STAGE2, "data.val_files", "", [], None),
    *refused(STAGE2, f"{MODEL}.path", "/no/such/model", named="does not exist"),
    *refused(STAGE2, f"{MODEL}.path", "", None, 3),
    *refused(STAGE2, "trainer.default_local_dir", "", None),
    *refused(STAGE2, "data.stop", None, "x", ["x", ""], [3]),
    *refused(STAGE2, "data", 5, named="data is 5, but it is a group of settings"),
]
TOGETHER_2 = [
    *refused(STAGE2, f"{ROLLOUT}.max_model_len", 10, 151, named="together are 152 tokens"),
    *refused(STAGE2, f"{ROLLOUT}.max_model_len", 4096, named="the model reads at most 2048 tokens"),
    *refused(STAGE2, "data.train_batch_size", 17, named="no multiple of"),
    *refused(STAGE2, "data.train_batch_size", 48, named="hold 20 rows"),
    *refused(STAGE2, "trainer.n_gpus_per_node", 3, named="3 devices cannot share evenly"),
    *refused(STAGE2, f"{ROLLOUT}.tensor_model_parallel_size", 2, named="does not divide the 1 devices"),
    *refused(STAGE2, f"{ROLLOUT}.n", 1, named="at least two responses a prompt"),
    *refused(STAGE2, f"{ACTOR}.use_kl_loss", False, named="set both alike"),
    *refused(STAGE2, "replay.threshold", 0.4, named="add replay.threshold_rule=fixed"),
    *refused(STAGE2, "replay.capacity", 8, named="it must be at least replay.min_groups"),
    *refused(
        STAGE2, "trainer.total_training_steps", 1001, named="would never come; raise trainer.total_epochs"
    ),
    *refused(STAGE2, "trainer.total_epochs", 20, named="trainer.total_training_steps is 34"),
    together(
        STAGE2,
        "refused",
        "replay.tau is no setting; did you mean replay.start?",
        {"replay.tau": 0.6},
        added=True,
    ),
    together(STAGE2, "refused", "did you mean replay.enable?", {"replay.enabel": True}, added=True),
    together(
        STAGE2,
        "refused",
        "records.all is no setting; did you mean records.rollouts?",
        {"records.all": True},
        added=True,
    ),
    together(
        STAGE2,
        "refused",
        "health.stop is no setting; did you mean health.stop_after?",
        {"health.stop": True},
        added=True,
    ),
    together(STAGE2, "refused", "unknown reward option", {f"{REWARD}.reward_kwargs.beta": 1}, added=True),
    *refused(STAGE2, f"{REWARD}.reward_kwargs.gamma", 2, nan, "x", named="gamma"),
    *refused(STAGE2, f"{REWARD}.reward_kwargs.lambda_forget", -1, nan, named="lambda_forget"),
    *refused(STAGE2, f"{REWARD}.reward_kwargs.form", "both", named="form"),
    *refused(STAGE2, f"{REWARD}.reward_kwargs.rouge", "typo", named="typo"),
    *refused(STAGE2, f"{MODEL}.lora_rank", 8, named="lora.merge=true"),
    *refused(STAGE2, f"{MODEL}.lora_rank", -1, 2.5, None),
    *refused(STAGE2, "trainer.v1.trainer_mode", "async", None),
    *refused(STAGE2, f"{FILTER}.enable", True, named="set trainer.use_v1=true"),
    *refused(STAGE2, f"{SAMPLER}.sync_refill_failed_groups", True, named="set trainer.use_v1=true"),
    together(
        STAGE2,
        "refused",
        "trainer.v1.trainer_mode is 'colocate_async'; ReRULE extends verl's synchronous trainer alone",
        {"trainer.use_v1": True, "trainer.v1.trainer_mode": "colocate_async"},
    ),
    together(
        STAGE2,
        "refused",
        "trainer.v1.sync.parameter_sync_step is 2",
        {"trainer.use_v1": True, "trainer.v1.sync": {"parameter_sync_step": 2}},
    ),
    together(
        STAGE2,
        "refused",
        f"{SAMPLER}.custom_sampler.path is 'mine.py', but replay needs whole groups of the step",
        {"trainer.use_v1": True, f"{SAMPLER}.custom_sampler.path": "mine.py"},
    ),
    together(
        STAGE2,
        "refused",
        "trainer.balance_batch is false",
        {"trainer.use_v1": True, "trainer.balance_batch": False},
    ),
    together(
        STAGE2,
        "refused",
        f"{FILTER}.metric is 'acc', which the reward does not return",
        {"trainer.use_v1": True, f"{FILTER}.enable": True, f"{FILTER}.metric": "acc"},
    ),
    together(
        STAGE2,
        "refused",
        f"{FILTER}.max_num_gen_batches is 3, but verl's V1 trainer ignores it",
        {"trainer.use_v1": True, f"{FILTER}.enable": True, f"{FILTER}.max_num_gen_batches": 3},
    ),
    together(
        STAGE2,
        "refused",
        "a reward model on the trainer's devices gives rewards only after groups are chosen",
        {"trainer.use_v1": True, f"{FILTER}.enable": True, "reward.reward_model.enable": True},
    ),
    *refused(STAGE2, f"{MODEL}.lora_alpha", 0, -1, 2.5, None),
    *refused(STAGE2, f"{MODEL}.target_modules", None, 3, [], [""]),
    *refused(STAGE2, f"{MODEL}.exclude_modules", 3, [], [""]),
    *refused(STAGE2, f"{MODEL}.lora.merge", None, "yes", 1),
    *refused(STAGE2, f"{MODEL}.lora.rank", 8, named="set it to 0, and actor_rollout_ref.model.lora_rank"),
    *refused(STAGE2, f"{MODEL}.lora_adapter_path", "an/adapter", named="is 0, so that verl would train all"),
    *refused(STAGE1, "model.lora_adapter_path", "an/adapter", named="model.lora_rank is 0, so that verl"),
    *refused(STAGE1, "model.lora.rank", 8, named="set it to 0, and model.lora_rank"),
    *refused(STAGE1, "model.target_modules", None, 3, [], [""]),
]
WARNED_2 = [
    together(
        STAGE2,
        "warned",
        "but the model reads at most 2048: longer responses are cut off",
        {f"{ROLLOUT}.max_model_len": None, "data.max_response_length": 4000},
    ),
    together(
        STAGE2, "warned", "replay.warmup_steps is 34, but the run has 34 steps", {"replay.warmup_steps": 34}
    ),
    together(
        STAGE2,
        "warned",
        "replay.warmup_steps is 10, but the run has 3 steps",
        {"trainer.total_training_steps": 3},
    ),
    together(
        STAGE2,
        "warned",
        "replay.min_groups is 600, but all 34 steps together make 544 groups",
        {"replay.min_groups": 600, "replay.capacity": 600},
    ),
    together(STAGE2, "warned", "lr_warmup_steps is 40, but the run", {f"{ACTOR}.optim.lr_warmup_steps": 40}),
    together(STAGE2, "warned", "optim.lr is 0: the run changes nothing", {f"{ACTOR}.optim.lr": 0}),
    together(STAGE2, "warned", "save_freq is -1: no checkpoint is written", {"trainer.save_freq": -1}),
]
VALID_2 = [
    together(STAGE2, "valid", "", {"replay.warmup_steps": 34, "replay.start": "at"}),
    together(STAGE2, "valid", "", {"replay.warmup_steps": MANY, "replay.enable": False}),
    *valid(
        STAGE2,
        ("replay.importance.clip_high", inf),
        ("replay.importance.clip_low", 0),
        ("replay.max_staleness", 0),
        ("replay.seed", -3),
        ("trainer.test_freq", -1),
        ("trainer.total_epochs", 1_000_000),
        ("trainer.logger", "console"),
        (f"{ACTOR}.optim.clip_grad", inf),
        (f"{ACTOR}.clip_ratio_low", 0),
        (f"{ACTOR}.kl_loss_coef", 0),
        (f"{ACTOR}.kl_loss_type", "k3+"),
        (f"{ROLLOUT}.max_model_len", 152),
        (f"{ROLLOUT}.top_k", -1),
        ("algorithm.adv_estimator", "gae"),
        ("data.truncation", "left"),
        ("sides.weights", "by_error"),
        ("health.stop_after", 8),
        ("save.best", False),
        ("save.minutes", 0.5),
        ("save.minutes", 60),
        ("save.weights_dtype", "bfloat16"),
        ("trainer.use_v1", True),
    ),
    together(STAGE2, "valid", "", {"trainer.use_v1": True, f"{FILTER}.enable": True}),
    together(STAGE2, "valid", "", {"trainer.a_key_of_verls": 3}, added=True),
    together(STAGE2, "valid", "", {"trainer.total_training_steps": None, "trainer.total_epochs": 40}),
]
NUMBERS_1 = [
    *count(STAGE1, "data.train_batch_size", more=(MANY,)),
    *count(STAGE1, "data.max_length", more=(MANY,)),
    *count(STAGE1, "data.micro_batch_size_per_gpu", "trainer.total_epochs", "trainer.n_gpus_per_node"),
    *refused(STAGE1, "optim.lr", *NOT_A_NUMBER, *NOT_FINITE, -1, "4e-7", 1e8),
    *refused(STAGE1, "optim.lr_warmup_steps", nan, inf, -2, 2.5, "x", None),
    *refused(STAGE1, "optim.weight_decay", nan, -1, "x"),
    *refused(STAGE1, "optim.clip_grad", nan, 0, -1),
    *refused(STAGE1, "trainer.total_training_steps", 0, -5, 2.5, nan, "x"),
    *refused(STAGE1, "trainer.seed", nan, -1, 2.5, None),
    *refused(STAGE1, "trainer.save_freq", 0, "after_each_step", 2.5),
    *refused(STAGE1, "trainer.nnodes", 0, -1, 2, nan),
]
OTHERS_1 = [
    *count(STAGE1, "signal.every", "signal.prompts", "data.max_response_length"),
    *refused(STAGE1, "signal.samples", 1, 0, 2.5, nan, None),
    *refused(STAGE1, "signal.temperature", 0, -1, 2.5, nan, "x", None),
    *refused(STAGE1, "data.retain_share", -0.1, 1, nan, "half", None),
    *refused(STAGE1, "stop", "best", "", None, True),
    *refused(STAGE1, "stop", "signal", named="stop=signal needs prompts; give data.prompt_files=PATH"),
    *refused(STAGE1, "data.retain_share", 0.5, named="data.retain_share above 0 needs prompts"),
    *refused(STAGE1, "data.prompt_files", "/no/such.parquet", named="/no/such.parquet"),
    *refused(STAGE1, "data.prompt_files", "", [], 3, [""]),
    *refused(STAGE1, "data.truncation", "middle", "cut", None),
    *refused(STAGE1, "engine.strategy", "fsdp3", None),
    *refused(STAGE1, "optim.lr_scheduler_type", "linear"),
    *refused(STAGE1, "optim.optimizer", "AdamX"),
    *refused(STAGE1, "trainer.logger", "consol", 3),
    *refused(STAGE1, "trainer.resume_mode", "yes"),
    *refused(STAGE1, "checkpoint.save_contents", ["hf"], None),
    *refused(STAGE1, "save.weights_dtype", "bf16", "half", None),
    together(
        STAGE1,
        "refused",
        "save.minutes is no setting; this command has save.weights_dtype",
        {"save.minutes": 60},
        added=True,
    ),
    *refused(STAGE1, "data.use_dynamic_bsz", "yes", None),
    *refused(STAGE1, "data.custom_cls.path", "pkg://no_such", "/no/such.py"),
    *refused(STAGE1, "data.custom_cls.name", "SFTDataSet"),
    *refused(STAGE1, "data.train_files", "/no/such.parquet", named="/no/such.parquet"),
    *refused(STAGE1, "data.train_files", "", [], None),
    *refused(STAGE1, "model.path", "/no/such", named="does not exist"),
    *refused(STAGE1, "model.path", "", None),
    *refused(STAGE1, "model.external_lib", "no_such_module", named="no module"),
    *refused(STAGE1, "data.enable_thinking_default", True, named="unknown to stage 2"),
    *refused(STAGE1, "trainer.n_gpus_per_node", 3, named="3 devices"),
    *refused(STAGE1, "trainer.test_freq", 5, named="but data.val_files is null"),
    *refused(STAGE1, "trainer.total_training_steps", 4, named="would never come"),
    together(
        STAGE1,
        "warned",
        "optim.lr_warmup_steps is 20, but the run has 3 steps",
        {"optim.lr_warmup_steps": 20},
    ),
    together(STAGE1, "warned", "optim.lr is 0", {"optim.lr": 0}),
    *valid(
        STAGE1,
        ("trainer.save_freq", "after_each_epoch"),
        ("save.weights_dtype", "bfloat16"),
        ("trainer.total_training_steps", 2),
        ("data.truncation", "right"),
        ("optim.lr_warmup_steps", -1),
        ("engine.strategy", "fsdp"),
    ),
]
COMMANDS = "settings, help and commands"
UNKNOWN = [
    (
        "experiment=rule_common",
        "experiment is 'rule_common'; set it to one of custom, muse_books, muse_books/lora_1gpu, muse_news, ",
    ),
    ("experiment=paper/method_common", "experiment is 'paper/method_common'; set it to one of"),
    ("experiment=paper/replay_common", "experiment is 'paper/replay_common'; set it to one of"),
    ("experiment=paper", "experiment is 'paper'; set it to one of"),
    ("experiment=nowhere", "experiment is 'nowhere'; set it to one of"),
    ("experiment=", "experiment is ''; set it to one of"),
    ("platform=tpu", "platform is 'tpu'; set it to one of cpu, gpu"),
    ("platfrom=cpu", "platfrom is no setting; did you mean platform?"),
    ("replay.enabel=true", "replay.enabel is no setting; did you mean replay.enable?"),
    ("replay.tresh=1", "replay.tresh is no setting; did you mean replay.threshold?"),
    ("lr=1", "lr is no setting; did you mean actor_rollout_ref.actor.optim.lr?"),
    ("trainer.total_step=3", "did you mean trainer.total_training_steps?"),
    ("data.batch_size=3", "did you mean data.train_batch_size?"),
    ("data.max_response_len=3", "did you mean data.max_response_length?"),
    ("xyzzy=1", "xyzzy is no setting."),
    ("data=5", "a name without a dot is a group of settings: set its keys"),
    ("data.train_batch_size", "'data.train_batch_size' cannot be read as KEY=VALUE"),
    ("data.stop=[", "'data.stop=[' cannot be read as KEY=VALUE"),
]
"""Overrides that Hydra does not compose, with what the line must hold."""
OPTIONS = [
    ("--multirun", "--multirun is not supported"),
    ("-m", "--multirun is not supported"),
    ("--lr=3", "--lr is no option; write settings as KEY=VALUE"),
    ("-x", "-x is no option"),
]
"""Options that the commands refuse."""
CONFIG_NAMES = [
    (
        "--config-name experiment/rwku",
        "--config-name is experiment/rwku, a part of the configuration",
        "experiment=rwku",
    ),
    ("--config-name=rwku", "--config-name is rwku, a part of", "experiment=rwku"),
    ("-cn experiment/paper/tofu.yaml", "-cn is experiment/paper/tofu, a part of", "experiment=paper/tofu"),
    ("-cn=platform/cpu", "-cn is platform/cpu, a part of", "platform=cpu"),
    (
        "--config-name common/rule_common",
        "--config-name is common/rule_common, a part of",
        "leave the option out",
    ),
]
"""Parts of the configuration, given as all of it; what the line must hold, and how it must end."""
CASES = [
    *(NUMBERS_2 + REPLAY_2 + CHOICES_2 + FLAGS_2 + PARTS_2 + TOGETHER_2 + WARNED_2 + VALID_2),
    *(NUMBERS_1 + OTHERS_1),
    *(Case(COMMANDS, argument, "refused") for argument, *_ in (*UNKNOWN, *OPTIONS, *CONFIG_NAMES)),
]
