"""The runs that cases of settings change, and the folder of files that their words in capitals name."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from data_prep.contract import Row, write_rows, write_sft_rows
from recipe.rerule.preflight import checks
from recipe.rerule.runs import run_folder
from tests import made_models
from tests.made_tokenizers import CHATML_TEMPLATE, LLAMA3_TEMPLATE, byte_level, sentencepiece
from tests.refused.rows import rl, sft
from tests.unlearning import made

STAGE1, STAGE2 = "settings of stage 1", "settings of stage 2"
SIZES1, SIZES2 = "sizes of stage 1", "sizes of stage 2"
UNLEARN = "runs of recipe.rerule.unlearn"


_STAGE1 = ("model.path=MODEL", "data.train_files=SFT", "optim.lr_warmup_steps=1")
_STAGE2 = ("actor_rollout_ref.model.path=MODEL", "data.train_files=TRAIN", "data.val_files=VAL")
RUNS: dict[str, tuple[Any, str, str, tuple[str, ...]]] = {
    STAGE1: (checks.stage1, ".stage1", "sft_trainer", ("experiment=tiny", *_STAGE1)),
    STAGE2: (checks.stage2, "", "rerule_trainer", ("experiment=tiny", *_STAGE2)),
    SIZES1: (
        checks.stage1,
        ".stage1",
        "sft_trainer",
        ("experiment=rwku", *_STAGE1, "optim.lr=1e-5", "data.use_dynamic_bsz=false"),
    ),
    SIZES2: (
        checks.stage2,
        "",
        "rerule_trainer",
        (
            *("experiment=rwku", *_STAGE2, "data.train_files=MANY", "replay.warmup_steps=1"),
            "actor_rollout_ref.actor.use_dynamic_bsz=false",
        ),
    ),
    UNLEARN: (
        checks.unlearn,
        ".unlearn",
        "unlearn_trainer",
        (
            *("experiment=tiny", "model.path=FORGETFUL", "data.train_batch_size=4"),
            *("data.micro_batch_size_per_gpu=2", "data.max_token_len_per_gpu=600"),
        ),
    ),
}
"""Of each group: its check, its configuration and the overrides of a run in which nothing is wrong."""


@functools.cache
def composed(group: str, folder: Path, *more: str) -> DictConfig:
    """The unchanged configuration of a group; interpolations are resolved when they are read."""
    _, module, name, overrides = RUNS[group]
    run = [*overrides, f"trainer.default_local_dir={folder}/run", *more]
    with initialize_config_module(f"recipe.rerule.config{module}", version_base=None):
        return compose(name, [placed(folder, override) for override in run])


def placed(folder: Path, override: str) -> str:
    """An override, with the folder's own file or model for a word in capitals."""
    key, _, value = override.partition("=")
    return f"{key}={folder}/{value}" if value.isupper() else override


def findings(group: str, folder: Path, *inputs: Mapping[str, Any]) -> Iterator[tuple[list[str], list[str]]]:
    """Errors and warnings of a group's checks with the settings of each input; see `placed` for capitals.

    Inputs after the first change the same keys.
    """
    chosen = [f"method={inputs[0]['method']}"] if "method" in inputs[0] else []
    config = copy.deepcopy(composed(group, folder, *chosen))
    for values in inputs:
        for key in values.keys() - {"method"}:
            value = values[key]
            file = f"{folder}/{value}" if isinstance(value, str) and value.isupper() else value
            OmegaConf.update(config, key, file, merge=False, force_add=True)
        found = list(checks.findings(RUNS[group][0], config))
        yield [one.line for one in found if one.is_error], [one.line for one in found if not one.is_error]


def small(stage: str, *overrides: str) -> DictConfig:
    """The resolved configuration of "stage1" or "stage2" on the CPU, without files of rows and a model."""
    return copy.deepcopy(_small(stage, *overrides))


