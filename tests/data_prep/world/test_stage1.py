"""The world and its stage-1 model are made once, kept, and never replaced by others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from data_prep.world import stage1
from data_prep.world.stage1 import STEERING, Steering, prepare, steer
from tests.made_worlds import SMALL, untrained


def everything(folder: Path) -> dict[Path, tuple[bytes, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    prepare(folder, SMALL, Steering())
    return folder


def test_what_is_there_is_kept_for_the_next_time(folder: Path) -> None:
    before = everything(folder)
    assert prepare(folder, SMALL, Steering()) == (folder / "world", folder / "stage1")
    assert everything(folder) == before
    weights = "model.safetensors"
    assert (folder / "stage1" / weights).read_bytes() != (folder / "world" / "model" / weights).read_bytes()


def test_others_are_refused_and_what_is_there_stays(folder: Path) -> None:
    before = everything(folder)
    with pytest.raises(ValueError, match=r"world is not the world .*; give another folder, or move it away"):
        prepare(folder, replace(SMALL, seed=7), Steering())
    with pytest.raises(ValueError, match="stage1 is of another stage 1; give another folder"):
        prepare(folder, SMALL, Steering(epochs=2))
    assert everything(folder) == before


@pytest.mark.parametrize("content", [None, "{", '"text"', json.dumps({"epochs": 1})])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "stage1").mkdir()
    if content is not None:
        (tmp_path / "stage1" / STEERING).write_text(content)
    before = everything(tmp_path)
    with pytest.raises(ValueError, match="is of another stage 1"):
        stage1.make(tmp_path / "world", tmp_path / "stage1", Steering(), seed=0)
    assert everything(tmp_path) == before


def test_nothing_is_left_where_making_fails(tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        stage1.make(tmp_path / "world", tmp_path / "stage1", Steering(), seed=0)
    assert list(tmp_path.iterdir()) == []


def test_it_teaches_the_refusals() -> None:
    made, how = untrained(SMALL), Steering(learning_rate=2e-2, epochs=3)
    first = steer(made.model, made.tokenizer, made.world.sft, how, seed=0)
    assert steer(made.model, made.tokenizer, made.world.sft, how, seed=1) < 0.7 * first
