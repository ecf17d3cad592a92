"""The command on made-up people and their models, answered by a stand-in for vLLM."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.rerule import evaluate
from recipe.rerule.evaluation.probes import read_probes
from tests.evaluation.conftest import write_probes
from tests.golden.commands import ENGINE
from tests.golden.inputs import FORGET, RETAIN, put_attacked
from tests.unlearning.made import put_model

ATTACKS = ("prefill", "samples", "relearn_retain", "refusal_direction", "logit_lens")
"""Attacks that ask, that change models and that measure."""


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with random weights, and its tokenizer."""
    return put_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models/{original,control,refusing}, data/{probes,train}.parquet and texts."""
    return put_attacked(tmp_path_factory.mktemp("attacked"))


def put_probes(world: Path, path: Path, forget: int, retain: int) -> Path:
    """The probes of the first people of each side alone."""
    names = (*FORGET[:forget], *RETAIN[:retain])
    given = read_probes(world / "data/probes.parquet")
    return write_probes(path, [one for one in given if one.subject in names])


def words(world: Path, out: Path, control: bool = True, muse: bool = False) -> list[str]:
    """Words of the command on the original, the refusing and the never-knew model.

    `muse`: the questions are asked as MUSE asks them, which has a length of answers of its own.
    """
    probes = f"{world / ('questions' if muse else 'data') / 'probes.parquet'}"
    return [
        *("attack", "--platform", "cpu", "--out", f"{out}", "--probes", probes),
        *(("--benchmark", "muse_books") if muse else ("--max-tokens", "6")),
        *("--train", f"{world / 'data/train.parquet'}"),
        *(f"--model={name}={world / 'models' / name}" for name in ("original", "refusing")),
        *(["--control", f"{world / 'models/control'}"] if control else []),
    ]


@pytest.fixture(scope="package")
def attacked(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one command with all ATTACKS: out, and cache."""
    folder = tmp_path_factory.mktemp("attacked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ENGINE)
        given = [*words(world, folder / "out"), "--cache", f"{folder / 'cache'}"]
        assert evaluate.main([*given, "--attacks", *ATTACKS]) == 0
    return folder


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are answered by the stand-in for vLLM."""
    monkeypatch.setenv("PYTHONPATH", ENGINE)


@pytest.fixture
def attack(world: Path, tmp_path: Path, stand_in: None) -> Callable[..., int]:
    """attack(*arguments): the exit code of the command, with --out tmp_path / "out"."""

    def call(*arguments: str, with_control: bool = True, muse: bool = False) -> int:
        return evaluate.main([*words(world, tmp_path / "out", with_control, muse), *arguments])

    return call
