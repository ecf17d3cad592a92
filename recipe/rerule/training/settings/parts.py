"""Parts that settings name and Python looks up: modules, functions, classes, agent loops, loggers.

A file of the user is parsed, not run, and a module is only found. Where verl does not know the name of a loss
or an agent loop, the libraries of `external_lib` are imported, because they may register it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from omegaconf import DictConfig, ListConfig, OmegaConf

from recipe.rerule.replay import ReplayConfig
from recipe.rerule.replay.custom import build_rules
from recipe.rerule.schema import AgentLoop, RewardManager, SettingsError, listed, shown

AGENT_LOOP = "rerule_single_turn_agent"
"""Name of our agent loop, which knows raw prompts and stop strings, and the module that registers it."""
AGENT_LOOP_MODULE = "recipe.rerule.agent_loop"

_PACKAGES = ("wandb", "mlflow", "swanlab", "tensorboard", "clearml", "trackio")
"""Loggers that are a package of the same name."""


def check_reward_function(config: DictConfig) -> None:
    """Refuse a reward function, or a reward manager, that is not where the settings say."""
    function, manager = config.reward.custom_reward_function, config.reward.reward_manager
    _check_defined("reward.custom_reward_function", function.path, function.name)
    if manager.source == "importlib":
        _check_defined("reward.reward_manager", manager.module.path, manager.name, path_key="module.path")
    elif manager.name not in get_args(RewardManager):
        raise SettingsError(
            f"reward.reward_manager.name is {manager.name!r}; set it to one of "
            f"{', '.join(get_args(RewardManager))}, or reward.reward_manager.source=importlib for your own"
        )


def check_replay_rules(replay: ReplayConfig) -> None:
    """Refuse a replay rule of the user's own that cannot be imported or made, or lacks a method."""
    build_rules(replay)


def check_data_set(data: DictConfig) -> None:
    """Refuse a data set's class that is not where `data.custom_cls` says."""
    if data.custom_cls.path is not None:
        _check_defined("data.custom_cls", data.custom_cls.path, data.custom_cls.name)


def check_optimizer(config: DictConfig, section: str) -> None:
    """Refuse an optimiser that its module does not have."""
    optimizer = OmegaConf.select(config, section)
    _check_module(f"{section}.optimizer_impl", optimizer.optimizer_impl)
    if optimizer.optimizer_impl != "torch.optim":
        return
    import torch

    if not isinstance(getattr(torch.optim, optimizer.optimizer, None), type):
        raise SettingsError(
            f"{section}.optimizer is {optimizer.optimizer!r}, which torch.optim does not have; set it to the "
            "name of one of its classes, such as AdamW"
        )


def check_libraries(libraries: str | ListConfig | None, key: str) -> None:
    """Refuse modules that Python does not find."""
    for name in listed(libraries):
        _check_module(key, name)


def check_policy_loss(config: DictConfig) -> None:
    """Refuse a policy loss that neither verl nor a library of the user's registers."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    name = config.actor_rollout_ref.actor.policy_loss.loss_mode
    if name not in POLICY_LOSS_REGISTRY:
        _import_all(config.actor_rollout_ref.model.external_lib)
    if name not in POLICY_LOSS_REGISTRY:
        raise SettingsError(
            f"actor_rollout_ref.actor.policy_loss.loss_mode is {name!r}; set it to one of "
            f"{', '.join(POLICY_LOSS_REGISTRY)}, or name the module that registers it in "
            "actor_rollout_ref.model.external_lib"
        )


def check_agent_loop(config: DictConfig) -> None:
    """Refuse an agent loop that nothing registers."""
    agent, libraries = config.actor_rollout_ref.rollout.agent, config.actor_rollout_ref.model.external_lib
    if agent.agent_loop_config_path is not None:
        return  # verl reads the names from that file
    if agent.default_agent_loop == AGENT_LOOP:
        _check_our_loop_is_registered(libraries)
    elif agent.default_agent_loop not in get_args(AgentLoop):
        _check_a_library_registers(agent.default_agent_loop, libraries)


def check_loggers(loggers: str | ListConfig) -> None:
    """Refuse loggers whose package is not installed."""
    for name in listed(loggers):
        if name in _PACKAGES and importlib.util.find_spec(name) is None:
            raise SettingsError(
                f"trainer.logger names {name}, but the package {name} is not installed; install it, or set "
                "trainer.logger=[console,file]"
            )


def _check_our_loop_is_registered(libraries: str | ListConfig | None) -> None:
    if AGENT_LOOP_MODULE not in listed(libraries):
        raise SettingsError(
            f"the agent loop {AGENT_LOOP} needs {AGENT_LOOP_MODULE} in actor_rollout_ref.model.external_lib, "
            f"which is {libraries}"
        )


def _check_a_library_registers(name: str, libraries: str | ListConfig | None) -> None:
    from verl.experimental.agent_loop import agent_loop

    _import_all(libraries)
    if name not in agent_loop._agent_loop_registry:
        raise SettingsError(
            f"actor_rollout_ref.rollout.agent.default_agent_loop is {name!r}; set it to one of "
            f"{', '.join((*get_args(AgentLoop), AGENT_LOOP))}, or name the module that registers it in "
            "actor_rollout_ref.model.external_lib"
        )


def _import_all(libraries: str | ListConfig | None) -> None:
    # As verl does in each process: they register their parts.
    for library in listed(libraries):
        importlib.import_module(library)


def _check_module(key: str, name: str) -> None:
    if not _found(_module(name)):
        raise SettingsError(
            f"{key} is {name!r}, but Python finds no module of that name; correct it, or put its folder on "
            "PYTHONPATH"
        )


def _module(name: str) -> str:
    """The module of pkg://NAME, written with dots or slashes."""
    return name.removeprefix("pkg://").replace("/", ".") if name.startswith("pkg://") else name


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # of the package above it; of a name such as "a..b"
        return False


def _check_defined(section: str, path: str | None, name: str | None, path_key: str = "path") -> None:
    """Refuse a path (a file, or pkg://MODULE) that is not there, and a name that it does not define."""
    if path is None:
        raise SettingsError(f"{section}.{path_key} is null; set it to a Python file, or to pkg://MODULE")
    source = _source_file(f"{section}.{path_key}", path)
    if source is None:
        return  # a module without Python source
    try:
        defined = set(_defined(ast.parse(source.read_text("utf-8"), str(source))))
    except (SyntaxError, ValueError, OSError) as error:
        raise SettingsError(f"{section}.{path_key} is {path!r}, which is no Python file: {error}") from None
    if not {name, "*"} & defined:
        raise SettingsError(
            f"{section}.name is {shown(name)}, which {path} does not define; set it to a name that it defines"
        )


def _source_file(key: str, path: str) -> Path | None:
    if not path.startswith("pkg://"):
        file = Path(path.removeprefix("file://"))
        if not file.is_file():
            raise SettingsError(
                f"{key} is {path!r}, which is no file; set it to a Python file, or to pkg://MODULE"
            )
        return file
    _check_module(key, path)
    spec = importlib.util.find_spec(_module(path))
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _defined(node: ast.AST) -> Iterator[str]:
    """Names that a module binds outside of functions and classes; "*" where it imports all of another's."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in child.names)
        else:
            yield from _defined(child)
