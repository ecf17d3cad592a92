"""What a user can get wrong is refused before any worker starts, naming it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from data_prep.contract import rl_row, sft_row, write_rows, write_sft_rows
from recipe.rerule.runs import run_folder
from recipe.rerule.training import settings
from tests.made_models import put_model
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level, sentencepiece

ROOT = Path(__file__).resolve().parents[2]


def write_model(folder: Path) -> None:
    put_model(folder)
    byte_level(LLAMA3_TEMPLATE).save_pretrained(folder)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A model folder that transformers can read the configuration of, and one valid parquet file."""
    write_model(tmp_path / "model")
    rows = [row(index) for index in range(20)]
    write_rows(tmp_path / "train.parquet", rows)
    return {"model": tmp_path / "model", "train": tmp_path / "train.parquet", "run": tmp_path / "run"}


def row(index: int, **changes: Any) -> dict[str, Any]:
    extra_info = {
        "index": index,
        "mode": "qa",
        "subject": "Ada Quill",
        "split": "train",
        "section": "retain",
        "family": "question",
    }
    fields = {
        "prompt": "Where?",
        "side": "retain",
        "golds": ["Tarn"],
        "keyword": "",
        "extra_info": extra_info,
    }
    return rl_row(data_source="rerule/test", **(fields | changes))


def overrides(files: dict[str, Path], *more: str) -> list[str]:
    return [
        "experiment=tiny",
        f"actor_rollout_ref.model.path={files['model']}",
        f"data.train_files={files['train']}",
        f"data.val_files={files['train']}",
        f"trainer.default_local_dir={files['run']}",
        *more,
    ]


def composed(arguments: list[str]) -> DictConfig:
    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", arguments)
    OmegaConf.resolve(config)
    return config


def refusal(files: dict[str, Path], *more: str) -> str:
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (the line itself is what is tested)
        settings.check(composed(overrides(files, *more)))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_the_experiment_itself_is_accepted(files: dict[str, Path]) -> None:
    replay = settings.check(composed(overrides(files)))
    assert (replay.threshold, replay.importance.clip_high) == (None, 1.3)


def test_a_threshold_goes_with_its_rule_alone(files: dict[str, Path]) -> None:
    assert refusal(files, "replay.threshold=0.4") == (
        "replay.threshold is 0.4, but replay.threshold_rule=quantile would not use it; "
        "add replay.threshold_rule=fixed, or leave the threshold out"
    )
    assert "needs a number" in refusal(files, "replay.threshold_rule=fixed")
    arguments = overrides(files, "replay.threshold=0.4", "replay.threshold_rule=fixed")
    assert settings.check(composed(arguments)).threshold == 0.4


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("replay.threshold=1.5", "replay.threshold is 1.5"),
        ("replay.threshold=-0.1", "replay.threshold is -0.1"),
        ("replay.capacity=4", "replay.capacity is 4"),
        ("replay.start=later", "replay.start is 'later'"),
        ("replay.importance.clip_low=2", "replay.importance.clip_low is 2"),
        ("+replay.tau=0.5", "replay.tau is no setting"),
        ("reward.custom_reward_function.reward_kwargs.gamma=2", "gamma"),
        ("reward.custom_reward_function.reward_kwargs.form=both", "form"),
        (
            "+reward.custom_reward_function.reward_kwargs.beta=1",
            "reward_kwargs: unknown reward option 'beta'",
        ),
        ("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora.merge=true"),
        ("algorithm.adv_estimator=remax", "algorithm.adv_estimator is 'remax'; set it to one of grpo, "),
        ("actor_rollout_ref.rollout.n=1", "actor_rollout_ref.rollout.n"),
        ("actor_rollout_ref.actor.use_kl_loss=false", "replay.use_kl_loss"),
        ("actor_rollout_ref.model.path=/no/such/model", "/no/such/model"),
        ("actor_rollout_ref.model.path=no-such-model", "no-such-model"),
        ("data.train_files=/no/such.parquet", "/no/such.parquet"),
        ("data.train_batch_size=48", "hold 20 rows"),
        ("data.train_batch_size=17", "data.train_batch_size is 17"),
        ("trainer.n_gpus_per_node=3", "128 rows a step, which 3 devices"),
        ("replay.admission=easy", "replay.admission is 'easy'"),
        ("replay.max_staleness=-1", "replay.max_staleness is -1"),
        (
            "replay.max_staleness=often",
            "replay.max_staleness is 'often'; set it to a whole number >= 0, or null",
        ),
        ("replay.importance.clip_high=0.5", "replay.importance.clip_high is 0.5"),
        ("trainer.resume_mode=yes", "trainer.resume_mode is"),
        ("trainer.resume_mode=resume_path", "trainer.resume_from_path is not set"),
        ("+trainer.remove_previous_ckpt_in_save=true", "trainer.max_actor_ckpt_to_keep=1 instead"),
        ("trainer.max_actor_ckpt_to_keep=0", "trainer.max_actor_ckpt_to_keep is 0"),
        ("actor_rollout_ref.actor.checkpoint.async_save=true", "checkpoint.async_save is true"),
        (
            "actor_rollout_ref.actor.loss_agg_mode=median",
            "loss_agg_mode is 'median'; set it to one of token-mean, ",
        ),
        ("data.max_prompt_length=25", "train.parquet: row 0: the prompt has 26 tokens"),
        ("+records.replay=true", "records.replay is no setting; "),
        ("records.rollouts=some", "records.rollouts is 'some'; set it to true or false"),
        ("data.stop=null", "data.stop is null; set it to a list"),
        ("data.stop=x", "data.stop is 'x'; set it to a list"),
        ("data.stop=[x,'']", "data.stop is ['x', '']; set it to a list of texts that are not empty"),
        ("data.stop=[3]", "data.stop is [3]"),
        ("data.stop=['\\n']", "data.stop holds \\n, a backslash and an n"),
        ("data.stop=['\n']", "data.stop is set, which the agent loop single_turn_agent does not know; set"),
    ],
)
def test_a_wrong_setting_is_named(override: str, named: str, files: dict[str, Path]) -> None:
    assert named in refusal(files, override)


