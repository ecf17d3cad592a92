from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from data_prep.generate.cache import Cache

KEYS = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.text(max_size=20)


def put(folder: Path, *answers: tuple[str, dict[str, Any]]) -> None:
    with Cache(folder) as cache:
        for key, answer in answers:
            cache.put_answer(key, answer)


def test_what_was_put_is_there_at_once_and_in_the_next_process(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put_answer("a", {"text": "Zoë\n\u2028"})
        cache.put_unfit("b", 2, "no blank")
        for reader in (cache, Cache(tmp_path)):
            assert reader.answer("a") == {"text": "Zoë\n\u2028"}
            assert reader.answer("b") is None
            assert reader.unfit("b") == {2: "no blank"}
            assert reader.unfit("a") == {}


def test_nothing_is_written_before_the_first_answer(tmp_path: Path) -> None:
    with Cache(tmp_path / "deep" / "cache"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_every_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    with Cache(tmp_path) as one, Cache(tmp_path) as other:
        for number in range(50):
            one.put_answer(f"one {number}", {"n": number})
            other.put_answer(f"other {number}", {"n": -number})
    assert len(list(tmp_path.iterdir())) == 2
    both = Cache(tmp_path)
    assert all(both.answer(f"one {number}") == {"n": number} for number in range(50))
    assert all(both.answer(f"other {number}") == {"n": -number} for number in range(50))


def test_the_later_answer_counts(tmp_path: Path) -> None:
    for number in range(12):
        put(tmp_path, ("a", {"n": number}))
    assert Cache(tmp_path).answer("a") == {"n": 11}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"\0" * 40,
        b"null",
        b"3",
        b'"a"',
        b"[" * 100_000,
        b"{}",
        b'{"key": "x"}',
        b'{"key": 1, "answer": {}}',
        b'{"key": "x", "answer": "text"}',
        b'{"key": "x", "answer": null}',
        b'{"key": "x", "draw": "1", "unfit": "no"}',
        b'{"key": "x", "unfit": "no"}',
        b'{"key": "x", "answer": {"text": "half',
    ],
    ids=lambda line: line[:40].decode("latin-1"),
)
def test_a_line_that_is_no_record_counts_for_nothing(tmp_path: Path, line: bytes) -> None:
    put(tmp_path, ("a", {"n": 1}), ("b", {"n": 2}))
    (file,) = tmp_path.iterdir()
    before, after = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(before + line + b"\n" + after + line)
    cache = Cache(tmp_path)
    assert (cache.answer("a"), cache.answer("b")) == ({"n": 1}, {"n": 2})
    assert (cache.answer("x"), cache.unfit("x")) == (None, {})


def test_files_of_others_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text('{"key": "a", "answer": {}}\n')
    assert Cache(tmp_path).answer("a") is None


@given(answers=st.lists(st.tuples(KEYS, TEXTS), min_size=1, max_size=6), data=st.data())
def test_a_torn_file_gives_the_whole_records_before_the_tear(
    answers: list[tuple[str, str]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(folder, *((key, {"text": text}) for key, text in answers))
        (file,) = folder.iterdir()
        content = file.read_bytes()
        length = data.draw(st.integers(0, len(content)))
        file.write_bytes(content[:length])
        ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
        # a record whose line break alone is missing is whole
        expected = {key: text for (key, text), end in zip(answers, ends, strict=True) if end - 1 <= length}
        cache = Cache(folder)
        found = {key: cache.answer(key) for key in "abcd"}
        assert found == {key: {"text": expected[key]} if key in expected else None for key in "abcd"}


class Processes(RuleBasedStateMachine):
    """Two processes on one folder, either of which is killed now and then, which may tear its last line."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name) / "cache"
        self.caches = [Cache(self.folder), Cache(self.folder)]
        self.written: dict[str, set[str]] = {key: set() for key in "abcd"}
        self.safe: dict[str, int] = {}  # lines of each file

    @rule(who=st.integers(0, 1), key=KEYS, text=TEXTS)
    def put(self, who: int, key: str, text: str) -> None:
        self.caches[who].put_answer(key, {"text": text})
        self.written[key].add(text)
        assert self.caches[who].answer(key) == {"text": text}

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.caches[who].__exit__(None, None, None)
        self.caches[who] = Cache(self.folder)

    @precondition(lambda self: self.folder.exists())
    @rule(who=st.integers(0, 1), data=st.data())
    def kill(self, who: int, data: st.DataObject) -> None:
        """Cuts the last line of the file that the process has open, anywhere."""
        file = self.caches[who]._file
        if file is not None:
            path = Path(file.name)
            content = path.read_bytes()
            last = content.rstrip(b"\n").rfind(b"\n") + 1
            path.write_bytes(content[: data.draw(st.integers(last, len(content)))])
        self.restart(who)

    @invariant()
    def whatever_is_read_was_written_whole(self) -> None:
        """And every whole line of the files is read."""
        cache = Cache(self.folder)
        for key, texts in self.written.items():
            answer = cache.answer(key)
            assert answer is None or answer["text"] in texts
        lines = [line for path in self.folder.glob("*") for line in path.read_bytes().split(b"\n")[:-1]]
        for line in lines:
            assert cache.answer(json.loads(line)["key"]) is not None

    def teardown(self) -> None:
        for cache in self.caches:
            cache.__exit__(None, None, None)
        self.temporary.cleanup()


TestProcesses = Processes.TestCase
TestProcesses.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
