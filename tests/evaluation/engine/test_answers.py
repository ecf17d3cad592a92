"""The store of answers: what it keeps, and what it never takes for an answer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine import answers as module
from recipe.rerule.evaluation.engine.answers import KeptAnswers, check_store, discard, kept_answers, locked
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer

IDENTITY = {"format_version": 2, "model": "this", "engine": "that"}
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


def test_a_file_cut_anywhere_keeps_its_whole_lines_and_takes_more(file):
    whole = file.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in {*range(0, len(whole), 7), *ends, *(end - 1 for end in ends)}:
        file.write_bytes(whole[:cut])
        kept = KeptAnswers(file, IDENTITY)
        before = [key for key, end in zip(("k1", "k2"), ends[1:], strict=True) if end <= cut]
        assert list(kept.answers) == before
        kept.add({"k3": ("c", TEXT)})
        assert list(KeptAnswers(file, IDENTITY).answers) == [*before, "k3"]
    lines = whole.splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b'{"key": "k1", "te\n', lines[2]]))  # costs its own answer alone
    assert list(KeptAnswers(file, IDENTITY).answers) == ["k2"]


def test_a_file_of_another_model_is_begun_anew_and_a_disk_that_refuses_is_one_line(file, capsys):
    kept = KeptAnswers(file, IDENTITY | {"model": "other"})
    assert kept.answers == {}
    assert "another model or engine" in capsys.readouterr().err
    assert [json.loads(line) for line in file.read_text().splitlines()] == [IDENTITY | {"model": "other"}]
    file.unlink()
    file.mkdir()
    with pytest.raises(ValueError, match=r"base\.jsonl: an answer cannot be kept: Is a directory"):
        kept.add({"k3": ("c", TEXT)})


def test_answers_are_of_one_model_prefix_engine_and_version_of_vllm(tmp_path, model_folder, monkeypatch):
    """Files are known by their content, those that are large by size and time."""
    model = Model("base", model_folder("one"), prefix="Forget.")
    monkeypatch.setattr(module, "HASHED_BYTES", 2)
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "0.3")
    kept = kept_answers(tmp_path, model, {"dtype": "float32"})
    (model.path / "new.json").write_text("{}")
    large = (model.path / "model.safetensors").stat()
    small = hashlib.sha256(b"{}").hexdigest()
    files = {"config.json": small, "model.safetensors": [large.st_size, large.st_mtime_ns]}
    identity = {
        "format_version": 2,
        "model": {"path": str(model.path), "files": files, "prefix": "Forget."},
        "engine": {"dtype": "float32", "vllm": "0.3"},
    }
    assert json.loads(kept.path.read_text()) == identity
    identity["model"]["files"]["new.json"] = small
    kept = kept_answers(tmp_path, model, {"dtype": "float32"})
    assert json.loads(kept.path.read_text()) == identity


def test_a_store_is_ours_alone_for_one_command_at_a_time(tmp_path, model_folder):
    """Models of any name have files of their own; what is not ours is left where it is."""
    store, folder = tmp_path / "out.partial", model_folder("base")
    names = ["a/b", "a%2Fb", "..", "rule@10", "with space"]
    with locked(store, check_store):
        for name in names:
            kept_answers(store, Model(name, folder), {}).add({"k": ("a", TEXT)})
        with pytest.raises(ValueError, match="another command is at work"), locked(store, check_store):
            pass
    assert len(list(store.iterdir())) == len(names)
    check_store(store)
    others = {store / "notes.txt": "mine", store / "rows.jsonl": '{"index": 1}\n'}
    for file, text in others.items():
        file.write_text(text)
        with pytest.raises(ValueError, match="holds no answers of an evaluation"):
            check_store(store)
    with pytest.raises(ValueError, match=r"notes\.txt: answers cannot be kept there"):
        check_store(store / "notes.txt")
    discard(store)
    assert set(store.iterdir()) == set(others)
    for file in others:
        file.unlink()
    discard(store)
    assert not store.exists()
