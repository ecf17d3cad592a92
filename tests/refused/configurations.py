"""The runs that cases of settings change, and the folder of files that their words in capitals name."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from data_prep.contract import Row, write_rows, write_sft_rows
from recipe.rerule import io
from recipe.rerule.preflight import checks
from recipe.rerule.runs import checkpoints, run_folder
from tests import document_programs, made_models
from tests.made_tokenizers import CHATML_TEMPLATE, LLAMA3_TEMPLATE, byte_level, sentencepiece
from tests.refused import models
from tests.refused.playground import plant
from tests.refused.rows import TRUTH, changed, rl, sft
from tests.unlearning import made

STAGE1, STAGE2 = "settings of stage 1", "settings of stage 2"
SIZES1, SIZES2 = "sizes of stage 1", "sizes of stage 2"
ROWS1, ROWS2 = "rows of stage 1", "rows of stage 2"
UNLEARN = "runs of recipe.rerule.unlearn"


_STAGE1 = "model.path=MODEL data.train_files=SFT"
_STAGE2 = "actor_rollout_ref.model.path=MODEL data.val_files=VAL"
RUNS = {
    STAGE1: f"experiment=tiny {_STAGE1} optim.lr_warmup_steps=1",
    STAGE2: f"experiment=tiny {_STAGE2} data.train_files=TRAIN",
    SIZES1: f"experiment=rwku {_STAGE1} optim.lr_warmup_steps=1 optim.lr=1e-5 data.use_dynamic_bsz=false",
    SIZES2: f"experiment=rwku {_STAGE2} data.train_files=MANY replay.warmup_steps=1 "
    "actor_rollout_ref.actor.use_dynamic_bsz=false",
    ROWS1: f"experiment=tiny {_STAGE1} optim.lr_warmup_steps=0 data.train_batch_size=8",
    ROWS2: f"experiment=tiny {_STAGE2} data.train_files=TRAIN data.train_batch_size=8 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    UNLEARN: "experiment=tiny model.path=FORGETFUL data.train_batch_size=4 data.micro_batch_size_per_gpu=2 "
    "data.max_token_len_per_gpu=600",
}
"""Of each group the overrides of a run in which nothing is wrong."""
CHECKS = dict.fromkeys((STAGE1, SIZES1, ROWS1), checks.stage1)
CHECKS |= dict.fromkeys((STAGE2, SIZES2, ROWS2), checks.stage2) | {UNLEARN: checks.unlearn}
"""Of each group the check of its settings."""
_PROGRAMS = {
    checks.stage1: "recipe.rerule.sft",
    checks.stage2: "recipe.rerule.main",
    checks.unlearn: "recipe.rerule.unlearn",
}
LIBRARY = """
from verl.experimental.agent_loop import agent_loop, single_turn_agent_loop
from verl.trainer.ppo.core_algos import register_policy_loss
@agent_loop.register("settings_test_loop")
class Loop(single_turn_agent_loop.SingleTurnAgentLoop): pass
@register_policy_loss("settings_test_loss")
def loss(*arguments, **more): pass
"""
"""A module that registers an agent loop and a loss."""


def composed(group: str, folder: Path, *more: str) -> DictConfig:
    """The configuration of a group; interpolations are resolved when they are read."""
    run = [*RUNS[group].split(), f"trainer.default_local_dir={folder}/run", *more]
    settings = tuple(placed(folder, override) for override in run)
    return copy.deepcopy(document_programs.composed(_PROGRAMS[CHECKS[group]], settings))


def placed(folder: Path, override: str) -> str:
    """An override, with the folder's own file or model for a word in capitals."""
    key, _, value = override.partition("=")
    return f"{key}={folder}/{value}" if value.isupper() else override


def findings(
    group: str, folder: Path, values: Mapping[str, Any], config: Any = None
) -> tuple[list[str], list[str]]:
    """Errors and warnings of a group's checks with these settings; see `placed` for words in capitals.

    config: what the settings are put into, where it is there already.
    """
    chosen = [f"method={values['method']}"] if "method" in values else []
    config = config or composed(group, folder, *chosen)
    for key in values.keys() - {"method"}:
        value = values[key]
        file = f"{folder}/{value}" if isinstance(value, str) and value.isupper() else value
        OmegaConf.update(config, key, file, merge=False, force_add=True)
    errors, warnings = list[str](), list[str]()
    try:
        for line in CHECKS[group](config):
            warnings.append(line)
    except (ValueError, OSError) as error:
        errors.append(io.describe(error))
    return errors, warnings


