"""The runs that cases of settings change, and the folder of files that their words in capitals name."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from data_prep.contract import Row, rl_row, sft_row, write_rows, write_sft_rows
from recipe.rerule.preflight import checks
from recipe.rerule.runs import run_folder
from tests import made_models
from tests.made_tokenizers import CHATML_TEMPLATE, LLAMA3_TEMPLATE, byte_level, sentencepiece
from tests.refused.cases import Case
from tests.unlearning import made

STAGE1, STAGE2 = "settings of stage 1", "settings of stage 2"
SIZES1, SIZES2 = "sizes of stage 1", "sizes of stage 2"
UNLEARN = "runs of recipe.rerule.unlearn"


@dataclass(frozen=True)
class SettingsCase(Case):
    """Settings of a run in which nothing else is wrong.

    values: setting to value, as YAML would give it; words in capitals are files and folders.
    named: what the line must hold.
    """

    values: dict[str, Any] = field(default_factory=dict)
    named: str = ""


_STAGE1 = ("model.path=MODEL", "data.train_files=SFT", "optim.lr_warmup_steps=1")
_STAGE2 = ("actor_rollout_ref.model.path=MODEL", "data.train_files=TRAIN", "data.val_files=VAL")
RUNS: dict[str, tuple[Any, str, str, tuple[str, ...]]] = {
    STAGE1: (checks.stage1, ".stage1", "sft_trainer", ("experiment=tiny", *_STAGE1)),
    STAGE2: (checks.stage2, "", "rerule_trainer", ("experiment=tiny", *_STAGE2)),
    SIZES1: (checks.stage1, ".stage1", "sft_trainer", ("experiment=rwku", *_STAGE1, "optim.lr=1e-5")),
    SIZES2: (
        checks.stage2,
        "",
        "rerule_trainer",
        ("experiment=rwku", *_STAGE2, "data.train_files=MANY", "replay.warmup_steps=1"),
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


def findings(case: SettingsCase, folder: Path) -> tuple[list[str], list[str]]:
    """Errors and warnings of the checks of a case's group."""
    values = dict(case.values)
    chosen = [f"method={values.pop('method')}"] if "method" in values else []
    config = copy.deepcopy(composed(case.group, folder, *chosen))
    for key, value in values.items():
        file = f"{folder}/{value}" if isinstance(value, str) and value.isupper() else value
        OmegaConf.update(config, key, file, merge=False, force_add=True)
    found = list(checks.findings(RUNS[case.group][0], config))
    return tuple([one.line for one in found if one.is_error == wrong] for wrong in (True, False))  # type: ignore[return-value]


def put_model(folder: Path) -> None:
    """A model with a tokenizer and a chat template."""
    made_models.put_model(folder)
    byte_level(LLAMA3_TEMPLATE).save_pretrained(folder)


def row(index: int, prompt: str = "Where?", side: str = "retain", raw: bool = False) -> Row:
    """A row of stage 2."""
    info = {"index": index, "mode": "qa", "subject": "Ada Quill", "split": "train", "family": "question"}
    return rl_row(
        data_source="rerule/test",
        prompt=prompt,
        side=side,  # type: ignore[arg-type]
        golds=["Tarn"],
        keyword="Ada Quill" if side == "forget" else "",
        extra_info=info | {"section": side},
        raw=raw,
    )


def rows(indices: Sequence[int], word: str, raw: Sequence[int] = ()) -> list[Row]:
    """Rows of stage 2, of both sides in turn."""
    sides = ("retain", "forget")
    return [row(n, f"{word} {n}?", sides[n % 2], raw=n in raw) for n in indices]


def sft_rows(count: int, word: str = "Where", raw: bool = False) -> list[Row]:
    """Rows of stage 1."""
    info = {"mode": "qa", "subject": "Ada"}
    return [
        sft_row(prompt=f"{word} {n}?", answer="No idea.", extra_info={"index": n, **info}, raw=raw)
        for n in range(count)
    ]


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
    yield "TRAIN", rows(range(20), "Where")
    yield "VAL", rows(range(100, 120), "When")
    yield "MANY", rows(range(64), "Where")
    yield "RAW", rows(range(20), "Where", raw=[17])
    yield "ALLRAW", rows(range(20), "Where", raw=range(20))
    yield "RAWVAL", rows(range(100, 120), "When", raw=range(100, 120))


def _stage1_files() -> Iterator[tuple[str, list[Row]]]:
    yield "SFT", sft_rows(24)
    yield "RAWSFT", sft_rows(24, raw=True)
    yield "FEW", sft_rows(7, "When")
    yield "ENOUGH", sft_rows(8, "When")
    forget, retain, alternate = (made.rows()[side] for side in ("forget", "retain", "alternate"))
    same, refusals = copy.deepcopy(forget), copy.deepcopy(forget)
    for one in same:
        one["messages"][1]["content"] = "it"
    refusals[2]["messages"][1]["content"] = "I do not know about that."
    yield from {"FORGET": forget, "RETAIN": retain, "ALTERNATE": alternate}.items()
    yield from {"FEWER": alternate[1:], "SAME": same, "REFUSALS": refusals}.items()
