"""Errors in one line, JSON that others wrote, atomic writes, a full disk, and folders that appear whole."""

import errno
import json
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from ray.exceptions import RayTaskError

from recipe.rerule import io
from recipe.rerule.io import (
    DATA,
    MOST_LEVELS,
    OwnershipError,
    check_owned,
    is_finite,
    new_folder,
    parse_json,
    stamp,
    stamp_folder,
)
from tests.checkpoint_faults import in_child
from tests.data_prep.raw_files import contents
from tests.small_disk import mounted

# ---- errors and warnings ----


def test_the_named_kinds_become_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_, io.one_line(ValueError, code=2):
        raise ValueError("first\n  second")
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "error: first second\n"
    with pytest.raises(KeyError), io.one_line(ValueError, code=2):
        raise KeyError("x")
    io.warn("replay.warmup_steps is 15,\n  but the run has 3 steps")
    assert capsys.readouterr().err == "warning: replay.warmup_steps is 15, but the run has 3 steps\n"


DRAFT = ".mine.draft-01ab23cd/draft"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "a/b.csv"), "a/b.csv: no such file or directory"),
        (PermissionError(13, "Permission denied"), "permission denied"),
        (RuntimeError("died", "died"), "RuntimeError: died"),  # as Ray rebuilds it
        (RayTaskError("run", "a long traceback", RuntimeError("0 is dead")), "RuntimeError: 0 is dead"),
        (RayTaskError("run", "trace", io.DiskFullError("the disk is full")), "the disk is full"),
        (OSError(18, "Bad link", f"a/{DRAFT}", None, "a/mine"), "a/mine and a/mine: bad link"),
        (ValueError(f"a/{DRAFT}/train.parquet: row 3"), "a/mine/train.parquet: row 3"),
        (ValueError(f"'{DRAFT}' is bad"), "'mine' is bad"),
        (ValueError("a/.mine.draft/b: row 3"), "a/.mine.draft/b: row 3"),
    ],
)
def test_an_error_in_one_line(error: Exception, line: str) -> None:
    assert io.describe(error) == line


