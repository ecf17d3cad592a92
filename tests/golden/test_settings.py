"""What the help of every command names; the settings of training commands, and what `check` says of them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from recipe.rerule.training import memory
from tests.golden.commands import done, run
from tests.golden.golden import FOLDER, check, neutral

STAGE1 = "model.path=models/original data.train_files=data/sft.parquet trainer.default_local_dir=stage1"
STAGE2 = (
    "actor_rollout_ref.model.path=models/original data.train_files=data/train.parquet "
    "data.val_files=data/val.parquet trainer.default_local_dir=run"
)
SMALL1 = f"{STAGE1} experiment=tiny"
SMALL2 = f"{STAGE2} experiment=tiny data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8"
BASES = {"sft": "sft_trainer_engine", "main": "ppo_trainer", "unlearn": "sft_trainer_engine"}
"""Each command's configuration of verl."""
EXPERIMENTS = {
    "sft": ("tiny", "tofu", "rwku", "muse_books", "muse_news", "tofu/lora_1gpu"),
    "main": (
        *("tiny", "tofu", "rwku", "muse_books", "tofu/lora_1gpu"),
        *("paper/tofu", "paper/rwku", "paper/muse_books"),
    ),
    "unlearn": ("tiny", "tofu", "rwku", "muse_books", "custom"),
}
OWN_DATA = {"sft": (STAGE1, "custom"), "main": (STAGE2, "custom", "forget")}
"""What the experiments that are named behind it take their sizes from."""
ALLOWED = {
    "stage 1": f"stage1 {SMALL1}",
    "stage 1, own data": f"stage1 {STAGE1} experiment=custom platform=cpu",
    "stage 1, LoRA": f"stage1 {SMALL1} model.lora_rank=4 model.lora_alpha=8",
    "stage 2": f"stage2 {SMALL2}",
    "stage 2, own data": f"stage2 {STAGE2} experiment=custom platform=cpu",
    "RULE, nothing learnt": f"stage2 {SMALL2} replay.enable=false actor_rollout_ref.actor.optim.lr=1e-12",
}
UNKNOWN = "an unknown command"
_PARTS = {
    "commands": re.compile(r"^ {2,4}([a-z][a-z-]*)(?: {2,}\w|$)", re.MULTILINE),
    "options": re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*"),
    "settings": re.compile(r"^ +([a-z_]\w*(?:\.\w+)+)(?==|\s|$)", re.MULTILINE),
}
"""A command in a list of commands, an option, and a setting of Hydra at the beginning of an indented line."""


def test_help() -> None:
    """Of each command that help.json has."""
    commands = json.loads((FOLDER / "help.json").read_text("utf-8"))
    ran, kept = run("rerule trian"), {}
    for line in commands.keys() - {UNKNOWN}:
        said = done(f"{line} --help").out
        found = {part: list(dict.fromkeys(pattern.findall(said))) for part, pattern in _PARTS.items()}
        found["options"].sort()
        kept[line] = {part: " ".join(names) for part, names in found.items() if names}
    names = [name for name in ("trian", "train") if name in ran.said[0]]
    out = len(ran.out.splitlines())
    kept[UNKNOWN] = {"code": ran.code, "errors": len(ran.said), "names": names, "out": out}
    check("help", {line: kept[line] for line in commands})
    assert run("check stage3").code == 2


def _settings(command: str, words: str, folder: Path) -> dict[str, Any]:
    """The resolved settings of a command in a folder, {dotted key: value}."""
    return _flat(yaml.load(done(f"{command} --cfg job --resolve {words}", folder).out, yaml.CSafeLoader))


def _flat(settings: Any, before: str = "") -> dict[str, Any]:
    if not isinstance(settings, dict) or not settings:
        return {before[:-1]: settings}
    parts = [_flat(value, f"{before}{name}.") for name, value in settings.items()]
    return {key: one for part in parts for key, one in part.items()}


def _changes(settings: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """What `settings` has and `base` has not, or with another value; "(absent)" the other way round."""
    absent = {key: "(absent)" for key in base if key not in settings}
    return {key: value for key, value in settings.items() if key not in base or base[key] != value} | absent


def test_settings(people: Path) -> None:
    """What each command has that verl's defaults have not, and each experiment that the command has not."""
    kept: dict[str, Any] = {}
    for command, base in BASES.items():
        name, given = f"recipe.rerule.{command}", "method=npo" if command == "unlearn" else ""
        with initialize_config_module("verl.trainer.config", version_base=None):
            of_verl = OmegaConf.to_container(compose(base), resolve=True)
        own = _settings(command, given, people)
        kept[name] = _changes(own, _flat(of_verl))
        for choice in ("platform=cpu", *(f"experiment={one}" for one in EXPERIMENTS[command])):
            kept[f"{name} {choice}"] = _changes(_settings(command, f"{given} {choice}", people), own)
        if command in OWN_DATA:
            rows, *choices = OWN_DATA[command]
            plain = _settings(command, rows, people)
            for choice in choices:
                found = _settings(command, f"{rows} experiment={choice}", people)
                kept[f"{name} experiment={choice}"] = _changes(found, plain)
    for one in json.loads(done("unlearn --list --json").out):
        choice = f"method={one['method']}"
        kept[f"recipe.rerule.unlearn {choice}"] = _changes(_settings("unlearn", choice, people), own)
    check("settings", kept)


def test_checks(people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `check` prints of settings that are allowed; numbers of memory and disk are left out."""
    monkeypatch.setattr(memory, "free_bytes", lambda: (64e9, 64e9))  # a busy machine would get a warning
    kept = {}
    for name, words in ALLOWED.items():
        kept[name] = neutral(done(f"check {words}", people).kept, people)
        kept[name]["out"] = [
            re.sub(r"\d+(\.\d+)?( GB)?", "N", line) if "memory" in line else line
            for line in kept[name]["out"]
        ]
    check("checks", kept)
