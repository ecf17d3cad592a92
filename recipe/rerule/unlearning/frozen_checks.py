"""The frozen models of a run of `recipe.rerule.unlearn`, refused where the trained model has other tokens."""

from __future__ import annotations

import copy

from omegaconf import DictConfig

from recipe.rerule import io
from recipe.rerule.runs import model_checks
from recipe.rerule.schema import SettingsError
from recipe.rerule.training import prompt_checks
from recipe.rerule.training.settings import rows
from recipe.rerule.unlearning.method import Method


def check(config: DictConfig, method: Method) -> None:
    """Look at reference.path and reinforced.path.

    Raises:
        ValueError: one line naming the key, the model and what is wrong.
    """
    if method.reinforced and config.reinforced.path is None:
        raise SettingsError(
            f"reinforced.path is not set, but method {method.name} needs it: the model of model.path "
            "trained further on the rows of data.forget; pass reinforced.path=MODEL"
        )
    if config.reference.path is not None and not method.referenced:
        io.warn(f"reference.path is set, but method {method.name} compares with no reference")
    elif config.reference.path is not None:
        _check_model(config, "reference")
    if config.reinforced.path is not None and not method.reinforced:
        io.warn(f"reinforced.path is set, but method {method.name} does not read it")
    elif config.reinforced.path is not None:
        _check_model(config, "reinforced")


def _check_model(config: DictConfig, section: str) -> None:
    """Refuse a model that cannot be loaded or that has another vocabulary."""
    key, path = f"{section}.path", config[section].path
    model_checks.check(path, key)
    rows.check_model(path, key, config.model.trust_remote_code)
    sizes = [
        model_checks.vocabulary_size(folder, config.model.trust_remote_code)
        for folder in (path, config.model.path)
    ]
    if sizes[0] != sizes[1]:
        raise SettingsError(
            f"{key} is {path}, whose vocabulary has {sizes[0]} tokens, but that of model.path "
            f"{config.model.path} has {sizes[1]}; give a model with the same vocabulary"
        )
    own = prompt_checks.load_tokenizer(config.model).get_vocab()
    given = copy.copy(config.model)
    given.path, given.tokenizer_path = path, None
    if prompt_checks.load_tokenizer(given).get_vocab() != own:
        raise SettingsError(
            f"{key} is {path}, whose tokenizer has other tokens than that of model.path "
            f"{config.model.path}; give a model with the same vocabulary"
        )
