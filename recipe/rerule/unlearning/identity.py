"""What a run of `recipe.rerule.unlearn` must have in common with the one that it goes on with.

{setting: value}, kept in <run>/run.json when a run starts; a file's value is {"path", "sha256"}. Parameters
and optimiser come from the checkpoint; the method, its frozen models and its rows come from the settings.
With other settings the end would be of neither run. Those of the optimiser would not even count, since a
checkpoint brings its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.rerule.io import file_sha256
from recipe.rerule.runs import checkpoints, run_folder
from recipe.rerule.schema import SettingsError, plain, shown
from recipe.rerule.unlearning.method import Method

Identity = dict[str, Any]

_MODELS = ("model.path", "reference.path", "reinforced.path")
_SINGLE = (
    *("model.lora_rank", "model.lora_alpha", "model.target_modules", "model.exclude_modules"),
    *("model.tokenizer_path", "model.custom_chat_template", "engine.model_dtype", "platform.bf16"),
    *("data.train_batch_size", "data.max_length", "data.truncation", "data.apply_chat_template_kwargs"),
    *("trainer.seed", "trainer.n_gpus_per_node"),
)
_FREE = ("method.name", "optim.total_training_steps")
"""Settings of the sections below that change nothing: an alias is the same method."""


def of(config: DictConfig) -> Identity:
    """The identity of a checked configuration.

    Raises OSError: a file of rows cannot be read.
    """
    found: Identity = {f"method.{name}": value for name, value in plain(config, "method").items()}
    found |= {key: run_folder.resolved(OmegaConf.select(config, key)) for key in _MODELS}
    for side in Method.of(plain(config, "method")).data:
        path = Path(config.data[side])
        found[f"data.{side}"] = {"path": str(path.resolve()), "sha256": file_sha256(path)}
    found |= {f"optim.{name}": value for name, value in plain(config, "optim").items()}
    keys = (*_SINGLE, *checkpoints.length_keys(config, "optim"))
    single = {key: OmegaConf.select(config, key) for key in keys}
    found |= {
        key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        for key, value in single.items()
    }
    return {key: value for key, value in found.items() if key not in _FREE}


def check(config: DictConfig) -> None:
    """Refuse to go on with a run that was started with other settings or rows.

    A folder that says nothing of its run passes.

    Raises:
        SettingsError: naming the first setting that differs, and both values.
        OSError: a file cannot be read.
    """
    trainer = config.trainer
    folder = checkpoints.resumed_run(trainer.default_local_dir, trainer.resume_mode, trainer.resume_from_path)
    before = {} if folder is None else run_folder.identity_of(folder)
    for key, value in of(config).items() if before else ():
        if key in before and _compared(before[key]) != _compared(value):
            raise SettingsError(
                f"{key} is {_shown(value)}, but the run in {folder} was started with {_shown(before[key])}; "
                "go on with that, or choose another trainer.default_local_dir"
            )


def keep(config: DictConfig) -> None:
    """Keep the identity in the run folder, which is there. Raises OSError."""
    run_folder.keep_identity(config.trainer.default_local_dir, of(config))


def _compared(value: Any) -> Any:
    """A file counts by its contents."""
    return value["sha256"] if isinstance(value, dict) and "sha256" in value else value


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "sha256" in value:
        return f"{value['path']} (sha256 {value['sha256'][:12]}...)"
    return shown(value)
