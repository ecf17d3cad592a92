"""What a machine sees of a run's files; two folders of this machine stand for two machines."""

import contextlib
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from recipe.rerule.preflight import seen_files


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_files, "SHARED_SECONDS", 0.0)


def test_a_shared_folder_is_read_and_written_and_left_as_it_was(tmp_path: Path) -> None:
    run_folder = tmp_path / "a" / "run"
    with contextlib.suppress(KeyError), seen_files.word(run_folder) as (place, text):
        assert place.parent == run_folder
        assert seen_files.look(place, text, "other", []) == seen_files.Seen(True, None, {})
        assert seen_files.is_seen(place / "other", text)
        assert not seen_files.is_seen(place / "third", text)
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_another_folder_of_the_same_name_is_not_shared_and_one_without_leave_says_why(tmp_path: Path) -> None:
    with seen_files.word(tmp_path / "here") as (place, text):
        other = tmp_path / "there" / place.name
        assert not seen_files.look(other, text, "other", []).shares
        other.mkdir(parents=True)
        (other / "word").write_text("of an earlier start")
        assert not seen_files.look(other, text, "other", []).shares
        (place / "other").mkdir()  # the superuser may write everywhere, but not into a folder
        assert seen_files.look(place, text, "other", []).write_error == "Is a directory"
        (place / "other").rmdir()


def test_a_word_that_comes_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_files, "SHARED_SECONDS", 10.0)
    late = threading.Thread(target=lambda: (time.sleep(0.7), (tmp_path / "word").write_text("x")))
    late.start()
    assert seen_files.is_seen(tmp_path / "word", "x")
    late.join()


def test_folders_differ_by_a_file_that_is_missing_or_has_other_contents(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "sub").mkdir(parents=True)
    (here / "config.json").write_text("{}")
    (here / "sub" / "weights").write_bytes(b"0" * 100)
    shutil.copytree(here, there)

    def found() -> str | None:
        return seen_files.difference(seen_files.digests(str(here)), seen_files.digests(str(there)))

    assert found() is None
    (there / "more").write_text("that nobody reads")
    assert found() is None
    (there / "sub" / "weights").write_bytes(b"0" * 99 + b"1")
    assert found() == "has another sub/weights"
    (there / "sub" / "weights").unlink()
    assert found() == "has no sub/weights"
    shutil.rmtree(there)
    assert found() == "has nothing"
    there.write_bytes(b"row")
    (tmp_path / "other").write_bytes(b"raw")
    one, other = (seen_files.digests(str(tmp_path / name)) for name in ("there", "other"))
    assert seen_files.difference(one, one) is None
    assert seen_files.difference(one, other) == "has another file"


@pytest.mark.parametrize(("place", "is_noticed"), [(0, True), (-1, True), (50, False)])
def test_of_large_files_the_ends_are_compared(
    place: int, is_noticed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_files, "WHOLE_BYTES", 99)
    monkeypatch.setattr(seen_files, "PART_BYTES", 10)
    contents = bytearray(os.urandom(100))
    (tmp_path / "a").write_bytes(contents)
    contents[place] ^= 1
    (tmp_path / "b").write_bytes(contents)
    a, b = (seen_files.digests(str(tmp_path / name)) for name in "ab")
    assert (a != b) == is_noticed
    (tmp_path / "b").write_bytes(contents[:50] + contents[49:])
    assert a != seen_files.digests(str(tmp_path / "b"))  # of another size
