"""LoRA adapters: a model with one, built by peft without memory for its weights."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf


def empty(model: DictConfig) -> Any:
    """The model of a section of the configuration, without weights on torch's meta device.

    Raises OSError: a file cannot be read.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    trusted = model.trust_remote_code
    config = AutoConfig.from_pretrained(os.path.expanduser(model.path), trust_remote_code=trusted)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)


def adapted(model: DictConfig) -> Any:
    """The same with its adapter.

    `model`: with lora_rank above 0.

    Raises:
        ValueError: peft finds no module for the adapter.
        OSError: a file cannot be read.
    """
    import torch
    from peft import get_peft_model

    base = empty(model)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on what `preflight.models` refuses in a line of its own
        return get_peft_model(base, adapter_config(model))


def adapter_config(model: DictConfig) -> Any:
    """peft's configuration of the adapter: that of lora_adapter_path, or a new one as verl makes it."""
    from peft import LoraConfig

    if model.lora_adapter_path is not None:
        return LoraConfig.from_pretrained(str(Path(model.lora_adapter_path).expanduser()))
    section = OmegaConf.to_container(model, resolve=True)
    assert isinstance(section, dict)
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=section["lora_rank"],
        lora_alpha=section["lora_alpha"],
        target_modules=section["target_modules"],
        exclude_modules=section["exclude_modules"],
        bias="none",
    )
