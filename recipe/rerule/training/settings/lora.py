"""What is refused of a LoRA adapter: settings with which verl breaks, and adapters that cannot be merged."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.rerule import io
from recipe.rerule.schema import SettingsError, shown
from recipe.rerule.training import lora

HIGHEST_RANK = 512
"""Of an adapter that vLLM samples with (`MaxLoRARanks`)."""
_PLAIN = {
    "use_dora": False,
    "use_rslora": False,
    "bias": "none",
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}
"""What an adapter must have for W + (alpha / r) B A to be its whole effect."""


def check(model: DictConfig, key: str) -> None:
    """Refuse settings of an adapter that do not fit together; needs no file.

    Args:
        key: of the section, such as "actor_rollout_ref.model".

    Raises:
        SettingsError: one line naming the setting.
    """
    rank = OmegaConf.select(model, "lora.rank", default=0)
    if rank:
        raise SettingsError(
            f"{key}.lora.rank is {shown(rank)}, which is for verl's other engines: with FSDP there would be "
            f"no adapter; set it to 0, and {key}.lora_rank"
        )
    if model.lora_rank == 0 and model.lora_adapter_path is not None:
        raise SettingsError(
            f"{key}.lora_adapter_path is {model.lora_adapter_path}, but {key}.lora_rank is 0, so that verl "
            f"would train all weights without the adapter; set {key}.lora_rank to the adapter's rank"
        )
    if (parameters := OmegaConf.select(model, "target_parameters")) is not None:
        raise SettingsError(
            f"{key}.target_parameters is {parameters}, but only adapters on modules can be merged; set it to "
            f"null, and {key}.target_modules"
        )
    if model.lora_rank > 0 and importlib.util.find_spec("peft") is None:
        raise SettingsError(f"{key}.lora_rank is {model.lora_rank}, which needs the package peft; install it")


def check_rollout(config: DictConfig) -> None:
    """Refuse an adapter that the rollout engine of stage 2 cannot sample with. Raises SettingsError."""
    key, model = "actor_rollout_ref.model", config.actor_rollout_ref.model
    if model.lora_rank == 0 or model.lora.merge:
        return
    if config.platform.name == "cpu":
        raise SettingsError(
            f"platform=cpu cannot send a LoRA adapter to the rollout engine; set {key}.lora.merge=true"
        )
    if config.actor_rollout_ref.rollout.name == "vllm" and model.lora_rank > HIGHEST_RANK:
        raise SettingsError(
            f"{key}.lora_rank is {model.lora_rank}, but vLLM samples with adapters of rank {HIGHEST_RANK} at "
            f"most; lower it, or set {key}.lora.merge=true"
        )


def check_modules(model: DictConfig, key: str) -> None:
    """Refuse an adapter that has no module, or that could not be merged. A model on the Hub is left alone.

    Raises:
        SettingsError: naming the setting and the module.
    """
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


def warn_of_reference(config: DictConfig) -> None:
    """Say what an adapter to go on with means for the KL term."""
    actor = config.actor_rollout_ref
    if actor.model.lora_adapter_path is not None and actor.actor.use_kl_loss:
        io.warn(
            "with actor_rollout_ref.model.lora_adapter_path the reference of the KL term is "
            "actor_rollout_ref.model.path without that adapter; for the model with it, give the merged model "
            "as actor_rollout_ref.model.path, and no lora_adapter_path"
        )


def _check_loaded(adapter: Any, model: DictConfig, key: str) -> None:
    """An adapter to go on with must be of the kind, rank and alpha that the settings name."""
    given = f"{key}.lora_adapter_path is {model.lora_adapter_path}"
    for name, wanted in _PLAIN.items():
        if (value := getattr(adapter, name) or wanted) != wanted:
            raise SettingsError(
                f"{given}, an adapter with {name} {value}, which cannot be merged; give another"
            )
    for name, value in (("lora_rank", adapter.r), ("lora_alpha", adapter.lora_alpha)):
        if (set_to := getattr(model, name)) != value:
            raise SettingsError(
                f"{given}, whose {name.removeprefix('lora_')} is {value}, but {key}.{name} is {set_to}; set "
                f"it to {value}"
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
        layer = module.get_base_layer()
        if not isinstance(layer, nn.Linear):
            why = f"of type {type(layer).__name__}, and only adapters on linear layers can be merged"
        elif tied and (module is head or layer is head):
            why = "tied to the embeddings, which have no adapter"
        else:
            continue
        raise SettingsError(f"{key}.target_modules takes {name} too, which is {why}; leave it out")
