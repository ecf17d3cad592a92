"""Presets, as docs/methods.md has them; a run goes on with its own settings and rows, and with no others.

tests/golden has the settings, files, passes and losses of each; tests/refused has wrong settings.
"""

import copy
import re
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from data_prep.contract import read_sft_rows, write_sft_rows
from recipe.rerule import schema
from recipe.rerule.preflight import checks, identity
from recipe.rerule.runs import checkpoints, run_folder
from recipe.rerule.schema import SettingsError
from recipe.rerule.unlearning import frozen, losses, presets
from recipe.rerule.unlearning.method import FORGET
from tests.e2e.stack import ROOT
from tests.unlearning import made

PAGE = (ROOT / "docs" / "methods.md").read_text("utf-8")


def test_the_page_and_the_choices_name_all_that_there_is() -> None:
    table = PAGE.partition("| preset | loss | reads |\n|---|---|---|\n")[2].partition("\n\n")[0]
    named = " ".join(line.split("|")[1] for line in table.splitlines())
    assert set(re.findall(r"`(\w+)`", named)) == set(presets.names())
    assert get_args(schema.ForgetTerm) == tuple(FORGET)
    assert {presets.load(name).forget for name in presets.names()} == set(FORGET)
    assert get_args(schema.Divergence) == tuple(losses.DIVERGENCES)


def test_an_adapter_on_one_gpu_is_stage_1_s_with_the_method_s_own_settings() -> None:
    config, whole = (made.composed(f"experiment=tofu{more}", "method=ga") for more in ("/lora_1gpu", ""))
    assert (config.model.lora_rank, config.optim.lr, config.trainer.n_gpus_per_node) == (32, 1e-4, 1)
    assert made.composed("experiment=tofu", "+common=lora_1gpu", "method=ga").optim.lr == whole.optim.lr
    assert config.data.train_batch_size == whole.data.train_batch_size
    assert config.trainer.total_epochs == whole.trainer.total_epochs


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    """npo_klr on made rows, as a user would give it."""
    folder = tmp_path_factory.mktemp("base")
    made.put_near(made.put_model(folder / "model"), folder / "other")
    rows = [word for word in made.put_rows(folder / "rows") if not word.startswith("data.alternate")]
    sizes = ["data.train_batch_size=4", "data.micro_batch_size_per_gpu=2"]
    return made.composed("experiment=tiny", "method=npo_klr", f"model.path={folder}/model", *sizes, *rows)


@pytest.fixture
def run(base: DictConfig, tmp_path: Path) -> DictConfig:
    """The settings of a run that was killed after its first checkpoint, to go on with it."""
    config = copy.deepcopy(base)
    config.trainer.default_local_dir = str(tmp_path / "run")
    run_folder.begin(tmp_path / "run", stage="unlearn")
    run_folder.keep_identity(tmp_path / "run", identity.of_unlearn(config))
    checkpoints.step_folder(tmp_path / "run", 1).mkdir()
    checkpoints.finish(tmp_path / "run", 1)
    config.trainer.resume_mode = "auto"
    return config


def refusal(config: DictConfig) -> str:
    with pytest.raises(SettingsError) as raised:
        identity.check(config, identity.of_unlearn)
    assert "\n" not in str(raised.value)
    return str(raised.value)


CHANGES: list[tuple[str, Any, str]] = [
    ("method.beta", 0.5, "0.5, but the run in {run} was started with 0.1; go on with that, or choose"),
    ("model.path", "{base}/other", "'{base}/other', but the run in {run} was started with '{base}/model'"),
    ("model.lora_rank", 8, "8, but the run in {run} was started with 0"),
    ("reference.path", "{base}/other", "'{base}/other', but the run in {run} was started with null"),
    ("reinforced.path", "{base}/other", "'{base}/other', but the run in {run} was started with null"),
    ("data.train_batch_size", 8, "8, but the run in {run} was started with 4"),
    ("data.max_length", 64, "64, but the run in {run} was started with 128"),
    ("optim.betas", [0.9, 0.95], "[0.9, 0.95], but the run in {run} was started with [0.9, 0.999]"),
    ("trainer.seed", 7, "7, but the run in {run} was started with 42"),
    ("model.custom_chat_template", "x", "'x', but the run in {run} was started with null"),
    ("model.tokenizer_path", "x", "'x', but the run in {run} was started with null"),
    ("model.exclude_modules", "x", "'x', but the run in {run} was started with null"),
    ("engine.model_dtype", "bf16", "'bf16', but the run in {run} was started with 'fp32'"),
    ("platform.bf16", True, "true, but the run in {run} was started with false"),
    ("trainer.n_gpus_per_node", 2, "2, but the run in {run} was started with 1"),
]


@pytest.mark.parametrize(("key", "value", "said"), CHANGES, ids=[change[0] for change in CHANGES])
def test_a_changed_setting_is_named_with_both_values(
    key: str, value: Any, said: str, run: DictConfig, base: DictConfig
) -> None:
    places = {"run": run.trainer.default_local_dir, "base": Path(base.model.path).parent}
    changed = value.format(**places) if isinstance(value, str) else value
    OmegaConf.update(run, key, changed)
    assert refusal(run).startswith(f"{key} is {said.format(**places)}")


