"""Names that verl gives to its parts, where a setting chooses one.

verl compares with these names or registers parts under them; importing it takes seconds, so that they stand
here, and tests hold them to verl.
"""

from __future__ import annotations

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
KL_ESTIMATORS = (
    "kl",
    "k1",
    "abs",
    "mse",
    "k2",
    "low_var_kl",
    "k3",
    "kl+",
    "k1+",
    "abs+",
    "low_var_kl+",
    "k3+",
)
"""With "+": that value, with the gradient of k2."""
KL_CONTROLLERS = ("fixed", "adaptive")
LOSS_AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
SCHEDULES = ("constant", "cosine")
ENGINES = ("vllm", "sglang", "trtllm")
"""Rollout engines."""
ACTOR_STRATEGIES = ("fsdp", "fsdp2", "fsdp_turbo")
CRITIC_STRATEGIES = ("fsdp", "fsdp2")
AGENT_LOOPS = ("single_turn_agent", "tool_agent")
"""verl's own; libraries register more."""
REWARD_MANAGERS = ("naive", "dapo", "gdpo", "rate_limited", "remote")
CHECKPOINT_CONTENTS = ("model", "optimizer", "extra", "hf_model")
TRUNCATIONS = ("error", "left", "right", "middle")
SFT_TRUNCATIONS = ("error", "left", "right")
PAD_MODES = ("no_padding", "right")
DEVICES = ("cuda", "cpu", "npu")
ROLLOUT_DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
CORRECTION_LEVELS = ("token", "sequence")
LOGGERS = (
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
)
V1_MODES = ("sync", "colocate_async", "separate_async")
QUEUE_STORAGES = ("SimpleStorage", "MooncakeStore")
