"""The model of a run: whether transformers can load it, and whether an adapter can be merged."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from recipe.rerule.runs import model_checks
from recipe.rerule.schema import SettingsError, refuse, shown
from recipe.rerule.training import lora

_PLAIN = {
    "use_dora": False,
    "use_rslora": False,
    "bias": "none",
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}
"""What an adapter must have for W + (alpha / r) B A to be its whole effect."""


def check(path: str, key: str, trust_remote_code: bool = False) -> Any:
    """Refuse a model whose files are wrong, that transformers cannot find, or whose own code is not trusted.

    Returns:
        transformers' configuration of it.

    Raises ValueError: naming `key` and `path`.
    """
    from transformers import AutoConfig

    model_checks.check(path, key)
    path = os.path.expanduser(path)
    refuse(
        os.path.isabs(path) and not os.path.isdir(path),
        f"{key} is {path}, which does not exist; give a Hugging Face folder or name",
    )
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (ImportError, OSError, ValueError) as error:  # of packages that a model's own code needs
        reason = str(error).strip().splitlines()[0]
        raise SettingsError(f"{key} is {path}, which transformers cannot load: {reason}") from None


def context_warnings(config: DictConfig, model: Any) -> Iterator[str]:
    """What to say where the model does not read the longest prompt and response together.

    `model`: transformers' configuration of it.

    Raises SettingsError: the rollout engine is to hold more tokens than the model reads, or too few.
    """
    limit = getattr(model.get_text_config(), "max_position_embeddings", None) or math.inf
    length = config.actor_rollout_ref.rollout.max_model_len
    needed = config.data.max_prompt_length + config.data.max_response_length
    together = f"data.max_prompt_length and data.max_response_length together are {needed} tokens"
    refuse(
        length is not None and length > limit,
        f"actor_rollout_ref.rollout.max_model_len is {length}, but the model reads at most {limit} "
        "tokens; lower data.max_prompt_length or data.max_response_length, or set it to null, which cuts "
        "off longer responses",
    )
    refuse(
        length is not None and length < min(needed, limit),
        f"actor_rollout_ref.rollout.max_model_len is {length}, but {together}; set it to "
        f"{min(needed, limit)} or more, or to null for the model's limit",
    )
    if needed > limit:
        yield (
            f"{together}, but the model reads at most {limit}: longer responses are cut off; lower one of "
            "them"
        )


def check_adapter(model: DictConfig, key: str) -> None:
    """Refuse an adapter without files, without a module, or that could not be merged.

    A model on the Hub is left alone.

    `key`: of the model's section, such as "actor_rollout_ref.model".

    Raises ValueError: naming the setting and the file or module.
    """
    model_checks.check_adapter(model.lora_adapter_path, f"{key}.lora_adapter_path")
    if model.lora_rank == 0 or not Path(model.path).expanduser().is_dir():
        return
    if (path := model.lora_adapter_path) is not None:
        if not Path(path).expanduser().is_dir():
            return
        _check_loaded(lora.adapter_config(model), model, key)
    try:
        built = lora.adapted(model)
    except ValueError as error:
        reason = " ".join(str(error).split())
        if "odule" not in reason:
            return  # of the model's own code; verl will load it, or say what is wrong
        raise SettingsError(
            f"{key}.target_modules is {shown(model.target_modules)}: {reason[:200]}"
        ) from None
    _check_linear(built, key)


def _check_loaded(adapter: Any, model: DictConfig, key: str) -> None:
    """An adapter to go on with must be of the kind, rank and alpha that the settings name."""
    given = f"{key}.lora_adapter_path is {model.lora_adapter_path}"
    for name, wanted in _PLAIN.items():
        value = getattr(adapter, name) or wanted
        refuse(
            value != wanted, f"{given}, an adapter with {name} {value}, which cannot be merged; give another"
        )
    for name, value in (("lora_rank", adapter.r), ("lora_alpha", adapter.lora_alpha)):
        refuse(
            model[name] != value,
            f"{given}, whose {name.removeprefix('lora_')} is {value}, but {key}.{name} is {model[name]}; set "
            f"it to {value}",
        )


def _check_linear(built: Any, key: str) -> None:
    from peft.tuners.lora import LoraLayer
    from torch import nn

    base = built.get_base_model()
    tied = getattr(base.config.get_text_config(), "tie_word_embeddings", False)
    head = base.get_output_embeddings()
    for name, module in base.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        layer, taken = module.get_base_layer(), f"{key}.target_modules takes {name} too, which is"
        refuse(
            not isinstance(layer, nn.Linear),
            f"{taken} of type {type(layer).__name__}, and only adapters on linear layers can be merged; "
            "leave it out",
        )
        refuse(
            tied and (module is head or layer is head),
            f"{taken} tied to the embeddings, which have no adapter; leave it out",
        )