# ---- JSON ----


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ('{"a": [1, 2', "is not complete JSON: it is cut off in line 1"),
        ('{"a": 1,\n"b": "x', "is not complete JSON: it is cut off in line 2"),
        ("hello", "is not JSON: expecting value in line 1"),
        ("{} x", "is not JSON: extra data in line 1"),
        ('{"a" 1}', "is not JSON: expecting ':' delimiter in line 1"),
        ("[" * 10_000, "is nested too deeply"),
        ("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), "is nested too deeply"),
        ('{"a": ' * (MOST_LEVELS + 1) + "1" + "}" * (MOST_LEVELS + 1), "is nested too deeply"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "has the key 'c' twice in one object"),
        ("[NaN]", "holds NaN, which is no number of JSON"),
        ("1" * 5000, "holds a number of too many digits"),
        (b"[\xff]", "is not text in UTF-8 (byte 2)"),
        ('["\\ud800"]', "holds half of a surrogate pair, which is no character"),
    ],
)
def test_what_is_wrong_is_said(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_json(text)
    assert str(refused.value) == reason


def test_what_is_right_is_read() -> None:
    deep = "[" * MOST_LEVELS + "]" * MOST_LEVELS
    assert json.dumps(parse_json(deep)) == deep
    assert parse_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
    assert parse_json("[NaN]", nan=True)[0] != parse_json("[NaN]", nan=True)[0]


@pytest.mark.parametrize(
    ("value", "finite"),
    [
        *((1, True), (0.5, True), (True, False), ("1", False), (None, False), (float("nan"), False)),
        *((float("inf"), False), (10**400, False), (-(10**300), True)),
    ],
)
def test_numbers_that_a_float_holds(value: object, finite: bool) -> None:
    assert is_finite(value) is finite


# ---- files ----


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    """tests/runs/test_checkpoints.py has the order in which new content is flushed and takes the place."""
    file = tmp_path / "state.json"
    io.write(file, b"old")
    with pytest.raises(TypeError), io.replacing(file) as draft:
        draft.open("xb").write("text")  # fails within the block
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_lines_are_json_of_any_character(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    records = [{"text": "Zo\u00eb\u2028\n"}, {"number": 0.1}]
    for record in records:
        io.append_line(file, record)
    assert file.read_text("utf-8") == io.json_lines(records)
    assert [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] == records
    with pytest.raises(ValueError, match="not JSON compliant"):
        io.json_lines([{"number": float("nan")}])
    io.append_line(tmp_path / "records.jsonl", {"number": float("nan")})
    assert (tmp_path / "records.jsonl").read_text() == '{"number": NaN}\n'


@pytest.mark.parametrize(
    ("content", "kept"),
    [(b"{}\n", b"{}\n"), (b"{}\n{}", b"{}\n"), (b'{"a', b""), (b"{}\n\n", b"{}\n\n"), (None, None)],
)
def test_a_torn_line_is_cut_off(tmp_path: Path, content: bytes | None, kept: bytes | None) -> None:
    file = tmp_path / "lines.jsonl"
    if content is not None:
        file.write_bytes(content)
    io.drop_torn_line(file)
    assert (file.read_bytes() if file.exists() else None) == kept


# ---- a full disk ----

ROOM = 512 * 1024
LARGE = torch.zeros(2 * ROOM // 4)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", ROOM // 1024) as folder:
        yield folder


WRITERS: dict[str, Callable[[Path], object]] = {
    "plain": lambda path: path.write_bytes(bytes(2 * ROOM)),
    "torch": lambda path: torch.save(LARGE, path),
    "safetensors": lambda path: safetensors.torch.save_file({"x": LARGE}, path),
    "parquet": lambda path: pq.write_table(pa.table({"x": torch.rand(2 * ROOM).numpy()}), path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_of_ours_names_a_full_disk(small: Path, writer: str) -> None:
    path = small / "part"
    with pytest.raises(io.DiskFullError) as raised, io.naming_full_disk(path, needed=lambda: 2 * ROOM):
        WRITERS[writer](path)
    found = re.fullmatch(
        r"the disk is full: (\S+) needs 1,048,576 bytes, and there was room for ([\d,]+)", str(raised.value)
    )
    assert found is not None, raised.value
    assert found[1] == str(path)
    assert int(found[2].replace(",", "")) == pytest.approx(ROOM, rel=0.05)


def test_a_draft_is_removed_and_its_target_named(small: Path) -> None:
    line = re.escape(f"the disk is full: {small / 'rows'} needs more")
    with pytest.raises(io.DiskFullError, match=line), io.new_folder(small / "rows", overwrite=False) as draft:
        (draft / "train.parquet").write_bytes(bytes(2 * ROOM))
    assert list(small.iterdir()) == []


@pytest.mark.parametrize("writer", ["plain", "torch"])
def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path, writer: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        limit = r"larger than this process may write \(ulimit -f\)"
        with pytest.raises(io.DiskFullError, match=limit), io.naming_full_disk(tmp_path / "part"):
            WRITERS[writer](tmp_path / "part")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EACCES, "denied"), PermissionError),
        (RuntimeError("unexpected pos 64 vs 0"), RuntimeError),  # torch's words, with room left
        (RayTaskError("save_checkpoint", "a long traceback", FULL), io.DiskFullError),
    ],
)
def test_a_full_disk_is_told_from_others(error: Exception, kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind), io.naming_full_disk(tmp_path):
        raise error


# ---- folders that appear whole ----


def fill(folder: Path, text: str) -> None:
    """A file and the marker that names it."""
    (folder / "rows.txt").write_text(text)
    (folder / "manifest.json").write_text(json.dumps(stamp_folder(DATA, folder)))


def build(target: Path, then: Callable[[Path], object] = lambda draft: None, overwrite: bool = True) -> None:
    """A command that writes a folder, and does something else before it is put in place."""
    with new_folder(target, overwrite) as draft:
        assert target.resolve().parent in draft.parents
        fill(draft, "new")
        then(draft)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder of ours, with what is to stay whatever happens."""
    (tmp_path / "world").mkdir()
    fill(tmp_path / "world", "old")
    return tmp_path / "world"


@pytest.fixture(params=["exchanged in one step", "moved away and put in place"])
def _swapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of replacing a folder; the second is that of file systems that know no exchange."""
    if request.param.startswith("moved"):
        monkeypatch.setattr(io, "exchange", lambda one, other: False)


@pytest.mark.usefixtures("_swapping")
def test_a_folder_appears_whole_and_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "world"
    build(target, lambda draft: (draft / "more.txt").touch() or fill(draft, "old"), overwrite=False)
    assert sorted(os.listdir(target)) == ["manifest.json", "more.txt", "rows.txt"]
    (target.parent / "link").symlink_to(target)
    build(target.parent / "link")  # the folder it leads to is replaced, and the link stays
    assert sorted(os.listdir(target)) == ["manifest.json", "rows.txt"]
    assert (target / "rows.txt").read_text() == "new"
    assert (target.parent / "link").is_symlink()
    assert sorted(os.listdir(target.parent)) == ["link", "world"]


@pytest.mark.parametrize(
    ("target", "overwrite", "appears", "reason"),
    [
        ("world", True, None, "stop"),
        ("world", False, None, "exists already"),
        ("world", True, "world/mine.txt", r"mine\.txt is not named"),
        ("new", False, "new/mine.txt", "exists already"),
    ],
)
def test_what_is_refused_or_fails_leaves_everything_as_it_was(
    target: str, overwrite: bool, appears: str | None, reason: str, world: Path
) -> None:
    """`appears` is written by somebody else meanwhile; without it the command fails."""

    def then(_: Path) -> None:
        if appears is None:
            raise ValueError("stop")
        (world.parent / appears).parent.mkdir(exist_ok=True)
        (world.parent / appears).write_text("mine")

    before = contents(world.parent)
    with pytest.raises(ValueError, match=reason):
        build(world.parent / target, then, overwrite)
    assert contents(world.parent) == before | ({appears: b"mine"} if appears else {})


@pytest.mark.usefixtures("_swapping")
def test_a_file_that_appears_at_the_last_moment_is_kept_and_its_place_named(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = io.remove_owned

    def remove_late(folder: Path, paths: list[str]) -> None:
        (folder / "mine.txt").write_text("mine")
        remove(folder, paths)

    monkeypatch.setattr(io, "remove_owned", remove_late)
    with pytest.raises(ValueError, match="files that appeared") as caught:
        build(world)
    kept = Path(str(caught.value).split(" holds ")[0])
    assert (world / "rows.txt").read_text() == "new"
    monkeypatch.setattr(io, "remove_owned", remove)
    build(world)
    assert sorted(os.listdir(kept)) == ["mine.txt"]


@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()], ids=repr)
def test_an_error_between_two_moves_puts_the_old_folder_back(
    error: BaseException, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(io, "exchange", lambda one, other: False)
    rename = Path.rename

    def fail(self: Path, other: Path) -> Path:
        if self.name == "draft":
            raise error
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(type(error)):
        build(world)
    assert (world / "rows.txt").read_text() == "old"
    assert sorted(os.listdir(world.parent)) == ["world"]
    assert "world is back" in capsys.readouterr().err


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def replace_and_die(target: Path, moment: str) -> None:
    """Replace a folder in a process that is killed at this moment."""
    if moment == "between two moves":
        io.exchange = lambda one, other: False
        rename = Path.rename
        Path.rename = lambda self, other: kill() if self.name == "draft" else rename(self, other)  # type: ignore
    if moment == "before the old one goes":
        io.remove_owned = kill
    build(target, kill if moment == "while the draft is written" else lambda _: None)


LEFT = {"while the draft is written": "old", "between two moves": None, "before the old one goes": "new"}


@pytest.mark.parametrize(("moment", "left"), LEFT.items())
def test_a_kill_loses_nothing_and_the_next_command_leaves_no_draft(
    moment: str, left: str | None, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (world.parent / ".world.draft-mine").mkdir()
    (world.parent / ".world.draft-mine" / "draft").write_text("mine")
    assert in_child(lambda: replace_and_die(world, moment)) == -signal.SIGKILL
    assert ((world / "rows.txt").read_text() if world.exists() else None) == left
    assert len(os.listdir(world.parent)) == (3 if left else 2)
    with pytest.raises(ValueError, match="exists already"):
        build(world, overwrite=False)
    assert (world / "rows.txt").read_text() == (left or "old")
    assert ("world is back" in capsys.readouterr().err) == (left is None)
    assert sorted(os.listdir(world.parent)) == [".world.draft-mine", "world"]


def test_the_draft_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    with new_folder(tmp_path / "world", overwrite=False) as first:
        build(tmp_path / "world", overwrite=False)
        assert first.is_dir()
        io.remove_owned(tmp_path / "world", os.listdir(tmp_path / "world"))
    assert sorted(os.listdir(tmp_path / "world")) == []


OURS = stamp(DATA, ["train.parquet", "model/config.json", "a[1].txt", "linked/x"])


def put(folder: Path, *names: str) -> Path:
    """A folder with the manifest OURS and files; a name that ends in "/" is an empty folder."""
    out = folder / "out"
    out.mkdir()
    (out / "manifest.json").write_text(json.dumps(OURS))
    for name in names:
        (out / name).parent.mkdir(exist_ok=True)
        if name == "linked":
            (out / name).symlink_to(folder)
        else:
            (out / name).mkdir() if name.endswith("/") else (out / name).write_text(name)
    return out


def test_a_folder_that_holds_what_is_named_is_ours(tmp_path: Path) -> None:
    assert check_owned(tmp_path, DATA) == []  # nothing of anyone's
    files = ["a[1].txt", "model/config.json", "train.parquet"]
    assert sorted(check_owned(put(tmp_path, *files), DATA)) == sorted(["manifest.json", *files])


@pytest.mark.parametrize(
    "name", [".hidden", "model/notes.txt", "train.parquet.bak", "empty/", "a1.txt", "linked"]
)
def test_a_file_that_is_not_named_is_named_in_the_refusal(name: str, tmp_path: Path) -> None:
    folder = put(tmp_path, "train.parquet", name)
    with pytest.raises(OwnershipError, match=f"^{folder / name}[^\n]*$"):
        check_owned(folder, DATA)
