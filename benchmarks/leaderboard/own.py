"""Methods of one's own as rows of the leaderboard: NAME=FOLDER, or NAME=package.module.

FOLDER holds a model folder of transformers for each world, FOLDER/seed-N, which was made from that world's
`model` (the base model) in whatever way. The module has

    train(start: Start, learning_rate: float, seed: int) -> model

which returns a transformers model, in most cases `start.model("base")` after training. `Start` has the rows
of the world. The method is tuned over the plan's learning rates as every other one is, unless the module sets
TUNED = False; it is then called with 0.0. MEANING, a text, describes it.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.leaderboard.methods import METHODS, Entry, Trained
from benchmarks.leaderboard.plain import Spent
from benchmarks.leaderboard.plan import Plan
from benchmarks.leaderboard.starts import Start
from benchmarks.study.trial import fingerprint_of

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Folder(Entry):
    """Models that were trained elsewhere, one for each world."""

    folder: Path

    tuned = False

    def settings(self, plan: Plan, rate: float, seed: int) -> dict[str, Any]:
        """The fingerprint of the world's model."""
        return {"model": fingerprint_of(self._of(seed)), "seed": seed}

    def train(self, start: Start, plan: Plan, rate: float) -> Trained:
        """The model, read from its folder."""
        model = AutoModelForCausalLM.from_pretrained(self._of(start.seed), dtype=torch.float32)
        return Trained(model.eval())

    def _of(self, seed: int) -> Path:
        folder = self.folder / f"seed-{seed}"
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"{folder} is no model folder; each world needs one, made from the world's own model"
            )
        return folder


@dataclass(frozen=True)
class Module(Entry):
    """A training of one's own.

    Attributes:
        source: SHA-256 of the module's file. A run of another version is another run.
    """

    module: ModuleType
    source: str
    tuned: bool

    def settings(self, plan: Plan, rate: float, seed: int) -> dict[str, Any]:
        """The module's name and source."""
        return {"module": self.module.__name__, "source": self.source, "learning_rate": rate, "seed": seed}

    def train(self, start: Start, plan: Plan, rate: float) -> Trained:
        """Call the module. Tokens are not counted; the seconds are those of the processor."""
        begun = time.process_time()
        model = self.module.train(start, rate, start.seed)
        return Trained(model, Spent(seconds=time.process_time() - begun))


def register(text: str) -> str:
    """Take NAME=FOLDER or NAME=package.module into METHODS; or check that METHODS has the name `text`.

    Returns:
        The name.

    Raises:
        ValueError: the method is unknown, or what it is cannot be read.
    """
    name, given, what = text.partition("=")
    if not given:
        if name not in METHODS:
            raise ValueError(
                f"there is no method {name!r}; there are {', '.join(METHODS)}, NAME=FOLDER, NAME=MODULE"
            )
        return name
    if not _NAME.fullmatch(name) or name in METHODS:
        raise ValueError(f"{name!r} cannot be the name of a method: it is taken, or is not like my_method_2")
    METHODS[name] = _folder(Path(what)) if Path(what).is_dir() else _module(what)
    return name


def _folder(path: Path) -> Folder:
    return Folder(f"models of {path.name}", path.resolve())


def _module(name: str) -> Module:
    try:
        module = importlib.import_module(name)
    except (ImportError, TypeError, ValueError) as error:
        raise ValueError(f"{name!r} is neither a folder nor a module that can be imported: {error}") from None
    if not callable(getattr(module, "train", None)):
        raise ValueError(f"the module {name} has no function train(start, learning_rate, seed)")
    source = hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest()
    return Module(str(getattr(module, "MEANING", name)), module, source, bool(getattr(module, "TUNED", True)))
