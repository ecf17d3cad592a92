"""Settings that both stages have, under the name that each gives them."""

from __future__ import annotations

from recipe.rerule.training.keys import verl_names as names
from recipe.rerule.training.keys.kinds import (
    SEED_LIMIT,
    Choice,
    Either,
    Flag,
    Key,
    ListOf,
    Number,
    Text,
    Whole,
)

MOST_TOKENS = 1_000_000
"""Bound on lengths in tokens: no model reads more."""

COUNT = Whole(1)
SEED = Whole(0, SEED_LIMIT)
EVERY = Whole(1, also=(-1,))
ALL_ROWS = Whole(1, also=(-1,))
FILES = ListOf(Text(), "the path of a parquet file, or a list of paths", alone=True)
LOGGERS = ListOf(Choice(names.LOGGERS), alone=True, empty=True)

PLATFORM = (
    Key("platform.name", Choice(("gpu", "cpu")), "the machine's kind; platform=gpu or platform=cpu sets it"),
    Key(
        "platform.require_accelerator",
        Flag(),
        "false lets a driver without an accelerator start a run on GPU nodes",
        shown=True,
    ),
    Key(
        "platform.bf16",
        Either(Flag(), Choice(("auto",))),
        "with platform=cpu: passes in bfloat16; auto where the processor has it and there is no replay",
    ),
)

WEIGHTS_DTYPE = Key(
    "save.weights_dtype",
    Choice(("float32", "bfloat16")),
    "dtype of the written Hugging Face folder; bfloat16 rounds the weights",
    shown=True,
)


def optimizer(section: str, shown: bool = True) -> tuple[Key, ...]:
    """The keys of an optimiser, `section` being where they stand."""
    return (
        Key(f"{section}.lr", Number(0, 1), "learning rate (0 changes nothing)", shown=shown),
        Key(f"{section}.lr_scheduler_type", Choice(names.SCHEDULES), "course of the learning rate"),
        Key(
            f"{section}.lr_warmup_steps",
            Whole(0, also=(-1,)),
            "steps until the full learning rate; -1 uses lr_warmup_steps_ratio",
            shown=shown,
        ),
        Key(f"{section}.lr_warmup_steps_ratio", Number(0, 1), "the same as a share of all steps"),
        Key(f"{section}.weight_decay", Number(0), "decoupled weight decay"),
        Key(f"{section}.clip_grad", Number(above=0, infinite=True), "bound on the norm of the gradient"),
        Key(
            f"{section}.betas", ListOf(Number(0, 1), "a list of two numbers from 0 to 1", length=2), "AdamW's"
        ),
        Key(f"{section}.min_lr_ratio", Number(0, 1), "where cosine ends", null="0"),
        Key(f"{section}.num_cycles", Number(above=0), "cycles of cosine"),
        Key(f"{section}.optimizer", Text(), "the optimiser's class"),
        Key(f"{section}.optimizer_impl", Text(), "the module that has that class"),
    )


def lora(section: str) -> tuple[Key, ...]:
    """The keys of a LoRA adapter, `section` being the model's."""
    modules = "the name of a module, a pattern of names, or a list of names"
    return (
        Key(f"{section}.lora_rank", Whole(0, 65536), "rank of a LoRA adapter; 0 trains all weights"),
        Key(f"{section}.lora_alpha", COUNT, "scale of the adapter, divided by its rank"),
        Key(
            f"{section}.target_modules",
            ListOf(Text(), f"all-linear, {modules}", alone=True),
            "modules with an adapter",
        ),
        Key(
            f"{section}.exclude_modules",
            ListOf(Text(), modules, alone=True),
            "modules without an adapter",
            null="none",
        ),
        Key(f"{section}.lora_adapter_path", Text("a folder"), "an adapter to go on with", null="a new one"),
    )


def model(section: str) -> tuple[Key, ...]:
    """The keys of a model, `section` being where they stand."""
    return (
        Key(f"{section}.path", Text("a Hugging Face folder or name"), "the model", shown=True),
        Key(f"{section}.tokenizer_path", Text(), "the tokenizer", null="the model's"),
        Key(f"{section}.trust_remote_code", Flag(), "run Python code that comes with the model"),
        Key(f"{section}.use_remove_padding", Flag(), "rows are packed without padding"),
        Key(f"{section}.enable_gradient_checkpointing", Flag(), "less memory, more time"),
        Key(f"{section}.use_fused_kernels", Flag(), "log-probs in chunks; no pass keeps its logits"),
        *lora(section),
        Key(
            f"{section}.external_lib",
            ListOf(Text(), "the name of a module, or a list of names", alone=True, empty=True),
            "modules that verl imports in each process",
            null="none",
        ),
    )


def trainer(
    total_epochs: str = "passes over the rows", every: Whole | Either = EVERY, nnodes: Whole = COUNT
) -> tuple[Key, ...]:
    """The keys of `trainer` that both stages have."""
    return (
        Key("trainer.total_epochs", COUNT, total_epochs, shown=True),
        Key("trainer.total_training_steps", COUNT, "the run's steps", null="by total_epochs", shown=True),
        Key("trainer.default_local_dir", Text("a folder"), "the run folder", shown=True),
        Key("trainer.project_name", Text(), "name of the project in loggers"),
        Key("trainer.experiment_name", Text(), "name of the run in loggers; outputs/NAME is the run folder"),
        Key("trainer.logger", LOGGERS, "where metrics go", shown=True),
        Key("trainer.save_freq", every, "steps between checkpoints (-1 writes none between)", shown=True),
        Key("trainer.test_freq", every, "steps between validations (-1 makes none)", shown=True),
        Key("trainer.n_gpus_per_node", Whole(1, 1024), "devices of a node", shown=True),
        Key("trainer.nnodes", nnodes, "nodes", shown=True),
        Key("trainer.resume_mode", Choice(names.RESUME_MODES), "whether the run goes on", shown=True),
        Key("trainer.resume_from_path", Text("a folder"), "the checkpoint of resume_path", null="none"),
        Key("trainer.device", Choice(names.DEVICES), "verl's name of the device; platform=cpu sets cpu"),
        Key("trainer.balance_batch", Flag(), "ranks get rows of alike length"),
    )
