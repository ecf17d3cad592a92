"""The settings of the training commands, what `check` says of them, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.golden import adapters
from tests.golden.commands import done, refused, run
from tests.golden.golden import check
from tests.golden.inputs import people_rows, put_json, put_people_models

SFT, MAIN, UNLEARN, CHECK = (f"recipe.rerule.{name}" for name in ("sft", "main", "unlearn", "check"))
STAGE1 = "model.path=models/original data.train_files=data/sft.parquet trainer.default_local_dir=stage1"
STAGE2 = (
    "actor_rollout_ref.model.path=models/original data.train_files=data/train.parquet "
    "data.val_files=data/val.parquet trainer.default_local_dir=run"
)
SMALL1 = f"{STAGE1} experiment=tiny"
SMALL2 = f"{STAGE2} experiment=tiny data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8"
ROWS = " ".join(
    f"data.{side}=data/{file}.parquet"
    for side, file in {"forget": "forget_gold", "retain": "retain", "alternate": "alternate"}.items()
)
SMALL3 = f"method=npo experiment=tiny model.path=models/original trainer.default_local_dir=unlearned {ROWS}"
BASES = {SFT: "sft_trainer_engine", MAIN: "ppo_trainer", UNLEARN: "sft_trainer_engine"}
"""Each command's configuration of verl."""
EXPERIMENTS = {
    SFT: ["tiny", "tofu", "rwku", "muse_books", "muse_news", "tofu/lora_1gpu"],
    MAIN: [
        *("tiny", "tofu", "rwku", "muse_books", "tofu/lora_1gpu"),
        *("paper/tofu", "paper/rwku", "paper/muse_books"),
    ],
    UNLEARN: ["tiny", "tofu", "rwku", "muse_books", "custom"],
}
OWN_DATA = {SFT: STAGE1, MAIN: STAGE2}
"""What experiment=custom takes its sizes from."""
ALLOWED = {
    "stage 1": f"stage1 {SMALL1}",
    "stage 1, own data": f"stage1 {STAGE1} experiment=custom platform=cpu",
    "stage 1, LoRA": f"stage1 {SMALL1} model.lora_rank=4 model.lora_alpha=8",
    "stage 2": f"stage2 {SMALL2}",
    "stage 2, own data": f"stage2 {STAGE2} experiment=custom platform=cpu",
    "RULE, nothing learnt": f"stage2 {SMALL2} replay.enable=false actor_rollout_ref.actor.optim.lr=1e-12",
}
REFUSED = {
    "no stage": ("stage3", []),
    "no model": ("stage1 experiment=tiny", ["model.path"]),
    "no rows": (f"stage1 {SMALL1} data.train_files=null", ["data.train_files"]),
    "unknown key of replay": (f"stage2 {SMALL2} replay.capcity=9", ["replay.capcity", "replay.capacity"]),
    "unknown key": (f"stage1 {SMALL1} data.max_lenght=9", ["data.max_lenght", "data.max_length"]),
    "unknown experiment": (f"stage1 {SMALL1} experiment=tini", ["tini"]),
    "text for a number": (f"stage1 {SMALL1} data.train_batch_size=many", ["data.train_batch_size"]),
    "no learning rate": (f"stage1 {SMALL1} optim.lr=-1", ["optim.lr"]),
    "a batch larger than the rows": (f"stage2 {SMALL2} data.train_batch_size=64", ["data.train_batch_size"]),
    "no temperature": (f"stage2 {SMALL2} actor_rollout_ref.rollout.temperature=0", ["rollout.temperature"]),
    "a misspelt rule": (f"stage2 {SMALL2} replay.admission=hrad", ["replay.admission", "hrad"]),
    "no tau": (f"stage2 {SMALL2} replay.threshold_rule=fixed", ["replay.threshold"]),
    "a small buffer": (f"stage2 {SMALL2} replay.capacity=2", ["replay.capacity"]),
    "an unknown form of the reward": (
        f"stage2 {SMALL2} reward.custom_reward_function.reward_kwargs.form=round",
        ["form", "round"],
    ),
    "rows that are missing": (f"stage1 {SMALL1} data.train_files=nowhere.parquet", ["nowhere.parquet"]),
    "rows of another stage": (f"stage1 {SMALL1} data.train_files=data/train.parquet", ["train.parquet"]),
    "rows that are no parquet": (f"stage1 {SMALL1} data.train_files=mine.json", ["mine.json"]),
    "probes as training rows": (
        f"stage2 {SMALL2} data.train_files=data/probes.parquet",
        ["probes.parquet", "probe"],
    ),
    "prompts that are too long": (f"stage2 {SMALL2} data.max_prompt_length=2", ["data.max_prompt_length"]),
    "a model that is missing": (f"stage1 {SMALL1} model.path=nowhere", ["nowhere"]),
    "a model without weights": (f"stage1 {SMALL1} model.path=empty", ["empty"]),
    "a run folder of somebody else": (f"stage1 {SMALL1} trainer.default_local_dir=data", ["data"]),
    "more devices than a batch": (f"stage2 {SMALL2} trainer.n_gpus_per_node=3", ["3"]),
}
"""Words of `check`, and what the one line must name."""
REFUSED_METHODS = {
    "no method": (SMALL3.replace("method=npo ", ""), ["method"]),
    "an unknown method": (SMALL3.replace("npo", "npoo"), ["npoo"]),
    "rows that are missing": (f"{SMALL3} data.forget=nowhere.parquet", ["nowhere.parquet"]),
    "no beta": (f"{SMALL3} method.beta=0", ["beta"]),
    "an unknown key": (f"{SMALL3} method.betta=1", ["method.betta"]),
    "a retain term without rows": (f"{SMALL3} method=npo_gdr data.retain=null", ["data.retain"]),
}
"""Words of `unlearn`, and what the one line must name."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and rows of the made-up people."""
    folder = tmp_path_factory.mktemp("settings")
    put_people_models(folder / "models")
    put_json(folder / "mine.json", people_rows(0))
    put_json(folder / "probes.json", people_rows(1))
    put_json(folder / "empty" / "config.json", {"model_type": "llama"})
    done(
        "data_prep",
        "custom",
        "--source",
        "mine.json",
        "--probes",
        "probes.json",
        "--out",
        "data",
        folder=folder,
    )
    return folder


