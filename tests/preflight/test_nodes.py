"""When a cluster is refused, without one, and what a node sees; tests/e2e/test_nodes.py has real nodes."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from omegaconf import DictConfig
from ray.exceptions import GetTimeoutError, RayError

from recipe.rerule.preflight import nodes, seen_files
from recipe.rerule.preflight.seen_files import Seen
from tests.document_programs import composed
from tests.e2e.stack import free_address

ONE_NODE = {"GPU": 2.0, "CPU": 7.0}


@pytest.fixture(autouse=True)
def no_address_and_no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(seen_files, "SHARED_SECONDS", 0.0)


def config(*overrides: str) -> DictConfig:
    return composed("recipe.rerule.main", ("platform=cpu", *overrides))


def wanted(nodes_wanted: int = 2, devices: int = 2, queue_cpus: int = 0) -> nodes.Wanted:
    return nodes.Wanted(nodes_wanted, devices, device="GPU", cpus=3 * devices + 1, queue_cpus=queue_cpus)


def node(name: str, total: Mapping[str, float], free: Mapping[str, float]) -> nodes.Node:
    return nodes.Node(id=name, name=f"host-{name} (10.0.0.{name})", total=total, free=free)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ([ONE_NODE, ONE_NODE], None),
        ([{"GPU": 4.0, "CPU": 14.0}], None),  # two groups on one large node
        ([ONE_NODE], "room for 1 of the run's 2 nodes"),
        ([ONE_NODE, {"GPU": 1.0, "CPU": 64.0}], "room for 1 of the run's 2 nodes"),
        ([ONE_NODE, {"GPU": 2.0, "CPU": 6.0}], "room for 1 of the run's 2 nodes"),
        ([{"CPU": 64.0}, {"CPU": 64.0}], "room for 0 of the run's 2 nodes"),
        ([], "room for 0 of the run's 2 nodes"),
    ],
)
def test_each_node_needs_what_verl_asks_for(resources: list[dict[str, float]], expected: str | None) -> None:
    assert nodes.lack(wanted(), resources) == expected
    if expected is None and len(resources) == 2:  # the queue of V1 needs processors of its own
        assert nodes.lack(wanted(queue_cpus=2), resources) == "14 of the 16 processors that the run needs"
        assert nodes.lack(wanted(queue_cpus=2), [*resources, {"CPU": 2.0}]) is None


def test_what_a_run_wants_is_what_verl_reserves() -> None:
    """A device comes with three processors (verl 0.9.1); V1's queue has a controller and its storage."""
    settings = config("trainer.nnodes=2", "trainer.n_gpus_per_node=4")
    assert nodes.wanted_of(settings) == nodes.Wanted(nodes=2, devices=4, device="GPU", cpus=13, queue_cpus=0)
    settings = config("trainer.use_v1=true", "transfer_queue.backend.SimpleStorage.num_data_storage_units=8")
    assert nodes.wanted_of(settings).queue_cpus == 9


def test_a_cluster_that_is_too_small_and_one_that_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(nodes, "_nodes", lambda: [node("1", ONE_NODE, ONE_NODE)])
    with pytest.raises(ValueError, match="has room for 1 of") as refused:
        nodes._require_room(wanted(), "head:1")
    assert str(refused.value) == (
        "the Ray cluster at head:1 has room for 1 of the run's 2 nodes: trainer.nnodes is 2, and a node "
        "needs 2 free devices (trainer.n_gpus_per_node) and 7 free processors; there are 2 of 2 "
        "devices free and 7 of 7 processors free on host-1 (10.0.0.1); start Ray with more, or ask for less; "
        "see docs/running.md#several-nodes"
    )
    used = node("2", ONE_NODE, {"CPU": 1.0})
    monkeypatch.setattr(nodes, "_nodes", lambda: [node("1", ONE_NODE, ONE_NODE), used])
    with pytest.raises(ValueError, match=r"0 of 2 devices free .* wait for those who use the rest"):
        nodes._require_room(wanted(), "head:1")


def test_what_a_run_that_has_just_ended_used_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([{}, ONE_NODE])
    monkeypatch.setattr(nodes, "_nodes", lambda: [node("1", ONE_NODE, next(looks))])
    nodes._require_room(wanted(nodes_wanted=1), "head:1")
    assert next(looks, None) is None


def test_a_run_with_a_cluster_of_its_own_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.ray, "init", Mock(side_effect=AssertionError("the cluster was joined")))
    nodes.check(config())
    nodes.check(config("+ray_kwargs.ray_init.address=local"))
    with pytest.raises(ValueError, match=r"trainer.nnodes is 2, but .*address=local"):
        nodes.check(config("trainer.nnodes=2", "+ray_kwargs.ray_init.address=local"))


def test_where_no_cluster_runs_or_answers_a_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    address = free_address()
    with pytest.raises(ValueError, match=rf"answers at {address} \(Connection refused\)"):
        nodes.check(config(f"+ray_kwargs.ray_init.address={address}"))
    nothing = Mock(side_effect=ConnectionError("Could not find any running Ray instance."))
    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address_or_die", nothing)
    with pytest.raises(ValueError, match="no Ray cluster runs on this machine; start one"):
        nodes.check(config("trainer.nnodes=2"))


PATHS = {"data.train_files": ["/a", "/b"]}
HERE = {"/a": {"": "1"}, "/b": {"": "2"}}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Seen(True, None, HERE), None),
        (Seen(True, "Read-only file system", {}), r"host-2 \(10.0.0.2\) cannot write there \(Read"),
        (Seen(False, None, {}), r"host-2 \(10.0.0.2\) sees another folder there than this machine"),
        # It read the word and wrote, but on a layer of its own.
        (Seen(True, None, {}), r"host-2 \(10.0.0.2\) sees another folder there"),
        (
            Seen(True, None, {**HERE, "/b": {"": "3"}}),
            r"data.train_files is /b, and node host-2 .* another file",
        ),
    ],
)
def test_what_is_not_the_same_on_a_node_is_named(seen: Seen, expected: str | None, tmp_path: Path) -> None:
    if seen.digests:
        (tmp_path / "2").write_text("word")
    other = node("2", ONE_NODE, ONE_NODE)
    with pytest.raises(ValueError, match=expected) if expected else contextlib.nullcontext():
        nodes.require_same(PATHS, HERE, other, seen, "/run", tmp_path / "2", "word")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            RayError("The function failed\n\nModuleNotFoundError: No module named 'recipe'\n\n"),
            "No module named",
        ),
        (RayError(""), "RayError"),
        (GetTimeoutError(), "did not say within 120 s what it sees"),
    ],
)
def test_a_node_that_cannot_look_is_named(error: Exception, line: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(nodes.ray, "get", Mock(side_effect=error))
    with pytest.raises(ValueError, match=rf"^node host-2 [^\n]*{line}[^\n]*$"):
        nodes._answer(node("2", ONE_NODE, ONE_NODE), None)


# What a machine sees of the files of a run; two folders of this machine stand for two machines.


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
