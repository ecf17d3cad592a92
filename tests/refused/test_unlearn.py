"""Every case of `unlearn_cases`: composed as the command composes it, and checked before anything starts."""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from data_prep.contract import write_rows, write_sft_rows
from recipe.rerule import unlearn
from recipe.rerule.unlearning import checks
from tests import made_models
from tests.e2e.stack import ROOT
from tests.made_tokenizers import CHATML_TEMPLATE, byte_level
from tests.refused.unlearn_cases import CASES, GDR, UnlearnCase
from tests.training.test_settings import row as prompt_row
from tests.unlearning import made

OF = [case for case in CASES if isinstance(case, UnlearnCase)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and files under the names that the cases use."""
    folder = tmp_path_factory.mktemp("unlearn")
    for name in ("MODEL", "OTHER_MODEL", "OTHER_TOKENS"):
        made.put_model(folder / name)
    other = byte_level(CHATML_TEMPLATE)
    tokens = list(other.get_vocab())
    other.add_tokens([f"new{len(tokens)}"])
    other.save_pretrained(folder / "OTHER_TOKENS")
    made_models.put_model(folder / "FOREIGN_MODEL")
    rows = made.rows()
    same, refusals = copy.deepcopy(rows["forget"]), copy.deepcopy(rows["forget"])
    for one in same:
        one["messages"][1]["content"] = "it"
    refusals[2]["messages"][1]["content"] = "I do not know about that."
    files = {
        "FORGET": rows["forget"],
        "RETAIN": rows["retain"],
        "ALTERNATE": rows["alternate"],
        "FEWER": rows["alternate"][1:],
        "SAME": same,
        "REFUSALS": refusals,
    }
    for name, found in files.items():
        write_sft_rows(folder / name, found)
    write_rows(folder / "PROMPTS", [prompt_row(index) for index in range(8)])
    return folder


@functools.cache
def base(folder: Path, *method: str) -> DictConfig:
    """The unchanged run of a preset: composing takes longer than any check."""
    with initialize_config_module("recipe.rerule.config.unlearn", version_base=None):
        return compose("unlearn_trainer", [*unchanged(folder), *method])


def unchanged(folder: Path) -> list[str]:
    """Overrides of a run in which nothing is wrong, but for its method and files."""
    run = ["experiment=tiny", f"model.path={folder}/MODEL", f"trainer.default_local_dir={folder}/run"]
    batches = ["data.train_batch_size=4", "data.micro_batch_size_per_gpu=2", "data.max_token_len_per_gpu=600"]
    return [*run, *batches]


def composed(folder: Path, overrides: tuple[str, ...]) -> DictConfig:
    """What Hydra makes of the overrides."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    config = copy.deepcopy(base(folder, *(given for given in overrides if given.startswith("method="))))
    for override in parsed:
        value = override.value()
        if isinstance(value, str) and value.isupper():
            value = f"{folder}/{value}"
        if override.key_or_group != "method":
            key, added = override.key_or_group, override.is_add()
            OmegaConf.update(config, key, value, merge=False, force_add=added)
    OmegaConf.resolve(config)
    return config


def of(outcome: str) -> list[object]:
    return [pytest.param(case, id=case.name) for case in OF if case.outcome == outcome]


def warnings_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize("case", of("refused"))
def test_it_is_one_line_that_names_it_and_nothing_is_written(case: UnlearnCase, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (the line itself is what is tested)
        checks.check(composed(folder, case.overrides))
    assert case.named in str(raised.value)
    assert "\n" not in str(raised.value)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("case", of("warned"))
def test_it_is_a_warning(case: UnlearnCase, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks.check(composed(folder, case.overrides))
    (line,) = warnings_of(capsys)
    assert case.named in line


@pytest.mark.parametrize("case", of("valid"))
def test_it_is_accepted(case: UnlearnCase, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks.check(composed(folder, case.overrides))
    assert warnings_of(capsys) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--list", "method=ga"], "error: method=ga is not for --list, which takes --json alone\n"),
        (
            ["--lst"],
            "error: --lst is no option; write settings as KEY=VALUE without dashes. --help lists them\n",
        ),
    ],
)
def test_the_command_ends_with_the_line_and_code_2(
    arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["unlearn", *arguments])
    with pytest.raises(SystemExit) as ended:
        unlearn.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == line


def test_the_commands_own_checks_end_with_code_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = composed(folder, (*GDR, "method.forget=npo2"))
    monkeypatch.setattr("recipe.rerule.training.entry.prepare", lambda *_, **__: None)
    with pytest.raises(SystemExit) as ended:
        unlearn._check_and_run(config)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: method.forget is 'npo2'; set it to one of ")
    assert not (folder / "run").exists()


BY_THE_COMMAND = (
    "no retain file",
    "a gold that is a refusal",
    "more ranks than rows",
    "an unknown forget term",
    "a reference with another vocabulary",
    "no reinforced model",
    "a reinforced model that is not there",
    "a reinforced model with another vocabulary",
    "a reinforced model whose tokens differ",
)
UNKNOWN = UnlearnCase("", "an unknown preset", "refused", ("method=npo2",), "method is 'npo2'; set it to one")


@pytest.mark.full
@pytest.mark.parametrize(
    "case", [*(case for case in OF if case.name in BY_THE_COMMAND), UNKNOWN], ids=lambda case: case.name
)
def test_the_whole_command_ends_with_the_line_and_code_2(case: UnlearnCase, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    given = [placed(folder, override) for override in case.overrides]
    done = subprocess.run(
        [sys.executable, "-m", "recipe.rerule.unlearn", *unchanged(folder), *given],
        cwd=folder,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (2, "")
    announced, line = done.stderr.splitlines()
    assert announced == "checking settings, model and rows ..."
    assert line.startswith("error: ")
    assert case.named in line
    assert sorted(folder.rglob("*")) == before


def placed(folder: Path, override: str) -> str:
    """An override as on the command line, with the folder's own file or model for a word in capitals."""
    key, _, value = override.partition("=")
    return f"{key}={folder}/{value}" if value.isupper() else override
