"""How an exported model was trained: what its run folder says, in words that can be published.

Of a folder on this machine only the last part of its path is told; a name on the Hub is told whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe.rerule.io import read_record
from recipe.rerule.runs import run_folder
from recipe.rerule.runs.history import read_config

Facts = dict[str, str]
_STAGE1 = "rejection steering, which is stage 1 of RULE: supervised fine-tuning on refusals"
_RULE = "RULE: rejection steering, then reinforcement on a refusal boundary"
_RERULE = f"ReRULE: {_RULE.removeprefix('RULE: ')}, with off-policy replay of rollout groups"
_UNKNOWN = "not known: the folder holds no record of its training"
_OF_STAGE2 = {
    "advantages": "algorithm.adv_estimator",
    "prompts in a step": "data.train_batch_size",
    "responses to a prompt": "actor_rollout_ref.rollout.n",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "KL coefficient": "actor_rollout_ref.actor.kl_loss_coef",
    "seed": "data.seed",
}
_OF_REPLAY = {
    "replay update": "replay.update",
    "stored groups": "replay.admission",
    "drawn by": "replay.sampling",
    "capacity (groups)": "replay.capacity",
    "groups in a replay update": "replay.groups_per_update",
}
_OF_UNLEARN = {"batch": "data.train_batch_size", "learning rate": "optim.lr", "seed": "trainer.seed"}


@dataclass(frozen=True)
class Origin:
    """How a model came about.

    Attributes:
        method: in words.
        base: the model that it was trained from, as its training was told; None where nobody said it.
        facts: settings and data, as a reader should see them.
    """

    method: str
    base: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def origin_of(run: Path, step: int | None) -> Origin:
    """What a run folder says of its model.

    Args:
        run: a run folder, or the folder of a model alone.
        step: the training step of the model, where it is known.

    Raises:
        ValueError: the run's configuration is no YAML.
    """
    config = read_config(run / "config.yaml")
    marker = run / run_folder.MARKER
    stage = read_record(marker).get("stage") if marker.is_file() else None
    if "replay" in config:
        return _stage2(config, step)
    if stage == "unlearn":
        return _unlearn(run_folder.identity_of(run))
    return Origin(_STAGE1 if stage == 1 else _UNKNOWN)


def shown_name(model: str) -> str:
    """A model or a file as it may be published: a name on the Hub whole, of a path its last part."""
    is_hub_name = model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).exists()
    return model if is_hub_name else Path(model).name


def setting(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where the configuration does not have it."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _stage2(config: Mapping[str, Any], step: int | None) -> Origin:
    replays = bool(setting(config, "replay.enable"))
    method = _RERULE if replays else _RULE
    facts = {} if step is None else {"training steps of stage 2": str(step)}
    facts |= _told(config, _OF_STAGE2) | (_told(config, _OF_REPLAY) if replays else {})
    facts |= _files(setting(config, "data.train_files"))
    return Origin(method, _text(setting(config, "actor_rollout_ref.model.path")), facts)


def _unlearn(identity: Mapping[str, Any]) -> Origin:
    """Of recipe.rerule.unlearn: its run.json has dotted keys."""
    sides = ("forget", "retain", "alternate")
    terms = [f"{side} term {identity[f'method.{side}']}" for side in sides if f"method.{side}" in identity]
    facts = {name: _plain(identity[key]) for name, key in _OF_UNLEARN.items() if key in identity}
    for key, value in identity.items():
        if key.startswith("data.") and isinstance(value, Mapping) and "sha256" in value:
            facts[f"rows ({key.removeprefix('data.')})"] = _file(str(value.get("path")), str(value["sha256"]))
    method = f"unlearning without reinforcement: {', '.join(terms)}"
    return Origin(method, _text(identity.get("model.path")), facts)


def _told(config: Mapping[str, Any], keys: Mapping[str, str]) -> Facts:
    found = {name: setting(config, key) for name, key in keys.items()}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _files(given: Any) -> Facts:
    """The files of training prompts, with checksums of those that are still there."""
    paths = [given] if isinstance(given, str) else list(given or [])
    return {"training prompts": "; ".join(map(_with_checksum, paths))} if paths else {}


def _with_checksum(path: str) -> str:
    file = Path(path)
    return _file(path, hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None)


def _file(path: str, sha256: str | None) -> str:
    return f"{Path(path).name} ({'no longer there' if sha256 is None else f'sha256 {sha256}'})"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
