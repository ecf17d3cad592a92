"""The store of answers: what it keeps, and what it never takes for an answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine import answers as module
from recipe.rerule.evaluation.engine.answers import KeptAnswers, check_store, discard, kept_answers, locked
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer

IDENTITY = {"format_version": 2, "model": "this", "engine": "that"}
ENGINE = {"platform": "cpu", "dtype": "float32"}
TEXT, MEASURED = Answer("an answer\nof “two” lines"), Answer(log_probs=(-0.1, -1e-9, -12.345678901234567))
RANKED, SAMPLED = Answer(log_probs=(-0.1, -2.0), ranks=(1, 30)), Answer(samples=("", "so", "", "no"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with two answers."""
    kept = KeptAnswers(tmp_path / "base.jsonl", IDENTITY)
    kept.add({"k1": ("a", TEXT)})
    kept.add({"k2": ("b", MEASURED)})
    return kept.path


def test_answers_of_every_kind_come_back_to_the_last_digit(file):
    assert KeptAnswers(file, IDENTITY).answers == {"k1": TEXT, "k2": MEASURED}
    added = {"k3": ("c", RANKED), "k4": ("d", SAMPLED), "k5": ("e", Answer()), "k2": ("b", RANKED)}
    KeptAnswers(file, IDENTITY).add(added)
    found = KeptAnswers(file, IDENTITY).answers
    assert found == {"k1": TEXT, "k2": RANKED, "k3": RANKED, "k4": SAMPLED, "k5": Answer()}
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        IDENTITY,
        {"key": "k1", "id": "a", "text": TEXT.text},
        {"key": "k2", "id": "b", "log_probs": list(MEASURED.log_probs)},
        {"key": "k3", "id": "c", "log_probs": [-0.1, -2.0], "ranks": [1, 30]},
        {"key": "k4", "id": "d", "samples": ["", "so", "", "no"]},
        {"key": "k5", "id": "e", "text": ""},
        {"key": "k2", "id": "b", "log_probs": [-0.1, -2.0], "ranks": [1, 30]},
    ]


def test_a_file_cut_anywhere_keeps_its_whole_lines_and_takes_more(file):
    whole = file.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole)):
        file.write_bytes(whole[:cut])
        kept = KeptAnswers(file, IDENTITY)
        before = [key for key, end in zip(("k1", "k2"), ends[1:], strict=True) if end <= cut]
        assert list(kept.answers) == before
        kept.add({"k3": ("c", TEXT)})
        assert list(KeptAnswers(file, IDENTITY).answers) == [*before, "k3"]
    lines = whole.splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b'{"key": "k1", "te\n', lines[2]]))  # costs its own answer alone
    assert list(KeptAnswers(file, IDENTITY).answers) == ["k2"]


def test_a_file_of_another_model_is_begun_anew(file, capsys):
    other = IDENTITY | {"model": "other"}
    assert KeptAnswers(file, other).answers == {}
    assert "another model or engine" in capsys.readouterr().err
    assert [json.loads(line) for line in file.read_text().splitlines()] == [other]


def test_a_disk_that_refuses_is_one_line(file):
    kept = KeptAnswers(file, IDENTITY)
    file.unlink()
    file.mkdir()
    with pytest.raises(ValueError, match=r"base\.jsonl: an answer cannot be kept: Is a directory"):
        kept.add({"k3": ("c", TEXT)})


def keep_one(folder: Path, model: Model, **engine: str) -> None:
    kept_answers(folder, model, ENGINE | engine).add({"k": ("a", TEXT)})


def is_kept(folder: Path, model: Model, **engine: str) -> bool:
    return "k" in kept_answers(folder, model, ENGINE | engine).answers


@pytest.mark.parametrize("change", ["config.json", "model.safetensors", "tokenizer.json", "new.json"])
def test_no_answer_outlives_a_change_of_the_model(change, tmp_path, model_folder):
    model = Model("base", model_folder("base", **{"model.safetensors": "12", "tokenizer.json": "{}"}))
    keep_one(tmp_path, model)
    assert is_kept(tmp_path, model)
    times = (model.path / "config.json").stat()
    (model.path / change).write_text("34")  # of equal length, and below with equal times
    os.utime(model.path / change, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not is_kept(tmp_path, model)


def test_large_files_are_known_by_size_and_time(tmp_path, model_folder, monkeypatch):
    monkeypatch.setattr(module, "HASHED_BYTES", 4)
    model = Model("base", model_folder("base", **{"model.safetensors": "weights"}))
    weights = model.path / "model.safetensors"
    changed = weights.stat().st_mtime_ns
    keep_one(tmp_path, model)
    assert is_kept(tmp_path, model)
    os.utime(weights, ns=(changed, changed + 1))
    assert not is_kept(tmp_path, model)


def test_no_answer_outlives_a_change_of_the_engine_or_the_folder(tmp_path, model_folder, monkeypatch):
    model, copy = (Model("base", model_folder(name)) for name in ("one", "two"))
    for other, engine in ((model, {"dtype": "auto"}), (copy, {})):
        keep_one(tmp_path, model)
        assert is_kept(tmp_path, model)
        assert not is_kept(tmp_path, other, **engine)
    keep_one(tmp_path, model)
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "another")
    assert not is_kept(tmp_path, model)


def test_models_of_any_name_have_files_of_their_own(tmp_path, model_folder):
    folder, names = model_folder("base"), ["a/b", "a%2Fb", "..", "rule@10", "with space"]
    (tmp_path / "store").mkdir()
    for name in names:
        keep_one(tmp_path / "store", Model(name, folder))
    assert len(list((tmp_path / "store").iterdir())) == len(names)


def test_one_command_at_a_time_in_a_folder_of_ours(tmp_path):
    store = tmp_path / "out.partial"
    with locked(store, check_store) as folder:
        assert folder.is_dir()
        with pytest.raises(ValueError, match="another command is at work"), locked(store, check_store):
            pass
    with locked(store, check_store):
        pass
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="file: answers cannot be kept there"):
        check_store(tmp_path / "file")
    with pytest.raises(ValueError, match="file holds no answers of an evaluation"):
        check_store(tmp_path)


def test_discarding_leaves_what_is_not_ours(file, model_folder: Callable[..., Path]):
    (file.parent / "notes.txt").write_text("mine")
    (file.parent / "rows.jsonl").write_text('{"index": 1}\n')
    discard(file.parent)
    assert {path.name for path in file.parent.iterdir()} == {"notes.txt", "rows.jsonl"}
    store = file.parent / "store"
    with locked(store, check_store):
        keep_one(store, Model("base", model_folder("base")))
    discard(store)
    assert not store.exists()
    discard(store)