@pytest.mark.parametrize("mode", ["auto", "resume_path"])
def test_the_commands_checks_refuse_it_and_write_nothing(mode: str, run: DictConfig) -> None:
    folder = Path(run.trainer.default_local_dir)
    run.trainer.resume_mode = mode
    run.trainer.resume_from_path = str(folder / "global_step_1") if mode == "resume_path" else None
    checks.require(checks.unlearn, run)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run.method.forget_weight = 0.5
    said = r"^method.forget_weight is 0.5, but the run in .* with 1.0; go on"
    with pytest.raises(SettingsError, match=said):
        checks.require(checks.unlearn, run)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_the_number_of_steps_counts_where_the_rate_follows_it(run: DictConfig) -> None:
    run.optim.lr_scheduler_type = "cosine"
    run_folder.keep_identity(run.trainer.default_local_dir, identity.of_unlearn(run))
    run.trainer.total_epochs = 50
    assert refusal(run).startswith("trainer.total_epochs is 50, but the run in ")
    run.trainer.total_training_steps = 2
    assert refusal(run).startswith("trainer.total_training_steps is 2, but the run in ")


def test_rows_count_by_what_they_are_and_not_by_where(run: DictConfig, tmp_path: Path) -> None:
    rows = read_sft_rows(run.data.forget)
    same, fewer = tmp_path / "same.parquet", tmp_path / "fewer.parquet"
    same.write_bytes(Path(run.data.forget).read_bytes())
    write_sft_rows(fewer, rows[:-1])
    run.data.forget = str(same)
    identity.check(run, identity.of_unlearn)
    run.data.forget = str(fewer)
    said = refusal(run)
    assert said.startswith(f"data.forget is {fewer} (sha256 ")
    assert said.count("sha256") == 2
    assert "forget.parquet (sha256" in said


def test_what_changes_no_result_may_change(run: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another name of the method, splits of a batch, what is logged and saved, and relative paths."""
    monkeypatch.chdir(Path(run.model.path).parent)
    run.method.name, run.model.path, run.data.retain = "mine", "model", "rows/retain.parquet"
    run.data.micro_batch_size_per_gpu, run.trainer.save_freq, run.trainer.logger = 1, 2, []
    run.trainer.total_epochs, run.data.alternate = 9, run.data.forget
    identity.check(run, identity.of_unlearn)


def test_a_run_that_starts_afresh_may_have_any_settings(run: DictConfig, tmp_path: Path) -> None:
    run.method.beta = 0.5
    marker = tmp_path / "run" / "run.json"
    said = marker.read_text()
    marker.unlink()
    run_folder.begin(tmp_path / "run", stage="unlearn")
    identity.check(run, identity.of_unlearn)
    marker.write_text(said)
    (tmp_path / "run" / "global_step_1" / "complete.json").unlink()
    identity.check(run, identity.of_unlearn)
    run.trainer.resume_mode, run.trainer.default_local_dir = "disable", str(tmp_path / "new")
    identity.check(run, identity.of_unlearn)


def test_every_setting_of_a_method_counts_but_its_name() -> None:
    any_file = presets.CONFIG / "unlearn_trainer.yaml"
    config = made.composed("method.retain=nll", f"data.retain={any_file}")
    known = {key.removeprefix("method.") for key in identity.of_unlearn(config) if key.startswith("method.")}
    assert known == set(config.method) - {"name"}


# frozen models: rows that have passed are remembered on all ranks, and weights are as passes read them


@pytest.mark.parametrize(
    ("known", "other_misses", "passes"),
    [("", False, True), ("ab", True, True), ("a", False, True), ("ab", False, False)],
)
def test_all_ranks_pass_where_one_of_them_misses_a_row(
    known: str, other_misses: bool, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This rank asks for a and b; the other one passes c where any pass is made."""
    of_other = iter([other_misses, {b"c": torch.ones(3)}])
    passed = Mock(return_value={b"a": torch.ones(1), b"b": torch.ones(2)})

    def gather(parts: list[Any], own: Any, group: Any) -> None:
        parts[:] = [own, next(of_other)]

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    found = {bytes([letter]): torch.ones(1) for letter in known.encode()}
    frozen.remember(found, [b"a", b"b"], passed, None)
    assert passed.called == passes
    assert {b"a", b"b"} <= set(found)
    assert (b"c" in found) == passes


@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        ("platform=gpu platform.attention=sdpa", "bf16"),
        ("platform=gpu platform.attention=sdpa +engine.mixed_precision.param_dtype=fp32", "fp32"),
        ("platform=cpu", "fp32"),
        ("platform=cpu platform.bf16=true", "bf16"),
    ],
)
def test_weights_are_read_as_passes_are_made(words: str, dtype: str, tmp_path: Path) -> None:
    given = ["method=npo", f"model.path={made.put_model(tmp_path)}", "model.lora_rank=4", *words.split()]
    config = frozen.worker_config(made.composed(*given), None)
    assert (config.engine_config.model_dtype, config.engine_config.forward_only) == (dtype, True)
    assert config.model_config.lora_rank == 0
