"""What is looked at before a run of `recipe.rerule.unlearn`, beyond what it shares with stage 1."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from data_prep.contract import Row, read_sft_rows
from recipe.rerule import schema
from recipe.rerule.preflight import models, settings
from recipe.rerule.runs import model_checks
from recipe.rerule.schema import SettingsError, refuse, shown
from recipe.rerule.training import lora
from recipe.rerule.training.prompts import load_tokenizer
from recipe.rerule.unlearning import hidden, presets
from recipe.rerule.unlearning.method import SIDES, Method
from reward.refusal import is_refusal
from reward.thoughts import split_thought


def require_method(config: DictConfig) -> None:
    """Refuse a configuration in which no method was chosen."""
    chosen = [OmegaConf.select(config, f"method.{side}") for side in SIDES]
    refuse(
        OmegaConf.select(config, "method.name") is None and set(chosen) == {"none"},
        f"method is not set; set it to one of {', '.join(presets.names())}",
    )


def check_layer(config: DictConfig, method: Method) -> None:
    """Refuse a layer that the model lacks, and parameters that cannot train alone.

    Raises:
        SettingsError: naming the setting.
        OSError: the model's configuration cannot be read.
    """
    if not method.needs_hidden and method.trained_layers is None:
        return
    assert method.layer is not None
    refuse(
        config.engine.strategy != "fsdp2",
        f"engine.strategy is {config.engine.strategy}, but layers are read and chosen in FSDP2 models; set "
        "it to fsdp2",
    )
    refuse(
        method.trained_layers is not None and config.model.lora_rank > 0,
        f"model.lora_rank is {config.model.lora_rank}, but method.trained_layers chooses among the "
        "model's own parameters; set it to null, or model.lora_rank to 0",
    )
    model = lora.empty(config.model)
    try:
        count = len(hidden.layers(model))
    except (AttributeError, ValueError) as error:
        line = f"method.layer is {method.layer}, but {error}; choose another method or model"
        raise SettingsError(line) from None
    refuse(
        method.layer >= count,
        f"method.layer is {method.layer}, but the model has the layers 0 to {count - 1}; choose one of them",
    )
    chosen = (method.layer, method.trained_layers or 1, method.trained_module)
    refuse(
        not hidden.trained(model, *chosen),
        f"method.trained_module is {method.trained_module}, but no parameter of layer {method.layer} has "
        "this name; choose a part of its parameters' names, such as mlp",
    )


def frozen_warnings(config: DictConfig, method: Method) -> Iterator[str]:
    """What to say of frozen models that the method does not read.

    Raises ValueError: a model is missing, cannot be loaded, or has other tokens than the trained one.
    """
    refuse(
        bool(method.reinforced) and config.reinforced.path is None,
        f"reinforced.path is not set, but method {method.name} needs it: the model of model.path "
        "trained further on the rows of data.forget; pass reinforced.path=MODEL",
    )
    trusted, own = config.model.trust_remote_code, config.model.path
    for section, is_read, instead in (
        ("reference", bool(method.referenced), "compares with no reference"),
        ("reinforced", bool(method.reinforced), "does not read it"),
    ):
        key, path = f"{section}.path", config[section].path
        if path is None:
            continue
        if not is_read:
            yield f"{key} is set, but method {method.name} {instead}"
            continue
        models.check(path, key, trusted)
        size, own_size = (model_checks.vocabulary_size(one, trusted) for one in (path, own))
        refuse(
            size != own_size,
            f"{key} is {path}, whose vocabulary has {size} tokens, but that of model.path {own} has "
            f"{own_size}; give a model with the same vocabulary",
        )
        given = copy.copy(config.model)
        given.path, given.tokenizer_path = path, None
        refuse(
            load_tokenizer(given).get_vocab() != load_tokenizer(config.model).get_vocab(),
            f"{key} is {path}, whose tokenizer has other tokens than that of model.path {own}; give a model "
            "with the same vocabulary",
        )


def unread_settings(method: Method) -> Iterator[str]:
    """What to say of settings of the method that its terms do not read."""
    for name, default in presets.defaults().items():
        value = getattr(method, name)
        if name in method.unread and value != default:
            yield f"method.{name} is {shown(value)}, but no term of the method reads it"


def unread_files(config: DictConfig, method: Method) -> Iterator[str]:
    """What to say of files that the method does not read; refuses that one it reads is not set."""
    for side in SIDES:
        path = config.data[side]
        refuse(
            side in method.data and path is None,
            f"data.{side} is not set, but method {method.name} needs it; pass data.{side}=FILE "
            f"(all it needs: {', '.join(f'data.{needed}' for needed in method.data)})",
        )
        if side not in method.data and path is not None:
            yield f"data.{side} is set, but method {method.name} does not read it"


def read(config: DictConfig, method: Method) -> dict[str, list[Row]]:
    """The rows of each side; refuses to forget refusals: the model would unlearn to refuse."""
    files = {side: read_sft_rows(config.data[side]) for side in method.data}
    for number, row in enumerate(files.get("forget", [])):
        # In a passage the detector may find a refusal that somebody in it utters.
        answer = row["messages"][-1]["content"]
        refuse(
            row["extra_info"].get("mode") != "completion" and is_refusal(split_thought(answer)[1]),
            f"{config.data.forget}: row {number}: the answer to forget is a refusal ({answer[:60]!r}); "
            "data.forget needs the true answers (forget_gold.parquet), refusals belong in data.alternate",
        )
    return files


def leading(method: Method, files: dict[str, list[Row]]) -> str:
    """The side whose rows are the rows of an epoch."""
    return "forget" if method.leading == "alternate" and "alternate" not in files else method.leading


def group_warnings(config: DictConfig, method: Method, files: dict[str, list[Row]]) -> Iterator[str]:
    """What to say of a run's steps; refuses too few rows, and rows and groups that are too long."""
    from recipe.rerule.unlearning.rows import GroupDataset

    side = leading(method, files)
    count, ranks, data = len(files[side]), config.trainer.n_gpus_per_node, config.data
    refuse(
        count < ranks,
        f"trainer.n_gpus_per_node is {ranks}, but data.{side} holds {count} rows, and each device "
        f"needs one; lower it to {count} or less",
    )
    batch = data.train_batch_size
    refuse(count < batch, f"data.train_batch_size is {batch}, but data.{side} holds {count} rows; lower it")
    planned = settings.run_steps(config, count)
    groups = GroupDataset(
        files,
        method,
        load_tokenizer(config.model),
        data.max_length,
        config.trainer.seed,
        schema.plain(config, "data.apply_chat_template_kwargs"),
    )
    groups.check_answers()
    if data.truncation == "error":
        groups.check_drawn()
    longest = groups.longest() if data.use_dynamic_bsz else 0
    refuse(
        longest > data.max_token_len_per_gpu,
        f"data.max_token_len_per_gpu is {data.max_token_len_per_gpu}, but a forget row and its partners, "
        f"which pass together, have up to {longest} tokens; raise it to that or more",
    )
    yield from settings.warm_up_warnings(config, "optim", planned)
    rests = method.dual_warmup * (count // batch)  # and the first move is for the step after the next
    if method.dual_rate is not None and planned <= rests + 1:
        yield (
            f"method.dual_warmup is {method.dual_warmup} epochs, but the run has {planned} steps, "
            f"{count // batch} an epoch: the weight of the retain term never moves; lower it, or train longer"
        )
    if count % batch:
        yield (
            f"data.train_batch_size is {batch}, which does not divide the {count} rows of data.{side}: "
            f"each epoch leaves out {count % batch} of them, drawn anew"
        )
