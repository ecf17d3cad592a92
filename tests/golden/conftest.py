"""Golden files are computed on one thread; evaluations and attacks are made once for all tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from tests.data_prep.generate.server import chat_server
from tests.golden.attack_inputs import CONTROL, FURTHER, put_attacked
from tests.golden.commands import Ran, done
from tests.golden.evaluation_inputs import (
    EVALUATIONS,
    judge_by_length,
    put_answering_models,
    put_logs,
    put_rows,
)

EVALUATE = "recipe.rerule.evaluate"


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """The order of a sum, and so its last digits, depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    patch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)  # which Hydra reads its files with
    gc.disable()  # a search through all that the commands import takes longer than many of them
    yield
    gc.enable()
    patch.undo()
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def evaluation_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, models that answer from a list, and logs."""
    folder = tmp_path_factory.mktemp("evaluation")
    put_rows(folder)
    put_answering_models(folder)
    put_logs(folder)
    return folder


@pytest.fixture(scope="package")
def evaluated(evaluation_work: Path) -> dict[str, Ran]:
    """How the commands of EVALUATIONS ended."""
    return {
        name: done(EVALUATE, "model", *words.split(), "--out", f"results/{name}", folder=evaluation_work)
        for name, words in EVALUATIONS.items()
    }


@pytest.fixture(scope="package")
def judged(evaluation_work: Path, evaluated: dict[str, Ran]) -> Ran:
    """The responses of results/custom, scored by a judge; the folder is `naturalness`."""
    with pytest.MonkeyPatch.context() as patch, chat_server(judge_by_length) as url:
        patch.setenv("OPENAI_API_KEY", "none")
        return done(
            *(EVALUATE, "judge", "--results", "results/custom", "--sections", "forget", "retain"),
            *("--base-url", url, "--judge-model", "tiny", "--cache", "judged", "--out", "naturalness"),
            folder=evaluation_work,
        )


@pytest.fixture(scope="package")
def attack_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and rows of the made-up people, and texts on them."""
    folder = tmp_path_factory.mktemp("attacks")
    put_attacked(folder)
    return folder


@pytest.fixture(scope="package")
def attacked(attack_work: Path) -> Ran:
    """All attacks of one command, into the folder `attacks`."""
    words = f"{CONTROL} --max-tokens 6 --attacks default {FURTHER} --out attacks"
    return done(EVALUATE, *words.split(), folder=attack_work)
