"""Each file of rows of data_cases.py is refused, warned about or read as its case says."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from data_prep.__main__ import main as data_prep
from recipe.rerule.evaluation.probes import read_probes
from recipe.rerule.preflight import checks
from tests.made_models import put_model
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level
from tests.refused.cases import Case
from tests.refused.data_cases import RAW, ROWS, RawCase, RowsCase
from tests.refused.rows import LINES, changed, rl, sft, stored

BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size=8"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = put_model(tmp_path_factory.mktemp("models") / "model")
    byte_level(LLAMA3_TEMPLATE).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def stage1(model: Path) -> DictConfig:
    return composed(
        "recipe.rerule.config.stage1", "sft_trainer", f"model.path={model}", "optim.lr_warmup_steps=0"
    )


@pytest.fixture(scope="module")
def stage2(model: Path) -> DictConfig:
    return composed("recipe.rerule.config", "rerule_trainer", f"actor_rollout_ref.model.path={model}", BATCH)


def composed(module: str, name: str, *overrides: str) -> DictConfig:
    """The resolved configuration of a stage on the CPU, without files of rows."""
    rows = ["data.train_files=none", "data.val_files=null", "trainer.default_local_dir=run"]
    with initialize_config_module(module, version_base=None):
        config = compose(name, ["experiment=tiny", "data.train_batch_size=8", *rows, *overrides])
    OmegaConf.resolve(config)
    return config


def outcome(case: Case, line: str, call: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that the call is refused or warned with one line that holds `line`, or does neither."""
    refused = None
    try:
        call()
    except ValueError as error:
        refused = str(error)
    warned = [text for text in capsys.readouterr().err.splitlines() if text.startswith("warning: ")]
    if case.outcome == "refused":
        assert refused is not None
        assert line in refused
        assert len(refused.splitlines()) == 1
    else:
        assert refused is None
        assert len(warned) == (case.outcome == "warned"), warned
        assert all(line in text for text in warned)


@pytest.mark.parametrize("case", RAW, ids=lambda case: case.name)
def test_raw_file(case: RawCase, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = put(tmp_path / case.file, case.make())
    before = everything(tmp_path)
    code = data_prep(["custom", "--source", str(source), "--out", str(tmp_path / "out")])
    # Twelve rows leave a probe or two a side, which is said and no fault of the file.
    errors = [line for line in capsys.readouterr().err.splitlines() if "has too few probes" not in line]
    if case.outcome == "valid":
        assert (code, errors) == (0, [])
        rows = json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"]
        for side in ("forget", "retain"):
            assert (
                sum(sum(rows[part].get(side, {}).values()) for part in ("train", "probes")) >= len(LINES) / 2
            )
        return
    assert (code, len(errors)) == (2, 1), errors
    assert errors[0].startswith("error: ")
    assert case.line in errors[0]
    assert everything(tmp_path) == before


def put(path: Path, content: bytes) -> Path:
    """What the name asks for: nothing for none.*, a folder, a pipe, or a file of these bytes."""
    if path.stem == "folder":
        path.mkdir()
    elif path.stem == "pipe":
        os.mkfifo(path)
    elif path.stem != "none":
        path.write_bytes(content)
    return path


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case.command} {case.name}")
def test_rows(
    case: RowsCase, stage1: DictConfig, stage2: DictConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = files(tmp_path, "train", case.train(), [])
    if case.command == "evaluate":
        return outcome(case, case.line, lambda: read_probes(Path(train[0])), capsys)
    config = copy.deepcopy(stage1 if case.command == "stage1" else stage2)
    config.data.train_files, config.trainer.default_local_dir = train, str(tmp_path / "run")
    validation = (
        case.validation
        or {"stage1": lambda: [], "stage2": lambda: [stored(rl("val", start=50))]}[case.command]
    )
    config.data.val_files = files(tmp_path, "val", validation(), train) or None
    outcome(case, case.line, lambda: check(case.command, config), capsys)


@pytest.mark.parametrize(("answer", "warned"), [("x" * 23, False), ("x" * 24, True)])
def test_refusals_beside_the_rows_that_no_response_can_hold(
    answer: str, warned: bool, stage2: DictConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A character is a token, and an end follows; a response has at most 24."""
    config = copy.deepcopy(stage2)
    config.data.train_files = files(tmp_path, "train", [stored(rl())], [])
    config.data.val_files = files(tmp_path, "val", [stored(rl("val", start=50))], [])
    config.trainer.default_local_dir = str(tmp_path / "run")
    taught = sft()
    for number in range(len(taught)):
        taught = changed(taught, number, "messages", 1, "content", value=answer)
    (tmp_path / "sft.parquet").write_bytes(stored(taught))
    checks.require(checks.findings(checks.stage2, config))
    said = (
        f"warning: data.max_response_length is 24, but the refusals of {tmp_path / 'sft.parquet'} have 25 to "
        "25 tokens with their end, so that none can be sampled whole; raise it to 25"
    )
    found = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert found == ([said] if warned else [])


@pytest.mark.parametrize(("own", "warned"), [(False, True), (True, False)])
def test_leaks_are_looked_for_by_the_phrases_of_the_reward(
    own: bool, warned: bool, stage2: DictConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward function of one's own may mean something else by refusal_phrases."""
    config = copy.deepcopy(stage2)
    answers = [row for row in rl() if row["reward_model"]["ground_truth"]["type"] == "forget"]
    number = rl().index(answers[0])
    train = changed(rl(), number, "reward_model", "ground_truth", "golds", value=["Nie wiem."])
    config.data.train_files = files(tmp_path, "train", [stored(train)], [])
    config.data.val_files = files(tmp_path, "val", [stored(rl("val", start=50))], [])
    config.trainer.default_local_dir = str(tmp_path / "run")
    (tmp_path / "phrases.txt").write_text("nie wiem\n")
    config.reward.custom_reward_function.reward_kwargs.refusal_phrases = str(tmp_path / "phrases.txt")
    if own:
        (tmp_path / "own.py").write_text("def compute_score(**kwargs): return 0.0\n")
        config.reward.custom_reward_function.path = str(tmp_path / "own.py")
    check("stage2", config)
    found = [line for line in capsys.readouterr().err.splitlines() if "leaks cannot be seen" in line]
    assert len(found) == warned


def check(command: str, config: DictConfig) -> None:
    """The checks of a stage before a run."""
    checks.require(checks.findings(getattr(checks, command), config))


def files(folder: Path, name: str, contents: list[bytes | int], train: list[str]) -> list[str]:
    """Files of these bytes; a number is that of an earlier file, which is given again."""
    paths: list[str] = []
    for number, content in enumerate(contents):
        if isinstance(content, int):
            paths.append((train or paths)[content])
        else:
            paths.append(str(folder / f"{name}{number}.parquet"))
            Path(paths[-1]).write_bytes(content)
    return paths