@pytest.mark.parametrize("estimator", ["rloo", "gae"])
def test_group_based_estimators_and_ppo_are_accepted(estimator: str, files: dict[str, Path]) -> None:
    settings.check(composed(overrides(files, f"algorithm.adv_estimator={estimator}")))


def test_ppo_takes_a_single_response_a_prompt(files: dict[str, Path]) -> None:
    alone = ["actor_rollout_ref.rollout.n=1", "data.train_batch_size=16"]
    settings.check(composed(overrides(files, "algorithm.adv_estimator=gae", *alone)))


def test_an_incomplete_checkpoint_is_refused_by_path(files: dict[str, Path]) -> None:
    folder = files["run"] / "global_step_3"
    folder.mkdir(parents=True)
    run_folder.begin(files["run"], stage=2)
    line = refusal(files, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}")
    assert f"trainer.resume_from_path is {folder}, which is incomplete" in line


def test_a_row_without_gold_is_named_by_file_and_number(files: dict[str, Path]) -> None:
    bad = row(1)
    bad["reward_model"]["ground_truth"]["golds"] = []
    pq.write_table(pa.Table.from_pylist([row(0), bad], schema=pq.read_schema(files["train"])), files["train"])
    line = refusal(files)
    assert str(files["train"]) in line
    assert "row 1" in line  # rows count from 0, as in every parquet reader
    assert "golds" in line


def test_a_missing_column_is_named(files: dict[str, Path]) -> None:
    table = pq.read_table(files["train"])
    pq.write_table(table.drop_columns(["reward_model"]), files["train"])
    line = refusal(files)
    assert str(files["train"]) in line
    assert "reward_model" in line


def test_a_run_folder_in_use_is_refused_unless_resumed(files: dict[str, Path]) -> None:
    run_folder.begin(files["run"], stage=2)
    (files["run"] / "config.yaml").touch()
    assert str(files["run"]) in refusal(files)
    settings.check(composed(overrides(files, "trainer.resume_mode=auto")))


def test_checkpoints_of_another_program_are_refused(files: dict[str, Path]) -> None:
    folder = files["run"] / "global_step_3" / "actor"
    folder.mkdir(parents=True)
    (folder / "model_world_size_1_rank_0.pt").touch()
    line = refusal(files, "trainer.resume_mode=auto")
    assert f"trainer.default_local_dir is {files['run']}, and the global_step_3 there is not of a run" in line


