"""Sizes that verl cannot share evenly, with what must happen; the numbers are worked out by hand.

Stage 2 begins as experiment=rwku: 32 prompts x 8 responses are 256 rows a step, 64 for each of 4 devices, in
micro-batches of 8 and 16. Stage 1 begins with batches of 8 rows on 4 devices. The model has 2 attention heads
and reads 2,048 tokens.
"""

from __future__ import annotations

from typing import Any

from tests.refused.cases import Outcome
from tests.refused.settings_cases import ACTOR, ROLLOUT, together

STAGE1, STAGE2 = "sizes of stage 1", "sizes of stage 2"
REFERENCE = "actor_rollout_ref.ref"
GPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
BATCH, MINI, MICRO = (
    "data.train_batch_size",
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
)
OLD, REF = (f"{part}.log_prob_micro_batch_size_per_gpu" for part in (ROLLOUT, REFERENCE))
LOOPS, TENSOR, DATA = (
    f"{ROLLOUT}.{name}" for name in ("agent.num_workers", "tensor_model_parallel_size", "data_parallel_size")
)
TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
OLD_TOKENS, REF_TOKENS = (f"{part}.log_prob_max_token_len_per_gpu" for part in (ROLLOUT, REFERENCE))
ULYSSES, ENGINE_ULYSSES, TURBO_ULYSSES = (
    f"{ACTOR}.{name}"
    for name in (
        "ulysses_sequence_parallel_size",
        "fsdp_config.ulysses_sequence_parallel_size",
        "fsdp_config.turbo_config.distributed.ulysses_parallel_size",
    )
)
REF_ULYSSES, REF_ENGINE_ULYSSES = (key.replace(ACTOR, REFERENCE) for key in (ULYSSES, ENGINE_ULYSSES))
FSDP = f"{ACTOR}.fsdp_config.fsdp_size"
RULE: dict[str, Any] = {"replay.enable": False}
GAE: dict[str, Any] = {"algorithm.adv_estimator": "gae"}
BY_TOKENS: dict[str, Any] = {f"{ACTOR}.use_dynamic_bsz": True, TOKENS: 4096}

PRODUCT = "data.train_batch_size x actor_rollout_ref.rollout.n"
UNSHARED = "devices cannot share evenly (trainer.n_gpus_per_node x trainer.nnodes)"
UNEVEN = "which does not divide the 4 devices of trainer.n_gpus_per_node x trainer.nnodes; set it to"
OF_A_STEP = f"which does not divide the 256 responses of a step ({PRODUCT}); set it to"
LONGEST = "but a row can have 1536 tokens (data.max_prompt_length + data.max_response_length); set it to 1536"
HEADS = "but so many devices cannot share the model's attention heads evenly; set it to 2"

