"""The settings of stage 1."""

from __future__ import annotations

from recipe.rerule.training.keys import shared
from recipe.rerule.training.keys import verl_names as names
from recipe.rerule.training.keys.kinds import (
    Choice,
    Either,
    Elsewhere,
    Flag,
    Key,
    ListOf,
    Number,
    Text,
    Whole,
)

_AFTER_EPOCHS = Either(shared.EVERY, Choice(("after_each_epoch",)))
_ONE_NODE = Whole(1, 1)

KEYS: tuple[Key, ...] = (
    *shared.model("model"),
    Key("data.train_files", shared.FILES, "rows of stage 1 (sft.parquet)", shown=True),
    Key(
        "data.prompt_files",
        shared.FILES,
        "prompts of stage 2 (train.parquet), of which responses are sampled",
        null="none are sampled",
        shown=True,
    ),
    Key(
        "data.retain_share",
        Number(0, 0.9),
        "share of the model's own right answers to retain prompts in each batch",
        shown=True,
    ),
    Key("data.val_files", shared.FILES, "rows for a validation loss", null="none"),
    Key("data.train_batch_size", shared.COUNT, "rows in each step", shown=True),
    Key("data.micro_batch_size_per_gpu", shared.COUNT, "rows in each pass of a device", shown=True),
    Key("data.use_dynamic_bsz", Flag(), "passes by tokens instead: max_token_len_per_gpu"),
    Key("data.max_token_len_per_gpu", shared.COUNT, "tokens a pass of one device"),
    Key("data.max_length", Whole(1, shared.MOST_TOKENS), "the most tokens of prompt and refusal", shown=True),
    Key(
        "data.max_response_length",
        Whole(1, shared.MOST_TOKENS),
        "the most tokens of a sampled response and of an own answer",
        shown=True,
    ),
    Key(
        "data.stop",
        ListOf(Text(blank=True), "a list of texts that are not empty", empty=True),
        "strings that end a sampled response and an own answer",
    ),
    Key("data.truncation", Choice(names.SFT_TRUNCATIONS), "what happens to longer rows", shown=True),
    Key("data.train_max_samples", shared.ALL_ROWS, "rows used for training; -1 takes all"),
    Key("data.val_max_samples", shared.ALL_ROWS, "rows used for validation; -1 takes all"),
    Key("data.pad_mode", Choice(names.PAD_MODES), "how rows are padded"),
    Key("data.num_workers", Whole(0, 1024), "processes that read rows"),
    Key("data.enable_thinking_default", Elsewhere("null"), "not used", null="not used"),
    Key("data.custom_cls.path", Text("a module (pkg://...) or a file"), "the data set", null="verl's own"),
    Key("data.custom_cls.name", Text("the name of a class"), "the data set's class", null="verl's own"),
    Key("engine.strategy", Choice(names.ACTOR_STRATEGIES), "verl's training engine"),
    Key("engine.ulysses_sequence_parallel_size", shared.COUNT, "devices that share a sequence"),
    Key("engine.fsdp_size", Whole(1, also=(-1,)), "devices that share the weights; -1 takes all"),
    Key(
        "engine.turbo_config.distributed.ulysses_parallel_size",
        shared.COUNT,
        "devices that share a sequence, with fsdp_turbo",
    ),
    Key("signal.every", shared.COUNT, "steps between two samplings", shown=True),
    Key("signal.prompts", shared.COUNT, "prompts of each side that are sampled", shown=True),
    Key("signal.samples", Whole(2), "responses to each of them", shown=True),
    Key("signal.temperature", Number(above=0, high=2), "temperature of the sampling"),
    Key(
        "stop",
        Choice(("none", "signal")),
        "signal: the model of the step that is the best start of stage 2; none: of the last step",
        shown=True,
    ),
    *shared.optimizer("optim"),
    Key(
        "checkpoint.save_contents",
        ListOf(Choice(names.CHECKPOINT_CONTENTS)),
        "what a checkpoint holds; stage 2 starts from hf_model",
    ),
    *shared.PLATFORM,
    *shared.trainer(every=_AFTER_EPOCHS, nnodes=_ONE_NODE),
    shared.WEIGHTS_DTYPE,
    Key("trainer.max_ckpt_to_keep", shared.COUNT, "checkpoints kept", null="all"),
    Key("trainer.seed", shared.SEED, "seed of the run"),
)
"""All that are checked one by one."""