LOOP = f"actor_rollout_ref.rollout.agent.default_agent_loop={settings.AGENT_LOOP}"


def write_raw(files: dict[str, Path]) -> None:
    """Row 17 is raw, the others are not."""
    write_rows(files["train"], [row(index, raw=index == 17) for index in range(20)])


def test_raw_prompts_and_stop_strings_with_our_agent_loop_are_accepted(files: dict[str, Path]) -> None:
    write_raw(files)
    settings.check(composed(overrides(files, LOOP, "data.stop=['\n','Question:']")))


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ([], "train.parquet holds raw prompts, which the agent loop single_turn_agent does not know; set"),
        (
            [LOOP, "data.filter_overlong_prompts=true"],
            "train.parquet holds raw prompts, but data.filter_over",
        ),
        ([LOOP, "actor_rollout_ref.model.external_lib=null"], "external_lib, which is None"),
        ([LOOP, "actor_rollout_ref.model.external_lib=[json,re]"], "external_lib, which is ['json', 're']"),
    ],
)
def test_raw_prompts_that_would_be_sent_otherwise_are_refused(
    override: list[str], named: str, files: dict[str, Path]
) -> None:
    write_raw(files)
    assert named in refusal(files, *override)


def test_our_agent_loop_may_be_one_of_several_libraries(files: dict[str, Path]) -> None:
    libraries = f"actor_rollout_ref.model.external_lib=[json,{settings.AGENT_LOOP_MODULE}]"
    settings.check(composed(overrides(files, LOOP, libraries)))