REFUSED_2: list[tuple[dict[str, Any], str]] = [
    # Rows of a step.
    (
        {GPUS: 3},
        f"{PRODUCT} is 256 rows a step, which 3 {UNSHARED}; use 2 devices, or set "
        "data.train_batch_size to a multiple of 3",
    ),
    ({NODES: 3}, f"which 12 {UNSHARED}; use 8 devices"),
    ({GPUS: 512}, "use 256 devices, or set data.train_batch_size to a multiple of 64"),
    (
        {MINI: 2, GPUS: 8, NODES: 4},
        f"{MINI} x actor_rollout_ref.rollout.n is 16 rows an optimiser step, which 32 {UNSHARED}; use 16 "
        f"devices, or set {MINI} to a multiple of 4",
    ),
    ({MINI: 5}, f"data.train_batch_size is 32, no multiple of {MINI}, which is 5"),
    ({"data.gen_batch_size": 64}, "data.gen_batch_size is 64, but a step has 32 prompts"),
    ({LOOPS: 7}, f"{LOOPS} is 7, {OF_A_STEP} 4"),
    ({LOOPS: 300}, f"{LOOPS} is 300, {OF_A_STEP} 256"),
    (
        {BATCH: 4, MINI: 4, f"{ROLLOUT}.n": 5, "replay.groups_per_update": 4},
        f"{LOOPS} is 8, which does not divide the 20 responses of a step ({PRODUCT}); set it to 5",
    ),
    (
        {f"{ACTOR}.use_prefix_grouper": True, BATCH: 30, MINI: 30},
        f"{ACTOR}.use_prefix_grouper is true, but 4 {UNSHARED} the prompts",
    ),
    # Micro-batches.
    *(
        (
            {key: size},
            f"{key} is {size}, which does not divide the 64 rows of a {of} that each device has; set "
            f"it to {ok}",
        )
        for key, of, size, ok in (
            (MICRO, "mini-batch", 3, 2),
            (MICRO, "mini-batch", 6, 4),
            (MICRO, "mini-batch", 128, 64),
            (OLD, "step", 24, 16),
            (OLD, "step", 65, 64),
            (REF, "step", 24, 16),
            (REF, "step", 65, 64),
        )
    ),
    ({MINI: 16, MICRO: 64}, f"{MICRO} is 64, which does not divide the 32 rows of a mini-batch"),
    ({OLD: 16, GPUS: 32}, f"{OLD} is 16, which does not divide the 8 rows of a step"),
    ({REF: 16, GPUS: 32}, f"{REF} is 16, which does not divide the 8 rows of a step"),
    *(
        ({key: None}, f"{key} is null, but without use_dynamic_bsz verl needs it")
        for key in (MICRO, OLD, REF)
    ),
    # Passes by tokens.
    *((BY_TOKENS | {key: 1535}, f"{key} is 1535, {LONGEST}") for key in (TOKENS, OLD_TOKENS, REF_TOKENS)),
    (
        {f"{ROLLOUT}.log_prob_use_dynamic_bsz": True},
        f"{ROLLOUT}.log_prob_use_dynamic_bsz is true, but verl uses one engine",
    ),
    # Rollout replicas.
    ({TENSOR: 8}, f"{TENSOR} is 8, which does not divide the 4 devices of"),
    ({TENSOR: 2, DATA: 4}, f"{TENSOR} is 2 and {DATA} 4, which makes replicas of 8 devices, which does not"),
    (
        {TENSOR: 4, GPUS: 6, NODES: 2},
        f"{TENSOR} is 4, but a node has 6 (trainer.n_gpus_per_node), and a replica cannot have a part of "
        "one; set it to 3",
    ),
    ({TENSOR: 4}, f"{TENSOR} is 4, {HEADS}"),
    (
        {f"{ROLLOUT}.expert_parallel_size": 3},
        "verl refuses the configuration: expert_parallel_size must be equal to",
    ),
    ({f"{ROLLOUT}.pipeline_model_parallel_size": 2}, "not implemented pipeline_model_parallel_size > 1"),
    # Devices that share a sequence, or the weights.
    *(
        (
            values,
            f"{key} is 2, but replay does not support devices that share a sequence; set it to 1, or",
        )
        for key, values in (
            (ULYSSES, {ULYSSES: 2}),
            (ENGINE_ULYSSES, {ENGINE_ULYSSES: 2}),
            (TURBO_ULYSSES, {TURBO_ULYSSES: 2, f"{ACTOR}.strategy": "fsdp_turbo"}),
        )
    ),
    ({ULYSSES: 3, **RULE}, f"{ULYSSES} is 3, {UNEVEN} 2"),
    ({ENGINE_ULYSSES: 8, **RULE}, f"{ENGINE_ULYSSES} is 8, {UNEVEN} 4"),
    ({ULYSSES: 4, **RULE}, f"{ULYSSES} is 4, {HEADS}"),
    ({REF_ULYSSES: 3}, f"{REF_ULYSSES} is 3, {UNEVEN} 2"),
    ({REF_ENGINE_ULYSSES: 3}, f"{REF_ENGINE_ULYSSES} is 3, {UNEVEN} 2"),
    (
        {ULYSSES: 2, GPUS: 6, **RULE},
        f"which 3 groups of 2 {UNSHARED}; use 4",
    ),
    ({FSDP: 3}, f"{FSDP} is 3, {UNEVEN} 2"),
    ({FSDP: 0}, f"{FSDP} is 0; set it to a whole number >= 1 or -1"),
    # The critic.
    ({"critic.ppo_mini_batch_size": 5, **GAE}, "no multiple of critic.ppo_mini_batch_size, which is 5"),
    (
        {"critic.ppo_max_token_len_per_gpu": 1000, **GAE},
        f"critic.ppo_max_token_len_per_gpu is 1000, {LONGEST}",
    ),
    ({"critic.fsdp.fsdp_size": 3, **GAE}, f"critic.fsdp.fsdp_size is 3, {UNEVEN} 2"),
    (
        {"data.max_response_length": 32257, "critic.ppo_max_token_len_per_gpu": 40000, **GAE},
        "are 32769 tokens, but verl's critic reads at most 32768",
    ),
    # Groups of a replay update.
    (
        {"replay.groups_per_update": 3},
        "replay.groups_per_update is 3, but 4 devices share the groups of a replay update evenly, so that "
        "none would ever be made; set it to 4 or more",
    ),
    ({GPUS: 16, NODES: 4}, "replay.groups_per_update is 32, but 64 devices share"),
    # Tokens of the rollout engine.
    (
        {"data.max_response_length": 1600},
        f"{ROLLOUT}.max_model_len is 2112, but the model reads at most 2048 tokens; lower data.max",
    ),
]
WARNED_2: list[tuple[dict[str, Any], str]] = [
    (
        {"replay.groups_per_update": 6},
        "replay.groups_per_update is 6, which 4 devices cannot share evenly: a replay update draws 4 groups; "
        "set it to 4 or 8",
    ),
    *(
        (
            {"data.max_response_length": 1600, f"{ROLLOUT}.max_model_len": length},
            "together are 2112 tokens, but the model reads at most 2048: longer responses are cut off",
        )
        for length in (None, 2048)
    ),
]
VALID_2: list[dict[str, Any]] = [
    *({GPUS: devices} for devices in (1, 2, 8, 16, 32)),
    {GPUS: 8, NODES: 4},
    {GPUS: 16, NODES: 4, **RULE},
    {MICRO: 64, OLD: 32, REF: 1},
    {REF: 24, f"{REFERENCE}.log_prob_use_dynamic_bsz": True},
    BY_TOKENS | {TOKENS: 1536, MICRO: None, OLD: 3},
    {LOOPS: 256},
    {"data.gen_batch_size": 32},
    {TENSOR: 2},
    {ULYSSES: 2, **RULE},
    {ENGINE_ULYSSES: 2, **RULE},
    # Stored groups hold the reference's log-probs, so that replay does not ask for them again.
    {REF_ULYSSES: 2},
    {REF_ENGINE_ULYSSES: 2},
    {TURBO_ULYSSES: 2},  # counts with strategy=fsdp_turbo alone
    {FSDP: 2},
    {"replay.groups_per_update": 3, **RULE},
]
MICRO_1 = "data.micro_batch_size_per_gpu"
VAL = "data.val_files"
FEW, ENOUGH = "FEW", "ENOUGH"
"""Stand for files of 7 and of 8 rows."""
REFUSED_1: list[tuple[dict[str, Any], str]] = [
    (
        {GPUS: 16},
        "data.train_batch_size is 8, which 16 devices cannot share evenly (trainer.n_gpus_per_node); set "
        "trainer.n_gpus_per_node to 8, or data.train_batch_size to a multiple of 16",
    ),
    (
        {GPUS: 3},
        "cannot share evenly (trainer.n_gpus_per_node); set trainer.n_gpus_per_node to 2, or data.train",
    ),
    ({BATCH: 32}, "data.train_batch_size is 32 but data.train_files hold 24 rows"),
    ({BATCH: 48, GPUS: 48}, "data.train_batch_size is 48 but data.train_files hold 24 rows"),
    (
        {MICRO_1: 4},
        f"{MICRO_1} is 4, which does not divide the 2 rows of a batch that each device has; set it to 2",
    ),
    (
        {MICRO_1: 2, GPUS: 8},
        f"{MICRO_1} is 2, which does not divide the 1 row of a batch that each device has",
    ),
    (
        {"data.use_dynamic_bsz": True, "data.max_token_len_per_gpu": 1023},
        "data.max_token_len_per_gpu is 1023, but a row can have 1024 tokens (data.max_length); set it to",
    ),
    (
        {"engine.ulysses_sequence_parallel_size": 3},
        "engine.ulysses_sequence_parallel_size is 3, which does not divide the 4 devices of "
        "trainer.n_gpus_per_node; set it to 2",
    ),
    (
        {"engine.ulysses_sequence_parallel_size": 2, GPUS: 32},
        "which 16 groups of 2 devices cannot share evenly (trainer.n_gpus_per_node); set "
        "trainer.n_gpus_per_node to 16",
    ),
    ({"engine.ulysses_sequence_parallel_size": 4}, f"engine.ulysses_sequence_parallel_size is 4, {HEADS}"),
    ({"engine.fsdp_size": 3}, "engine.fsdp_size is 3, which does not divide the 4 devices"),
    ({VAL: FEW}, "data.val_files give 7 rows, less than a batch of data.train_batch_size=8"),
    ({VAL: ENOUGH, "data.val_max_samples": 4}, "data.val_files give 4 rows, less than a batch"),
]
VALID_1: list[dict[str, Any]] = [
    *({GPUS: devices} for devices in (1, 2, 8)),
    {GPUS: 1, MICRO_1: 8},
    {"data.use_dynamic_bsz": True, "data.max_token_len_per_gpu": 1024, MICRO_1: 3},
    {"engine.ulysses_sequence_parallel_size": 2},
    {"engine.fsdp_size": 2},
    {VAL: ENOUGH},
]


def _cases(group: str, outcome: Outcome, entries: list[tuple[dict[str, Any], str]]) -> list[Any]:
    return [together(group, outcome, named, values) for values, named in entries]


CASES = [
    *_cases(STAGE2, "refused", REFUSED_2),
    *_cases(STAGE2, "warned", WARNED_2),
    *_cases(STAGE2, "valid", [(values, "") for values in VALID_2]),
    *_cases(STAGE1, "refused", REFUSED_1),
    *_cases(STAGE1, "valid", [(values, "") for values in VALID_1]),
]
