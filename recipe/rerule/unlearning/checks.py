"""Everything about a run of `recipe.rerule.unlearn` that a user can get wrong, refused before it starts.

`check` is the list of what is looked at. Nothing is written. Each error is one line.
"""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from data_prep.contract import Row
from recipe.rerule import io, schema
from recipe.rerule.runs import checkpoints, model_checks
from recipe.rerule.schema import SettingsError, shown
from recipe.rerule.training import data_checks, prompt_checks
from recipe.rerule.training.settings import conditions, lora, parts, rows, steps
from recipe.rerule.unlearning import frozen_checks, identity, presets
from recipe.rerule.unlearning.method import SIDES, Method
from reward.refusal import is_refusal

Files = dict[str, list[Row]]
"""Rows by side."""


def check(config: DictConfig) -> None:
    """Check a resolved configuration.

    Raises:
        ValueError: one line naming the setting, file, row or model at fault.
    """
    # Settings, each by itself and together.
    _require_method(config)
    schema.check(config, schema.UNLEARN)
    method = Method.of(schema.plain(config, "method"))
    conditions.check_thinking(config.data)
    _check_unsupported(config)
    lora.check(config.model, "model")
    _check_batches(config)
    # Parts that they name.
    parts.check_libraries(config.model.external_lib, "model.external_lib")
    parts.check_optimizer(config, "optim")
    parts.check_loggers(config.trainer.logger)
    # Folders.
    conditions.check_run_folder(config.trainer, stage="unlearn")
    _check_checkpoints(config)
    # Models and rows.
    model_checks.check_stage1(config)
    rows.check_model(config.model.path, "model.path", config.model.trust_remote_code)
    lora.check_modules(config.model, "model")
    frozen_checks.check(config, method)
    files = _read(config, method)
    identity.check(config)
    _refuse_refusals(config, files)
    for side, found in files.items():
        data_checks.check_stage1([(config.data[side], found)], [])
        rows.check_conversations(config, [(config.data[side], found)])
    rows.warn_of_template(config, config.model, list(files.items()))
    _check_groups(config, method, files)


def _require_method(config: DictConfig) -> None:
    if OmegaConf.select(config, "method.name") is None and all(
        OmegaConf.select(config, f"method.{side}") == "none" for side in SIDES
    ):
        raise SettingsError(f"method is not set; set it to one of {', '.join(presets.names())}")


def _check_unsupported(config: DictConfig) -> None:
    """Refuse what verl has and the losses here cannot work with."""
    for key, wanted in (
        ("model.use_fused_kernels", False),
        ("engine.ulysses_sequence_parallel_size", 1),
        ("engine.pad_to_length", False),
        ("model.lora_adapter_path", None),
        ("data.pad_mode", "no_padding"),
        ("data.train_files", None),
        ("data.val_files", None),
        ("trainer.test_freq", -1),
    ):
        value = OmegaConf.select(config, key)
        if value != wanted:
            raise SettingsError(
                f"{key} is {shown(value)}, which unlearning does not support; set it to {shown(wanted)}"
            )


def _check_batches(config: DictConfig) -> None:
    """Refuse a step that ranks, or the micro-batches of a rank, cannot share evenly."""
    batch, ranks = config.data.train_batch_size, config.trainer.n_gpus_per_node
    if batch % ranks:
        raise SettingsError(
            f"data.train_batch_size is {batch}, which {ranks} devices (trainer.n_gpus_per_node) cannot share "
            "evenly; change one of them"
        )
    micro = config.data.micro_batch_size_per_gpu
    if not config.data.use_dynamic_bsz and batch // ranks % micro:
        raise SettingsError(
            f"data.micro_batch_size_per_gpu is {micro}, which does not divide the {batch // ranks} rows that "
            "each device has of data.train_batch_size; set it to a divisor, or data.use_dynamic_bsz=true"
        )


def _check_checkpoints(config: DictConfig) -> None:
    """Refuse a checkpoint that cannot be gone on from, and a run that would end without a model."""
    if config.trainer.resume_mode == "resume_path":
        schema.require_set(config, "trainer.resume_from_path")
        checkpoints.check_resume_from(config.trainer.default_local_dir, config.trainer.resume_from_path)
    if "hf_model" not in config.checkpoint.save_contents:
        raise SettingsError(
            f"checkpoint.save_contents is {list(config.checkpoint.save_contents)}, without hf_model, so that "
            "the run would end without a model; add it"
        )


def _read(config: DictConfig, method: Method) -> Files:
    """The rows of the files that the method needs; warns of files that it does not."""
    for side in SIDES:
        path = config.data[side]
        if side in method.data and path is None:
            raise SettingsError(
                f"data.{side} is not set, but method {method.name} needs it; pass data.{side}=FILE "
                f"(all it needs: {', '.join(f'data.{needed}' for needed in method.data)})"
            )
        if side not in method.data and path is not None:
            io.warn(f"data.{side} is set, but method {method.name} does not read it")
    return {side: found for side in method.data for _, found in rows.read_sft([config.data[side]])}


def _refuse_refusals(config: DictConfig, files: Files) -> None:
    """Refuse answers to forget that are refusals: the model would unlearn to refuse."""
    for number, row in enumerate(files.get("forget", [])):
        # In a passage the detector may find a refusal that somebody in it utters.
        answer = row["messages"][-1]["content"]
        if row["extra_info"].get("mode") != "completion" and is_refusal(answer):
            raise SettingsError(
                f"{config.data.forget}: row {number}: the answer to forget is a refusal ({answer[:60]!r}); "
                "data.forget needs the true answers (forget_gold.parquet), refusals belong in data.alternate"
            )


def _check_groups(config: DictConfig, method: Method, files: Files) -> None:
    """Refuse rows that make no whole step, or groups that do not fit into one pass."""
    from recipe.rerule.unlearning.rows import GroupDataset

    leading = "forget" if method.leading == "alternate" and "alternate" not in files else method.leading
    count, ranks = len(files[leading]), config.trainer.n_gpus_per_node
    batch, data = config.data.train_batch_size, config.data
    if count < ranks:
        raise SettingsError(
            f"trainer.n_gpus_per_node is {ranks}, but data.{leading} holds {count} rows, and each device "
            f"needs one; lower it to {count} or less"
        )
    if count < batch:
        raise SettingsError(
            f"data.train_batch_size is {batch}, but data.{leading} holds {count} rows; lower it"
        )
    planned = steps.run_steps(config, [(data[leading], files[leading])])
    groups = GroupDataset(
        files,
        method,
        prompt_checks.load_tokenizer(config.model),
        data.max_length,
        config.trainer.seed,
        schema.plain(config, "data.apply_chat_template_kwargs"),
    )
    groups.check_answers()
    if data.use_dynamic_bsz and (longest := groups.longest()) > data.max_token_len_per_gpu:
        raise SettingsError(
            f"data.max_token_len_per_gpu is {data.max_token_len_per_gpu}, but a forget row and its partners, "
            f"which pass together, have up to {longest} tokens; raise it to that or more"
        )
    for line in steps.warm_up_warnings(config, "optim", planned):
        io.warn(line)
    if count % batch:
        io.warn(
            f"data.train_batch_size is {batch}, which does not divide the {count} rows of data.{leading}: "
            f"each epoch leaves out {count % batch} of them, drawn anew"
        )