@functools.cache
def _small(stage: str, *overrides: str) -> DictConfig:
    module, name, more = {
        "stage1": (".stage1", "sft_trainer", "optim.lr_warmup_steps=0"),
        "stage2": ("", "rerule_trainer", "actor_rollout_ref.actor.ppo_mini_batch_size=8"),
    }[stage]
    none = ["data.train_files=none", "data.val_files=null", "trainer.default_local_dir=run", more]
    with initialize_config_module(f"recipe.rerule.config{module}", version_base=None):
        config = compose(name, ["experiment=tiny", "data.train_batch_size=8", *none, *overrides])
    OmegaConf.resolve(config)
    return config


def put_model(folder: Path) -> None:
    """A model with a tokenizer and a chat template."""
    made_models.put_model(folder)
    byte_level(LLAMA3_TEMPLATE).save_pretrained(folder)


def build(folder: Path) -> Path:
    """Models, rows and run folders under the names that the cases use."""
    put_model(folder / "MODEL")
    made_models.put_model(folder / "FOREIGN")
    put_model(folder / "UNTEMPLATED")
    sentencepiece().save_pretrained(folder / "UNTEMPLATED")
    (folder / "UNTEMPLATED" / "chat_template.jinja").unlink()
    for name in ("FORGETFUL", "NEAR", "RETOKENISED"):
        made.put_model(folder / name)
    other = byte_level(CHATML_TEMPLATE)
    other.add_tokens([f"new{len(other.get_vocab())}"])
    other.save_pretrained(folder / "RETOKENISED")
    for name, found in _stage2_files():
        write_rows(folder / name, found)
    for name, found in _stage1_files():
        write_sft_rows(folder / name, found)
    (folder / "REWARD").write_text(
        "raise SystemExit('not run')\nasync def score(): ...\nclass Manager: ...\n"
    )
    (folder / "BROKEN").write_text("def score(:")
    run_folder.begin(folder / "BEGUN", stage=2)
    (folder / "BEGUN" / "config.yaml").touch()
    run_folder.begin(folder / "FAILED", stage=1)
    (folder / "FAILED" / "records").mkdir()
    (folder / "FAILED" / "records" / "metrics.jsonl").touch()
    run_folder.begin(folder / "LOGGED", stage=1)
    (folder / "LOGGED" / "records").mkdir()
    (folder / "LOGGED" / "records" / "metrics.jsonl").write_text("{}\n")
    (folder / "STRANGE" / "global_step_3" / "actor").mkdir(parents=True)
    run_folder.begin(folder / "CUT", stage=2)
    (folder / "CUT" / "global_step_3").mkdir()
    (folder / "CHECKPOINT").symlink_to(folder / "CUT" / "global_step_3")
    return folder


def _stage2_files() -> Iterator[tuple[str, list[Row]]]:
    yield "TRAIN", rl(count=20)
    yield "VAL", rl("val", 100, "When", 20)
    yield "MANY", rl(count=64)
    yield "RAW", rl(count=20, raw=[17])
    yield "ALLRAW", rl(count=20, raw=range(20))
    yield "RAWVAL", rl("val", 100, "When", 20, range(100, 120))


def _stage1_files() -> Iterator[tuple[str, list[Row]]]:
    yield "SFT", sft(count=24)
    yield "RAWSFT", sft(count=24, raw=True)
    yield "FEW", sft(count=7, words="When")
    yield "ENOUGH", sft(words="When")
    forget, retain, alternate = (made.rows()[side] for side in ("forget", "retain", "alternate"))
    same, refusals = copy.deepcopy(forget), copy.deepcopy(forget)
    for one in same:
        one["messages"][1]["content"] = "it"
    refusals[2]["messages"][1]["content"] = "I do not know about that."
    yield from {"FORGET": forget, "RETAIN": retain, "ALTERNATE": alternate}.items()
    yield from {"FEWER": alternate[1:], "SAME": same, "REFUSALS": refusals}.items()