def put_model(folder: Path) -> None:
    """A model with a tokenizer and a chat template."""
    made_models.put_model(folder)
    byte_level(LLAMA3_TEMPLATE).save_pretrained(folder)


def build(folder: Path) -> Path:
    """Models, rows and run folders under the names that the cases use."""
    put_model(folder / "MODEL")
    made_models.put_model(folder / "FOREIGN")
    put_model(folder / "ENDLESS")
    models.ends([2])(folder / "ENDLESS")
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
    files = {
        "REWARD": "raise SystemExit('not run')\nasync def score(): ...\nclass Manager: ...\n",
        "BROKEN": "def score(:",
        "OWN": "def compute_score(**kwargs): return 0.0\n",
        "PHRASES": "nie wiem\n",
        "settings_test_library.py": LIBRARY,
        "BEGUN/config.yaml": "",
        "FAILED/records/metrics.jsonl": "",
        "LOGGED/records/metrics.jsonl": "{}\n",
    }
    for name, stage in (("BEGUN", 2), ("FAILED", 1), ("LOGGED", 1), ("CUT", 2), ("SAVED", 2)):
        run_folder.begin(folder / name, stage)  # type: ignore[arg-type]
    plant(folder, files)
    for name, length in (("SHORT", 23), ("LONG", 24)):  # refusals beside the rows; a response has 24 tokens
        (folder / name).mkdir()
        write_rows(folder / name / "TRAIN", rl(count=20))
        write_sft_rows(folder / name / "sft.parquet", sft(answer="x" * length))
    (folder / "STRANGE" / "global_step_3" / "actor").mkdir(parents=True)
    (folder / "CUT" / "global_step_3").mkdir()
    (folder / "SAVED" / "global_step_3").mkdir()
    checkpoints.finish(folder / "SAVED", 3)
    run_folder.keep_identity(folder / "SAVED", {"data.train_files": ["0123"]})
    (folder / "CHECKPOINT").symlink_to(folder / "CUT" / "global_step_3")
    return folder


def _stage2_files() -> Iterator[tuple[str, list[Row]]]:
    yield "TRAIN", rl(count=20)
    yield "VAL", rl("val", 100, "When", 20)
    yield "MANY", rl(count=64)
    yield "UNEVEN", [*rl(count=150)[:48:2], *rl(count=150)[1::2]]  # 24 to forget and 75 to keep
    yield "THIRD", [*rl(count=40)[:20:2], *rl(count=40)[1::2]]
    yield "KEPT", rl(count=40)[1::2]
    yield "POLISH", changed(rl(count=20), 0, *TRUTH, "golds", value=["Nie wiem."])
    yield "RAW", rl(count=20, raw=[17])
    yield "ALLRAW", rl(count=20, raw=range(20))
    yield "RAWVAL", rl("val", 100, "When", 20, range(100, 120))


def _stage1_files() -> Iterator[tuple[str, list[Row]]]:
    yield "SFT", sft(count=24)
    yield "RAWSFT", sft(count=24, raw=True)
    yield "FEW", sft(count=7, words="When")
    yield "ENOUGH", sft(words="When")
    yield "LONGVAL", sft(words="When and where and how")
    for name, count in (("FEWUNSEEN", 2), ("UNSEEN", 3)):
        yield name, [*sft(count=24)[count:], *sft(count=count, answer="Nie wiem.")]
    forget, retain, alternate = (made.rows()[side] for side in ("forget", "retain", "alternate"))
    same, refusals = copy.deepcopy(forget), copy.deepcopy(forget)
    for one in same:
        one["messages"][1]["content"] = "it"
    refusals[2]["messages"][1]["content"] = "I do not know about that."
    yield from {"FORGET": forget, "RETAIN": retain, "ALTERNATE": alternate}.items()
    following = [*alternate[1:], alternate[0]]
    shifted = [one | {"messages": other["messages"]} for one, other in zip(alternate, following, strict=True)]
    yield from {"FEWER": alternate[1:], "SHIFTED": shifted, "SAME": same, "REFUSALS": refusals}.items()
