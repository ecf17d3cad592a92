"""What a run must have in common with the one that it goes on with: {setting: value}.

A command keeps it in <run>/run.json when its run starts. Rows count by the SHA-256 of their files.
Parameters, optimiser and the order of rows come from the checkpoint; the loss, frozen models and rows come
from the settings. With other settings the end would be of neither run. Those of the optimiser would not even
count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.io import file_sha256
from recipe.rerule.runs import checkpoints, run_folder
from recipe.rerule.schema import SettingsError, listed, plain, shown
from recipe.rerule.training.memory import has_critic
from recipe.rerule.unlearning.method import Method

Identity = dict[str, Any]

_MODELS = ("actor_rollout_ref.model.path", "model.path", "reference.path", "reinforced.path")
_ADAPTER = ("lora_rank", "lora_alpha", "target_modules", "exclude_modules")
_OPTIMIZER = "actor_rollout_ref.actor.optim"
_RATE = ("lr", "weight_decay", "betas", "lr_scheduler_type")
_STAGE2 = (
    *("actor_rollout_ref.model.path", *(f"actor_rollout_ref.model.{name}" for name in _ADAPTER)),
    *("data.train_batch_size", "data.sides", "data.shuffle", "data.seed"),
    *("data.train_max_samples", "data.filter_overlong_prompts"),
    *(f"{_OPTIMIZER}.{name}" for name in (*_RATE, "lr_warmup_steps", "lr_warmup_steps_ratio")),
)
_OF_FILTERED = ("data.max_prompt_length", "data.apply_chat_template_kwargs")
"""What else the order of rows depends on where long prompts are left out."""
_UNLEARN = (
    *("model.path", "reference.path", "reinforced.path", *(f"model.{name}" for name in _ADAPTER)),
    *("model.tokenizer_path", "model.custom_chat_template", "engine.model_dtype", "platform.bf16"),
    *("data.train_batch_size", "data.max_length", "data.truncation", "data.apply_chat_template_kwargs"),
    *("trainer.seed", "trainer.n_gpus_per_node"),
)
_FREE = ("method.name", "optim.total_training_steps")
"""Settings of `method` and `optim` that change nothing: an alias is the same method."""


def of_stage2(config: DictConfig) -> Identity:
    """The identity of a checked configuration of stage 2. Raises OSError: a file of rows cannot be read."""
    keys = [*_STAGE2, *checkpoints.length_keys(config, _OPTIMIZER)]
    keys += _OF_FILTERED if config.data.filter_overlong_prompts else ()
    keys += [f"critic.optim.{name}" for name in _RATE] if has_critic(config) else ()
    sums = [file_sha256(Path(path)) for path in listed(config.data.train_files)]
    return {**_values(config, keys), "data.train_files": sums}


def of_unlearn(config: DictConfig) -> Identity:
    """The same of `recipe.rerule.unlearn`, where a file of rows is {"path", "sha256"}."""
    sections = [f"{section}.{name}" for section in ("method", "optim") for name in config[section]]
    keys = [*sections, *_UNLEARN, *checkpoints.length_keys(config, "optim")]
    found = _values(config, (key for key in keys if key not in _FREE))
    for side in Method(**plain(config, "method")).data:
        path = Path(config.data[side])
        found[f"data.{side}"] = {"path": str(path.resolve()), "sha256": file_sha256(path)}
    return found


def check(config: DictConfig, of: Callable[[DictConfig], Identity]) -> None:
    """Refuse to go on with a run that was started with other settings or rows.

    A folder that says nothing of its run passes.

    Raises:
        SettingsError: naming the first setting that differs.
        OSError: as `of`.
    """
    checkpoint = checkpoints.resumed(config.trainer)
    if checkpoint is None or not (before := run_folder.identity_of(folder := checkpoint.parent)):
        return
    for key, value in of(config).items():
        former = before.get(key, value)
        if _compared(former) == _compared(value):
            continue
        told = f"is {_shown(value)}, but the run in {folder} was started with {_shown(former)}"
        if key == "data.train_files":
            told = f"has other rows than those that the run in {folder} was started with"
        raise SettingsError(f"{key} {told}; go on with that, or choose another trainer.default_local_dir")


def _values(config: DictConfig, keys: Iterable[str]) -> Identity:
    found = {}
    for key in keys:
        value = OmegaConf.select(config, key)
        found[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        if key in _MODELS:
            found[key] = run_folder.resolved(value)
    return found


def _compared(value: Any) -> Any:
    """A file counts by its contents."""
    return value["sha256"] if isinstance(value, Mapping) and "sha256" in value else value


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and "sha256" in value:
        return f"{value['path']} (sha256 {value['sha256'][:12]}...)"
    return shown(value)