def _settings(command: str, folder: Path, *words: str) -> dict[str, Any]:
    """The resolved settings of a command, {dotted key: value}."""
    shown = done(command, "--cfg", "job", "--resolve", *words, folder=folder).out
    return _flat(yaml.load(shown, yaml.CSafeLoader))


def _flat(settings: Any, before: str = "") -> dict[str, Any]:
    if not isinstance(settings, dict) or not settings:
        return {before[:-1]: settings}
    return {
        key: one for name, value in settings.items() for key, one in _flat(value, f"{before}{name}.").items()
    }


def _changes(settings: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """What `settings` has and `base` has not, or with another value; "(absent)" the other way round."""
    absent = {key: "(absent)" for key in base if key not in settings}
    return {key: value for key, value in settings.items() if key not in base or base[key] != value} | absent


def test_settings(folder: Path) -> None:
    """What each command has that verl's defaults have not, and each experiment that the command has not."""
    kept: dict[str, Any] = {}
    for command, base in BASES.items():
        words = ["method=npo"] if command == UNLEARN else []
        own = _settings(command, folder, *words)
        kept[command] = _changes(own, _flat(adapters.verl_settings(base)))
        for name in EXPERIMENTS[command]:
            found = _settings(command, folder, *words, f"experiment={name}")
            kept[f"{command} experiment={name}"] = _changes(found, own)
        if command in OWN_DATA:
            given = [*words, *OWN_DATA[command].split()]
            own = _settings(command, folder, *given)
            found = _settings(command, folder, *given, "experiment=custom")
            kept[f"{command} experiment=custom"] = _changes(found, own)
        kept[f"{command} platform=cpu"] = _changes(
            _settings(command, folder, *words, "platform=cpu"), _settings(command, folder, *words)
        )
    of_npo = _settings(UNLEARN, folder, "method=npo")
    methods = [one["method"] for one in json.loads(done(UNLEARN, "--list", "--json").out)]
    for name in methods:
        kept[f"{UNLEARN} method={name}"] = _changes(_settings(UNLEARN, folder, f"method={name}"), of_npo)
    check("settings", kept)


def test_checks(folder: Path) -> None:
    """What `check` prints of settings that are allowed; numbers of memory and disk are left out."""
    kept = {}
    for name, words in ALLOWED.items():
        ran = done(CHECK, *words.split(), folder=folder).kept(folder)
        ran["out"] = [
            re.sub(r"\d+(\.\d+)?( GB)?", "N", line) if "memory" in line else line for line in ran["out"]
        ]
        kept[name] = ran
    check("checks", kept)


def test_refused_settings(folder: Path) -> None:
    kept = {
        name: refused(run(CHECK, *words.split(), folder=folder), named)
        for name, (words, named) in REFUSED.items()
    }
    kept |= {
        f"unlearn: {name}": refused(run(UNLEARN, *words.split(), folder=folder), named)
        for name, (words, named) in REFUSED_METHODS.items()
    }
    check("refused_settings", kept)