def test_a_library_may_register_a_loss_and_an_agent_loop(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (files["run"].parent / "settings_test_library.py").write_text(
        "from verl.experimental.agent_loop import agent_loop, single_turn_agent_loop\n"
        "from verl.trainer.ppo.core_algos import register_policy_loss\n"
        "@agent_loop.register('settings_test_loop')\n"
        "class Loop(single_turn_agent_loop.SingleTurnAgentLoop): pass\n"
        "@register_policy_loss('settings_test_loss')\n"
        "def loss(*arguments, **more): pass\n"
    )
    monkeypatch.syspath_prepend(files["run"].parent)
    named = [
        "actor_rollout_ref.actor.policy_loss.loss_mode=settings_test_loss",
        "actor_rollout_ref.rollout.agent.default_agent_loop=settings_test_loop",
    ]
    assert "settings_test_loop" in refusal(files, *named[1:])
    settings.check(
        composed(overrides(files, *named, "actor_rollout_ref.model.external_lib=settings_test_library"))
    )


@pytest.mark.parametrize("manager", ["importlib", "register"])
def test_a_reward_of_the_user_s_own(manager: str, files: dict[str, Path]) -> None:
    reward, part = files["run"].parent / "own.py", "reward.custom_reward_function"
    reward.write_text("raise SystemExit('checked, not run')\nasync def score(): pass\nclass Manager: pass\n")
    own = [f"{part}.path={reward}", f"{part}.name=score"]
    if manager == "importlib":
        own += ["reward.reward_manager.source=importlib", "reward.reward_manager.name=Manager"]
        own += [f"reward.reward_manager.module.path={reward}"]
    settings.check(composed(overrides(files, *own)))
    assert f"{part}.name is 'Score', which {reward} does not define" in refusal(
        files, *own, f"{part}.name=Score"
    )
    reward.write_text("def score(:")
    assert "which is no Python file" in refusal(files, *own)


def test_chat_rows_need_a_chat_template(files: dict[str, Path]) -> None:
    sentencepiece().save_pretrained(files["model"])
    (files["model"] / "chat_template.jinja").unlink()
    line = refusal(files)
    assert f"the tokenizer of {files['model']} has no chat template: use an instruct model, or rows" in line
    write_rows(files["train"], [row(index, raw=True) for index in range(20)])
    settings.check(composed(overrides(files, LOOP)))


def test_a_model_without_a_tokenizer_is_refused(files: dict[str, Path]) -> None:
    (files["model"] / "tokenizer.json").unlink()
    (files["model"] / "tokenizer_config.json").unlink()
    assert f"{files['model']} has no tokenizer that transformers can load" in refusal(files)


def test_stop_strings_need_an_engine_that_finds_them(files: dict[str, Path]) -> None:
    line = refusal(files, LOOP, "data.stop=[x]", "actor_rollout_ref.rollout.name=sglang")
    assert "verl gives sglang no tokenizer" in line


@pytest.mark.parametrize("cuts", ["data.truncation=left", "data.filter_overlong_prompts=true"])
def test_long_prompts_pass_where_verl_is_told_to_cut_or_drop_them(cuts: str, files: dict[str, Path]) -> None:
    settings.check(composed(overrides(files, "data.max_prompt_length=4", cuts)))


def check_stage1(files: dict[str, Path], rows: list[dict[str, Any]], *more: str) -> None:
    write_sft_rows(files["run"].parent / "sft.parquet", rows)
    with initialize_config_module("recipe.rerule.config.stage1", version_base=None):
        config = compose(
            "sft_trainer",
            [
                "experiment=tiny",
                f"model.path={files['model']}",
                f"data.train_files={files['run'].parent / 'sft.parquet'}",
                f"trainer.default_local_dir={files['run']}",
                *more,
            ],
        )
    settings.check_stage1(config)


def stage1_rows(count: int, raw: bool = False) -> list[dict[str, Any]]:
    info = {"mode": "qa", "subject": "Ada"}
    return [
        sft_row(prompt="Where?", answer="No idea.", extra_info={"index": index, **info}, raw=raw)
        for index in range(count)
    ]


def test_stage1_accepts_rows_of_both_kinds(files: dict[str, Path]) -> None:
    check_stage1(files, stage1_rows(8))
    check_stage1(files, stage1_rows(8, raw=True))


def test_stage1_can_be_started_again_where_it_failed_before_its_first_step(files: dict[str, Path]) -> None:
    run_folder.begin(files["run"], stage=1)
    (files["run"] / "config.yaml").write_text("trainer: {}\n")
    (files["run"] / "records").mkdir()
    (files["run"] / "records" / "metrics.jsonl").touch()
    check_stage1(files, stage1_rows(8))
    (files["run"] / "records" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="which already holds a run; choose another folder"):
        check_stage1(files, stage1_rows(8))


@pytest.mark.parametrize(
    ("rows", "override", "line"),
    [
        (1, "model.lora_rank=0", r"train_batch_size is 8 but .* 1 rows"),
        (8, "data.max_length=34", r"sft\.parquet: row 0: prompt and answer have 35 tokens"),
        (8, "data.enable_thinking_default=false", "data.enable_thinking_default"),
        (8, "model.custom_chat_template=''", "has no chat template: use an instruct model"),
    ],
)
def test_stage1_refuses_by_name(rows: int, override: str, line: str, files: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=line):
        check_stage1(files, stage1_rows(rows), override)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["replay.tresh=1"], "replay.tresh is no setting; did you mean replay.threshold?"),
        (["replay.threshold=1.5"], "replay.threshold is 1.5"),
        (["platform=gpu"], "platform=gpu, but torch sees no accelerator"),
    ],
)
def test_the_command_prints_one_line_and_writes_nothing(
    more: list[str], line: str, files: dict[str, Path], tmp_path: Path
) -> None:
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-m", "recipe.rerule.main", *overrides(files, *more)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert (done.returncode, len(errors)) == (2, 1), done.stderr
    assert line in errors[0]
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def environment() -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def test_a_command_without_its_mandatory_settings_names_the_first(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recipe.rerule.main", "platform=cpu"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "error: actor_rollout_ref.model.path is not set" in done.stderr


def test_every_setting_of_replay_is_declared_in_the_configuration() -> None:
    """The YAML and the dataclass declare the same keys with the same defaults."""
    from dataclasses import asdict

    from recipe.rerule.replay import ReplayConfig

    with initialize_config_module("recipe.rerule.config", version_base=None):
        config = compose("rerule_trainer", [])
    declared = OmegaConf.to_container(config.replay, resolve=True)
    assert json.dumps(declared, sort_keys=True) == json.dumps(asdict(ReplayConfig()), sort_keys=True)
