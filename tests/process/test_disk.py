"""A full disk is named with path and bytes, whatever the library that met it says."""

from __future__ import annotations

import errno
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import safetensors.torch
import torch

from data_prep.atomic import new_folder
from recipe.rerule import errors
from recipe.rerule.process import disk
from tests.small_disk import mounted

ROOM = 512 * 1024
LARGE = torch.zeros(2 * ROOM // 4)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", ROOM // 1024) as folder:
        yield folder


def plain(path: Path) -> None:
    path.write_bytes(bytes(2 * ROOM))


def parquet(path: Path) -> None:
    values = torch.randint(2**62, (ROOM,)).numpy()
    pq.write_table(pa.table({"x": values}), path)


WRITERS: dict[str, Callable[[Path], None]] = {
    "plain": plain,
    "torch": lambda path: torch.save(LARGE, path),
    "safetensors": lambda path: safetensors.torch.save_file({"x": LARGE}, path),
    "parquet": parquet,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_of_ours_names_a_full_disk(small: Path, writer: str) -> None:
    path = small / "part"
    with pytest.raises(disk.DiskFullError) as raised, disk.named(path, needed=lambda: 2 * ROOM):
        WRITERS[writer](path)
    found = re.fullmatch(
        r"the disk is full: (\S+) needs 1,048,576 bytes, and there was room for ([\d,]+)", str(raised.value)
    )
    assert found is not None, raised.value
    assert found[1] == str(path)
    assert int(found[2].replace(",", "")) == pytest.approx(ROOM, rel=0.05)


def test_without_knowing_what_is_needed_it_is_more_than_was_written(small: Path) -> None:
    needed = r"needs more than [\d,]+ bytes, and there was room for"
    with pytest.raises(disk.DiskFullError, match=needed), disk.named(small / "part"):
        plain(small / "part")


def test_a_draft_is_removed_and_its_target_named(small: Path) -> None:
    line = re.escape(f"the disk is full: {small / 'rows'} needs more")
    with pytest.raises(disk.DiskFullError, match=line), new_folder(small / "rows", overwrite=False) as draft:
        plain(draft / "train.parquet")
    assert list(small.iterdir()) == []


def test_torchs_words_with_room_left_are_no_full_disk(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unexpected pos"), disk.named(tmp_path):
        raise RuntimeError("unexpected pos 64 vs 0")


def test_a_workers_full_disk_is_seen_through_ray(tmp_path: Path) -> None:
    cause = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(disk.DiskFullError), disk.named(tmp_path):
        raise ray.exceptions.RayTaskError("save_checkpoint", "a long traceback", cause)


def test_the_line_is_the_same_through_ray() -> None:
    cause = disk.DiskFullError("the disk is full: run/global_step_7 needs 10 bytes, and there was room for 1")
    assert errors.describe(ray.exceptions.RayTaskError("run", "trace", cause)) == str(cause)


@pytest.mark.parametrize("writer", ["plain", "torch"])
def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path, writer: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        limit = r"larger than this process may write \(ulimit -f\)"
        with pytest.raises(disk.DiskFullError, match=limit), disk.named(tmp_path / "part"):
            WRITERS[writer](tmp_path / "part")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("error", [ValueError("bad row"), PermissionError(errno.EACCES, "denied")])
def test_other_failures_pass(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, disk.named(tmp_path):
        raise error
    assert raised.value is error
