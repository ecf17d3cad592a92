"""What is kept of an evaluation: what comes back, and what is never taken for an answer."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine import answers as module
from recipe.rerule.evaluation.engine.answers import (
    ANSWERS,
    PIECES,
    Kept,
    answer_of,
    check_kept,
    discard,
    identity_of,
)
from recipe.rerule.evaluation.engine.models import Model
from recipe.rerule.evaluation.engine.requests import Answer

TEXT = {"text": "an answer\nof “two” lines"}
MEASURED = {"log_probs": [-0.1, -1e-9, -12.345678901234567], "ranks": [1, 30, 2]}
SAMPLED = {"samples": ["", "so", "", "no"]}


def found(path: Path) -> dict[str, Answer]:
    with Kept(path) as kept:
        return {key: answer_of(record) for key, record in kept.records.items()}


def add(path: Path, **answers: object) -> None:
    with Kept(path) as kept:
        kept.add([{"key": key, **fields} for key, fields in answers.items()])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with two answers."""
    path = tmp_path / "out.partial" / ANSWERS
    add(path, k1=TEXT)
    add(path, k2=MEASURED)
    return path


def test_answers_of_every_kind_come_back_to_the_last_digit(file):
    measured = Answer(log_probs=tuple(MEASURED["log_probs"]), ranks=(1, 30, 2))
    assert found(file) == {"k1": Answer(**TEXT), "k2": measured}
    assert file.read_text().startswith('{"key": "k1", "text": ')  # the key, by which a file is known as ours
    add(file, k3=SAMPLED, k4={}, k1=MEASURED)
    sampled = Answer(samples=("", "so", "", "no"))
    assert found(file) == {"k1": measured, "k2": measured, "k3": sampled, "k4": Answer()}


def test_a_file_cut_anywhere_keeps_its_whole_lines_and_takes_more(file):
    whole = file.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in {*range(0, len(whole), 7), *ends, *(end - 1 for end in ends)}:
        file.write_bytes(whole[:cut])
        before = [key for key, end in zip(("k1", "k2"), ends, strict=True) if end <= cut]
        add(file, k3=TEXT)
        assert list(found(file)) == [*before, "k3"]
    # A torn line costs its own answer alone.
    file.write_bytes(b'{"key": "k1", "te\n' + whole.splitlines(keepends=True)[1])
    assert list(found(file)) == ["k2"]


def test_a_disk_that_refuses_is_one_line(file):
    with Kept(file) as kept:
        file.unlink()
        file.mkdir()
        with pytest.raises(ValueError, match=r"answers\.jsonl: what was found cannot be kept: Is a dir"):
            kept.add([{"key": "k3", **TEXT}])


def test_answers_are_of_one_model_prefix_engine_and_version_of_vllm(model_folder, monkeypatch):
    """Files are known by their content, those that are large by size, time and pieces."""
    model, other = Model("base", model_folder("one")), Model("base", model_folder("two"))
    monkeypatch.setattr(module, "HASHED_BYTES", 2)
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "0.3")
    first = identity_of(model, "cpu", "float32")
    assert first == identity_of(replace(model, name="renamed"), "cpu", "float32")
    weights = model.path / "model.safetensors"
    weights.write_bytes(b"\1" * len(weights.read_bytes()))
    identities = [first, identity_of(model, "cpu", "float32")]
    (model.path / "new.json").write_text("{}")
    told = [(model, "cpu", "float32"), (model, "gpu", "float32"), (model, "cpu", "bfloat16")]
    told += [(replace(model, prefix="Forget."), "cpu", "float32"), (other, "cpu", "float32")]
    identities += [identity_of(*one) for one in told]
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "0.4")
    identities.append(identity_of(model, "cpu", "float32"))
    assert len(set(identities)) == len(identities) == 8


def test_two_models_that_an_archive_gave_one_time(model_folder, monkeypatch):
    monkeypatch.setattr(module, "HASHED_BYTES", 2)
    monkeypatch.setattr(module, "BLOCK_BYTES", 4)
    files = [model_folder(name) / "model.safetensors" for name in ("one", "two")]
    for number, file in enumerate(files):
        file.write_bytes(bytes(640) + bytes([number]) + bytes(639))
        os.utime(file, ns=(0, 0))
    found = [module.fingerprint(file.parent)[file.name] for file in files]
    assert found[0][:2] == found[1][:2] == [1280, 0]
    assert found[0] != found[1]


def test_a_folder_is_ours_alone_for_one_command_at_a_time(file):
    """What is not ours is left where it is."""
    folder = file.parent
    with Kept(file), pytest.raises(ValueError, match="another command is at work"):
        Kept(file)
    add(folder / PIECES, k1={"rows": []})
    (folder / "models" / "key").mkdir(parents=True)
    check_kept(folder)
    with pytest.raises(ValueError, match=r"answers\.jsonl: answers cannot be kept there"):
        check_kept(file)
    kept = file.read_bytes()
    for name, text in {"notes.txt": "mine", "base.jsonl": kept.decode(), ANSWERS: '{"index": 1}\n'}.items():
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=f"{name} holds no answers of an evaluation"):
            Kept(file)
        assert (folder / name).read_text() == text
        (folder / name).unlink()
        file.write_bytes(kept)
    (folder / "notes.txt").write_text("mine")
    discard(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    discard(folder)
    assert not folder.exists()
