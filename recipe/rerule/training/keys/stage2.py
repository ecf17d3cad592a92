"""The settings of stage 2, but for the replay's (see `replay`)."""

from __future__ import annotations

from recipe.rerule.training.keys import shared
from recipe.rerule.training.keys import verl_names as names
from recipe.rerule.training.keys.kinds import Choice, Elsewhere, Flag, Key, ListOf, Number, Text, Whole

_COUNT, _TOKENS = shared.COUNT, Whole(1, shared.MOST_TOKENS)


def _devices(section: str) -> tuple[Key, ...]:
    """How an engine's devices are arranged, `section` being where its part for FSDP stands."""
    return (
        Key(f"{section}.ulysses_sequence_parallel_size", _COUNT, "devices that share a sequence"),
        Key(f"{section}.fsdp_size", Whole(1, also=(-1,)), "devices that share the weights; -1 takes all"),
        Key(
            f"{section}.turbo_config.distributed.ulysses_parallel_size",
            _COUNT,
            "devices that share a sequence, with fsdp_turbo",
        ),
    )


_DATA = (
    Key("data.train_files", shared.FILES, "prompts to train on (train.parquet)", shown=True),
    Key("data.val_files", shared.FILES, "prompts of validation (val.parquet)", shown=True),
    Key("data.train_batch_size", _COUNT, "prompts in each step", shown=True),
    Key("data.gen_batch_size", _COUNT, "prompts that verl fetches for a step", null="train_batch_size"),
    Key("data.max_prompt_length", _TOKENS, "the most tokens of a prompt", shown=True),
    Key("data.max_response_length", _TOKENS, "the most tokens of a response", shown=True),
    Key(
        "data.stop",
        ListOf(Text(blank=True), "a list of texts that are not empty", empty=True),
        "strings that end a response",
        shown=True,
    ),
    Key("data.seed", shared.SEED, "seed of the run: order, responses, draws of replay", shown=True),
    Key(
        "data.sides",
        Choice(("as_given", "balanced")),
        "balanced: half of each batch from each side; the smaller side repeats",
        shown=True,
    ),
    Key("data.shuffle", Flag(), "prompts in another order each epoch"),
    Key("data.truncation", Choice(names.TRUNCATIONS), "what happens to a longer prompt", shown=True),
    Key("data.filter_overlong_prompts", Flag(), "longer prompts are left out"),
    Key("data.train_max_samples", shared.ALL_ROWS, "prompts used for training; -1 takes all"),
    Key("data.val_max_samples", shared.ALL_ROWS, "prompts used for validation; -1 takes all"),
    Key("data.val_batch_size", _COUNT, "prompts of a pass of validation", null="all"),
    Key("data.dataloader_num_workers", Whole(0, 1024), "processes that read rows"),
    Key("data.custom_cls.path", Text("a module (pkg://...) or a file"), "the data set", null="verl's own"),
    Key("data.custom_cls.name", Text("the name of a class"), "the data set's class", null="verl's own"),
)
_ACTOR = (
    Key("actor_rollout_ref.actor.strategy", Choice(names.ACTOR_STRATEGIES), "verl's training engine"),
    Key("actor_rollout_ref.actor.ppo_mini_batch_size", _COUNT, "prompts in each optimiser step", shown=True),
    Key(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        _COUNT,
        "responses in each pass of a device",
        null="with use_dynamic_bsz",
        shown=True,
    ),
    Key("actor_rollout_ref.actor.use_dynamic_bsz", Flag(), "passes by tokens: ppo_max_token_len_per_gpu"),
    Key("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", _COUNT, "tokens a pass of one device"),
    Key("actor_rollout_ref.actor.ppo_epochs", _COUNT, "passes over a step's responses"),
    Key("actor_rollout_ref.actor.shuffle", Flag(), "mini-batches in another order"),
    Key("actor_rollout_ref.actor.clip_ratio", Number(0), "PPO's clip range where the next two are not used"),
    Key(
        "actor_rollout_ref.actor.clip_ratio_low",
        Number(0),
        "how far below 1 the ratio is clipped",
        shown=True,
    ),
    Key(
        "actor_rollout_ref.actor.clip_ratio_high",
        Number(0),
        "how far above 1 the ratio is clipped",
        shown=True,
    ),
    Key("actor_rollout_ref.actor.clip_ratio_c", Number(above=1), "bound where the advantage is negative"),
    Key("actor_rollout_ref.actor.entropy_coeff", Number(0), "weight of the entropy bonus"),
    Key("actor_rollout_ref.actor.use_kl_loss", Flag(), "add KL to the stage-1 model to the loss", shown=True),
    Key("actor_rollout_ref.actor.kl_loss_coef", Number(0), "weight of that KL", shown=True),
    Key("actor_rollout_ref.actor.kl_loss_type", Choice(names.KL_ESTIMATORS), "estimator of that KL"),
    Key("actor_rollout_ref.actor.loss_agg_mode", Choice(names.LOSS_AGGREGATIONS), "how tokens are averaged"),
    Key("actor_rollout_ref.actor.policy_loss.loss_mode", Text(), "the policy loss"),
    Key("actor_rollout_ref.actor.use_torch_compile", Flag(), "compile the model"),
    Key("actor_rollout_ref.actor.ulysses_sequence_parallel_size", _COUNT, "devices that share a sequence"),
    Key(
        "actor_rollout_ref.actor.checkpoint.save_contents",
        ListOf(Choice(names.CHECKPOINT_CONTENTS)),
        "what a checkpoint holds",
    ),
    Key(
        "actor_rollout_ref.actor.checkpoint.load_contents",
        ListOf(Choice(names.CHECKPOINT_CONTENTS)),
        "what a resumed run takes from it",
    ),
    Key("actor_rollout_ref.actor.use_prefix_grouper", Flag(), "one pass for what the responses share"),
    *_devices("actor_rollout_ref.actor.fsdp_config"),
    *shared.optimizer("actor_rollout_ref.actor.optim"),
)
_REFERENCE = (
    Key("actor_rollout_ref.ref.strategy", Choice(names.ACTOR_STRATEGIES), "engine of the reference model"),
    Key(
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        _COUNT,
        "responses a pass of the reference",
        null="with log_prob_use_dynamic_bsz",
    ),
    Key("actor_rollout_ref.ref.log_prob_use_dynamic_bsz", Flag(), "passes by tokens"),
    Key("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", _COUNT, "tokens a pass of one device"),
    Key("actor_rollout_ref.ref.ulysses_sequence_parallel_size", _COUNT, "devices that share a sequence"),
    *_devices("actor_rollout_ref.ref.fsdp_config"),
)
_ROLLOUT = (
    Key("actor_rollout_ref.rollout.name", Choice(names.ENGINES), "the rollout engine"),
    Key(
        "actor_rollout_ref.rollout.n",
        _COUNT,
        "responses to each prompt, which are a rollout group",
        shown=True,
    ),
    Key(
        "actor_rollout_ref.rollout.temperature",
        Number(above=0, high=100),
        "temperature of sampling",
        shown=True,
    ),
    Key("actor_rollout_ref.rollout.top_p", Number(above=0, high=1), "share of probability that is sampled"),
    Key("actor_rollout_ref.rollout.top_k", Whole(1, also=(-1, 0)), "tokens that are sampled; -1 takes all"),
    Key("actor_rollout_ref.rollout.do_sample", Flag(), "false takes the most probable token"),
    Key("actor_rollout_ref.rollout.seed", shared.SEED, "of the rollout engine"),
    Key("actor_rollout_ref.rollout.dtype", Choice(names.ROLLOUT_DTYPES), "of the rollout engine"),
    Key(
        "actor_rollout_ref.rollout.gpu_memory_utilization",
        Number(above=0, high=1),
        "share of a device's memory for the rollout engine",
        shown=True,
    ),
    Key("actor_rollout_ref.rollout.tensor_model_parallel_size", _COUNT, "devices of one rollout replica"),
    Key("actor_rollout_ref.rollout.data_parallel_size", _COUNT, "parts of one rollout replica"),
    Key(
        "actor_rollout_ref.rollout.max_model_len",
        _TOKENS,
        "tokens that the rollout engine holds of prompt and response together",
        null="the model's limit",
        shown=True,
    ),
    Key("actor_rollout_ref.rollout.max_num_seqs", _COUNT, "responses at once"),
    Key("actor_rollout_ref.rollout.max_num_batched_tokens", _COUNT, "tokens at once"),
    Key("actor_rollout_ref.rollout.enforce_eager", Flag(), "no CUDA graphs"),
    Key("actor_rollout_ref.rollout.free_cache_engine", Flag(), "free the engine's memory while training"),
    Key("actor_rollout_ref.rollout.calculate_log_probs", Flag(), "log how far sampler and trainer agree"),
    Key(
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        _COUNT,
        "responses a pass for old log-probs",
        null="with log_prob_use_dynamic_bsz",
    ),
    Key("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", Flag(), "passes by tokens, as the actor's"),
    Key("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", _COUNT, "tokens a pass of one device"),
    Key("actor_rollout_ref.rollout.agent.num_workers", _COUNT, "processes that send prompts"),
    Key(
        "actor_rollout_ref.rollout.agent.default_agent_loop",
        Text("the name of an agent loop"),
        "agent loop; raw rows and data.stop need rerule_single_turn_agent",
        shown=True,
    ),
    Key(
        "actor_rollout_ref.rollout.agent.agent_loop_config_path",
        Text("a YAML file"),
        "further agent loops",
        null="none",
    ),
    Key("actor_rollout_ref.rollout.val_kwargs.temperature", Number(0, 100), "of validation"),
    Key("actor_rollout_ref.rollout.val_kwargs.top_p", Number(above=0, high=1), "of validation"),
    Key("actor_rollout_ref.rollout.val_kwargs.top_k", Whole(1, also=(-1, 0)), "of validation"),
    Key("actor_rollout_ref.rollout.val_kwargs.n", _COUNT, "responses a prompt of validation"),
    Key("actor_rollout_ref.rollout.val_kwargs.do_sample", Flag(), "whether validation samples"),
)
_CRITIC = (
    Key("critic.enable", Flag(), "whether there is a critic", null="with adv_estimator=gae"),
    Key("critic.strategy", Choice(names.CRITIC_STRATEGIES), "engine of the critic"),
    Key("critic.ppo_micro_batch_size_per_gpu", _COUNT, "responses a pass", null="with use_dynamic_bsz"),
    Key("critic.ppo_mini_batch_size", _COUNT, "prompts an optimiser step of the critic"),
    Key("critic.ppo_max_token_len_per_gpu", _COUNT, "tokens a pass of one device"),
    Key("critic.ppo_epochs", _COUNT, "passes over a step's responses"),
    Key("critic.cliprange_value", Number(above=0), "clip range of the value loss"),
    Key("critic.loss_agg_mode", Choice(names.LOSS_AGGREGATIONS), "how tokens are averaged"),
    *_devices("critic.fsdp"),
    *shared.optimizer("critic.optim", shown=False),
)
_ALGORITHM = (
    Key("algorithm.adv_estimator", Choice(names.ESTIMATORS), "estimator of the advantage", shown=True),
    Key("algorithm.norm_adv_by_std_in_grpo", Flag(), "divide by the group's deviation"),
    Key("algorithm.gamma", Number(0, 1), "discount"),
    Key("algorithm.lam", Number(0, 1), "lambda of gae"),
    Key("algorithm.use_kl_in_reward", Flag(), "KL in the reward"),
    Key("algorithm.kl_penalty", Choice(names.KL_ESTIMATORS), "estimator of that KL"),
    Key("algorithm.kl_ctrl.type", Choice(names.KL_CONTROLLERS), "whether its weight adapts"),
    Key("algorithm.kl_ctrl.kl_coef", Number(0), "its weight"),
    Key("algorithm.kl_ctrl.horizon", _COUNT, "of adaptive"),
    Key("algorithm.kl_ctrl.target_kl", Number(above=0), "of adaptive"),
    Key(
        "algorithm.rollout_correction.rollout_is",
        Choice(names.CORRECTION_LEVELS),
        "weights for the difference of sampler and trainer",
        null="none",
    ),
    Key("algorithm.rollout_correction.bypass_mode", Flag(), "the sampler's log-probs are the old ones"),
)
_KWARGS = "reward.custom_reward_function.reward_kwargs"
_REWARD = (
    Key("reward.num_workers", _COUNT, "processes that compute rewards"),
    Key("reward.reward_manager.source", Choice(("register", "importlib")), "where the manager comes from"),
    Key("reward.reward_manager.name", Text(), "the reward manager"),
    Key(
        "reward.custom_reward_function.path",
        Text("a module (pkg://...) or a Python file"),
        "module or file of the reward function",
        shown=True,
    ),
    Key("reward.custom_reward_function.name", Text("the name of a function"), "the reward function"),
    Key(
        f"{_KWARGS}.form",
        Elsewhere("guarded, nested or additive"),
        "whether the second term counts without the first",
        "the benchmark's",
        True,
    ),
    Key(
        f"{_KWARGS}.lambda_forget",
        Elsewhere("0 to 1"),
        "forget side: weight of being a refusal",
        "the benchmark's",
        True,
    ),
    Key(
        f"{_KWARGS}.lambda_retain",
        Elsewhere("0 to 1"),
        "retain side: weight of not being a refusal",
        "the benchmark's",
        True,
    ),
    Key(
        f"{_KWARGS}.gamma",
        Elsewhere("0 to 1"),
        "retain side: the ROUGE-L that an answer must exceed",
        "the benchmark's",
        True,
    ),
    Key(f"{_KWARGS}.rouge", Elsewhere("a convention"), "ROUGE-L convention", "the benchmark's", True),
    Key(
        f"{_KWARGS}.refusal_phrases",
        Elsewhere("a file"),
        "phrases that extend the refusal detector",
        "none",
        True,
    ),
)
_TRAINER = (
    *shared.trainer(),
    Key(
        "trainer.max_actor_ckpt_to_keep",
        _COUNT,
        "how many complete checkpoints are kept",
        null="all",
        shown=True,
    ),
    Key("trainer.max_critic_ckpt_to_keep", _COUNT, "the same of the critic", null="all"),
    Key("trainer.val_before_train", Flag(), "validate before the first step"),
    Key("trainer.val_only", Flag(), "validate and do nothing else"),
    Key("trainer.log_val_generations", Whole(0), "responses of validation that loggers get"),
    Key("trainer.rollout_data_dir", Text("a folder"), "where verl writes responses", null="nowhere"),
    Key("trainer.validation_data_dir", Text("a folder"), "the same of validation", null="nowhere"),
    Key("trainer.critic_warmup", Whole(0), "steps that train the critic alone"),
    Key("trainer.esi_redundant_time", Number(0), "seconds before an elastic server ends"),
    Key("trainer.ray_wait_register_center_timeout", _COUNT, "seconds that verl waits for workers"),
    Key("trainer.use_v1", Flag(), "verl's V1 trainer, which can filter groups", shown=True),
)
_V1 = (
    Key("trainer.v1.trainer_mode", Choice(names.V1_MODES), "verl's mode of V1; ReRULE extends sync alone"),
    Key(
        "trainer.v1.sampler.sync_refill_failed_groups",
        Flag(),
        "with use_v1: other prompts for those without any response",
    ),
    Key(
        "trainer.v1.sampler.custom_sampler.path",
        Text("a Python file"),
        "a sampler of your own, without replay",
        null="verl's own",
    ),
    Key(
        "trainer.v1.sampler.custom_sampler.name", Text("the name of a class"), "its class", null="verl's own"
    ),
    Key("algorithm.filter_groups.enable", Flag(), "with use_v1: other prompts for groups of equal rewards"),
    Key("algorithm.filter_groups.metric", Text(), "what must differ: reward, or a part of the reward"),
    Key("algorithm.filter_groups.max_inflight_gen_batches", _COUNT, "steps' worth of prompts at once"),
    Key("algorithm.filter_groups.max_num_gen_batches", Whole(0), "V1 ignores it: leave it 0"),
    Key("transfer_queue.backend.storage_backend", Choice(names.QUEUE_STORAGES), "where V1 keeps rows"),
    Key("transfer_queue.backend.SimpleStorage.total_storage_size", _COUNT, "rows that V1 can keep"),
    Key("transfer_queue.backend.SimpleStorage.num_data_storage_units", _COUNT, "processes that keep them"),
)
_SAVE = (
    Key(
        "save.minutes",
        Number(above=0),
        "minutes after which a checkpoint is saved between those of trainer.save_freq",
        null="none is saved by time",
        shown=True,
    ),
    Key(
        "save.best",
        Flag(),
        "where the run validates, also keep the checkpoint of the best validation",
        shown=True,
    ),
    shared.WEIGHTS_DTYPE,
)
_RECORDS = (
    Key(
        "sides.weights",
        Choice(("equal", "by_error")),
        "by_error: the advantages of the side that errs more often weigh more",
        shown=True,
    ),
    Key(
        "health.stop_after",
        _COUNT,
        "steps for which a warning must have held to end the run",
        null="warnings end no run",
        shown=True,
    ),
    Key("records.rollouts", Flag(), "keep every response of every step as text", shown=True),
    Key("ray_kwargs.ray_init.num_cpus", Number(above=0), "CPUs that Ray counts", null="the machine's"),
)

KEYS: tuple[Key, ...] = (
    Key("model_engine", Choice(("dp",)), "verl's settings for FSDP, on which ReRULE runs"),
    *shared.model("actor_rollout_ref.model"),
    Key(
        "actor_rollout_ref.model.lora.merge",
        Flag(),
        "the rollout engine gets the adapter merged into the weights; false sends it alone",
    ),
    *_DATA,
    *_ACTOR,
    *_REFERENCE,
    *_ROLLOUT,
    *_CRITIC,
    *_ALGORITHM,
    *_REWARD,
    *shared.PLATFORM,
    *_TRAINER,
    *_V1,
    *_SAVE,
    *_RECORDS,
)
"""All that are checked one by one."""
