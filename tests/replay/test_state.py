from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, load, save
from tests.replay.groups import contents
from tests.replay.runs import configs, offers, train_step

RUN = {"model": "tiny", "rollout.n": 8}


def config(**changes: object) -> ReplayConfig:
    base = {"min_groups": 4, "warmup_steps": 3, "capacity": 9, "groups_per_update": 4, "seed": 7}
    return ReplayConfig.from_dict({**base, **changes})


def filled(steps: int = 6, **changes: object) -> Replay:
    """Groups uneven in every extent, with and without a reference, and some draws."""
    replay = Replay(config(admission="all", **changes))
    for step in range(1, steps + 1):
        train_step(replay, [step % 5, 1, 3, 4][: 1 + step % 4], step)
    return replay


def snapshot(replay: Replay) -> dict[str, Any]:
    """All of a state, in a form that compares with ==."""
    taken = replay.state_dict()
    groups = [(stored.reuse_count, contents(stored.group())) for stored in taken.pop("groups")]
    return {**taken, "groups": groups}


@settings(deadline=None, max_examples=settings.default.max_examples // 4)
@given(config=configs(), run=offers(12, minimum=12), ranks=st.integers(1, 2))
def test_run_saved_at_any_step_continues_as_if_never_stopped(
    config: ReplayConfig, run: list[list[int]], ranks: int
) -> None:
    never_saved, saved = Replay(config), Replay(config)
    expected = [train_step(never_saved, kinds, step, ranks) for step, kinds in enumerate(run, start=1)]
    with tempfile.TemporaryDirectory() as folder:
        for stop in range(len(run) + 1):
            if stop > 0:
                train_step(saved, run[stop - 1], stop, ranks)
            save(saved, folder)
            resumed = Replay(config)
            load(resumed, folder)
            assert snapshot(resumed) == snapshot(saved)
            for step in range(stop + 1, len(run) + 1):
                assert train_step(resumed, run[step - 1], step, ranks) == expected[step - 1]
            assert snapshot(resumed) == snapshot(never_saved)


def test_load_replaces_what_was_there_and_saving_changes_nothing(tmp_path: Path) -> None:
    """Of an empty replay too; missing folders are made."""
    replay = filled()
    before = snapshot(replay)
    assert before["gate_open"] is True
    folder = str(tmp_path / "global_step_5" / "replay")
    save(replay, folder)
    assert snapshot(replay) == before
    other = filled(steps=2, sampling="uniform")
    load(other, folder)
    assert snapshot(other) == before
    save(Replay(config()), tmp_path)
    load(other, tmp_path)
    assert snapshot(other) == snapshot(Replay(config()))


def test_open_gate_stays_open_over_a_load(tmp_path: Path) -> None:
    save(filled(), tmp_path)
    replay = Replay(config(min_groups=9, warmup_steps=10_000))
    load(replay, tmp_path)
    assert replay.gate.is_open
    assert len(replay.draw(7)) == 4


@pytest.mark.parametrize(
    ("run", "setting", "had", "has"),
    [
        ({"model": "tiny", "rollout.n": 4}, "rollout.n", "8", "4"),
        ({"model": "other", "rollout.n": 4}, "model", "tiny", "other"),  # the first by name
        ({"model": "tiny"}, "rollout.n", "8", "None"),
        ({**RUN, "response_length": 64}, "response_length", "None", "64"),
        (None, "model", "tiny", "None"),
    ],
)
def test_state_of_another_run_is_refused_and_nothing_changes(
    run: dict[str, Any] | None, setting: str, had: str, has: str, tmp_path: Path
) -> None:
    save(filled(), tmp_path, RUN)
    load(Replay(config()), tmp_path, dict(reversed(RUN.items())))
    replay = filled(steps=2)
    before = snapshot(replay)
    with pytest.raises(ReplayStateError) as caught:
        load(replay, tmp_path, run)
    assert str(caught.value) == (
        f"the replay buffer in {tmp_path} was saved with {setting} {had}, and this run has {has}; go on with "
        "the same, or pass replay.restore=false to start with an empty buffer"
    )
    assert snapshot(replay) == before


def test_folder_holds_only_formats_that_execute_nothing(tmp_path: Path) -> None:
    save(filled(), tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]
    json.loads((tmp_path / "state.json").read_text())
    (tensors,) = tmp_path.glob("*.safetensors")
    header_length = int.from_bytes(tensors.read_bytes()[:8], "little")
    header = json.loads(tensors.read_bytes()[8 : 8 + header_length])
    assert "old_log_probs" in header


def test_what_earlier_saves_left_behind_is_removed_and_other_files_are_not(tmp_path: Path) -> None:
    replay = filled()
    save(replay, tmp_path)
    kept = {path.name for path in tmp_path.iterdir()} | {"notes.txt"}
    leftovers = ["groups-0123.safetensors", "groups-0123.safetensors.tmp", "state.json.tmp"]
    for name in (*leftovers, "notes.txt"):
        (tmp_path / name).write_text("x")
    train_step(replay, [1, 4], 7)
    save(replay, tmp_path)
    assert len(list(tmp_path.iterdir())) == len(kept) == 3
    assert "notes.txt" in {path.name for path in tmp_path.iterdir()}
    loaded = Replay(config())
    load(loaded, tmp_path)
    assert snapshot(loaded) == snapshot(replay)


def test_every_file_reaches_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, os.replace

    def seen_fsync(descriptor: int) -> None:
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def seen_replace(source: Path, target: Path) -> None:
        events.append(("name", target.suffix))
        replace(source, target)

    replay = filled()
    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    save(replay, tmp_path / "replay")
    monkeypatch.undo()
    (tensors,) = (tmp_path / "replay").glob("*.safetensors")
    assert events == [
        ("sync", tmp_path.name),
        ("sync", f"{tensors.name}.tmp"),
        ("name", ".safetensors"),
        ("sync", "replay"),
        ("sync", "state.json.tmp"),
        ("name", ".json"),
        ("sync", "replay"),
    ]


class DiskFullError(OSError):
    """Raised by the faults below only."""


@pytest.mark.parametrize("name", ["replace", "fsync"])
@pytest.mark.parametrize("earlier", [True, False], ids=["over an earlier save", "first save"])
def test_failing_at_any_system_call_never_leaves_half_a_state(
    name: str, earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(os, name)
    older, newer = filled(steps=4), filled(steps=6)
    complete = (snapshot(older), snapshot(newer))
    failing_at, failed = 0, True
    while failed:
        folder = tmp_path / str(failing_at)
        if earlier:
            save(older, folder)
        calls = 0

        def faulty(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > failing_at:  # noqa: B023  # called within this turn of the loop only
                raise DiskFullError
            return original(*arguments)

        monkeypatch.setattr(os, name, faulty)
        try:
            save(newer, folder)
            failed = False
        except DiskFullError:
            failed = True
        monkeypatch.undo()
        loaded = Replay(config())
        if earlier or not failed:
            load(loaded, folder)
            assert snapshot(loaded) in (complete if failed else complete[1:])
        elif not (folder / "state.json").exists():
            with pytest.raises(ReplayStateError, match="no complete replay state"):
                load(loaded, folder)
        save(newer, folder)
        assert len(list(folder.iterdir())) == 2  # nothing is left over from the failed attempt
        failing_at += 1
    assert failing_at >= 3  # at least two calls were made to fail


@pytest.mark.parametrize("pattern", ["state.json", "*.safetensors"])
@pytest.mark.parametrize("damage", ["deleted", "empty", "one byte", "half", "one byte short", "one bit"])
def test_torn_files_are_refused_and_nothing_is_loaded(pattern: str, damage: str, tmp_path: Path) -> None:
    save(filled(), tmp_path)
    (path,) = tmp_path.glob(pattern)
    data = path.read_bytes()
    if damage == "one bit":
        position = data.index(b'"groups_sha256": "') + 20 if pattern == "state.json" else len(data) // 2
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
    elif damage == "deleted":
        path.unlink()
    else:
        kept = {"empty": 0, "one byte": 1, "half": len(data) // 2, "one byte short": len(data) - 1}[damage]
        path.write_bytes(data[:kept])
    replay = Replay(config())
    before = snapshot(replay)
    with pytest.raises(ReplayStateError, match=str(tmp_path)) as caught:
        load(replay, tmp_path)
    assert "\n" not in str(caught.value)
    assert snapshot(replay) == before


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(data=st.data())
def test_any_damaged_byte_is_refused_in_one_line_or_loads_a_whole_state(
    data: st.DataObject, complete_state: Path
) -> None:
    """Bytes of the record: a changed number cannot be told, but nothing may fail half-way or unexplained."""
    folder, record = complete_state, complete_state.with_suffix(".record").read_bytes()
    position = data.draw(st.integers(0, len(record) - 1))
    damaged = bytearray(record)
    damaged[position] = data.draw(st.integers(0, 255) | st.sampled_from(b'0123456789-.eE," '))
    (folder / "state.json").write_bytes(damaged)
    replay = Replay(config())
    before = snapshot(replay)
    try:
        load(replay, folder)
    except ReplayStateError as error:
        told = str(error)
    else:
        told = ""
        assert len(replay.buffer) == 9
    assert "\n" not in told
    assert told == "" or snapshot(replay) == before


@pytest.fixture(scope="module")
def complete_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a saved state; beside it, with suffix .record, the bytes of its record."""
    folder = tmp_path_factory.mktemp("state")
    save(filled(), folder)
    folder.with_suffix(".record").write_bytes((folder / "state.json").read_bytes())
    return folder


def test_missing_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplayStateError) as caught:
        load(Replay(config()), tmp_path / "nowhere")
    assert str(caught.value) == (
        f"{tmp_path}/nowhere/state.json does not exist: no complete replay state was saved there; use "
        "another checkpoint, or pass replay.restore=false to start with an empty buffer"
    )


def test_each_damage_is_told_by_its_own_words(tmp_path: Path) -> None:
    save(filled(), tmp_path)
    (tensors,) = tmp_path.glob("*.safetensors")
    whole = tensors.read_bytes()
    refusals = []
    for content in (whole + b"more", None):
        tensors.unlink() if content is None else tensors.write_bytes(content)
        refusals.append(refusal(tmp_path))
    assert refusals == [
        f"{tensors} is damaged: its checksum is wrong; use another checkpoint",
        f"{tensors} does not exist, though state.json names it; use another checkpoint",
    ]
    (tmp_path / "state.json").write_text("{")
    assert re.fullmatch(rf"{tmp_path}/state.json is damaged: .+; use another checkpoint", refusal(tmp_path))
    (tmp_path / "state.json").write_text("[]")
    assert "has format version None" in refusal(tmp_path)
    foreign = b"PK\x03\x04 not safetensors at all"
    digest = hashlib.sha256(foreign).hexdigest()
    save(filled(), tmp_path)
    (tmp_path / f"groups-{digest[:16]}.safetensors").write_bytes(foreign)
    edit(tmp_path, lambda record: record.update(groups_sha256=digest))
    assert "is not a safetensors file: " in refusal(tmp_path)


def refusal(folder: Path) -> str:
    with pytest.raises(ReplayStateError) as caught:
        load(Replay(config()), folder)
    return str(caught.value)


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "state.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


EDITS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda record: record.update(format_version=2), "has format version 2; this program reads 3"),
    (lambda record: record.pop("format_version"), "has format version None"),
    (lambda record: record.pop("rng"), "is damaged: its keys are ['draws', 'format_version', 'gate_open', "),
    (lambda record: record.update(more=1), "'modes', 'more', 'rng', 'rules', 'run', 'sides', "),
    (lambda record: record["draws"].append(1), "does not hold whole rollout groups"),
    (lambda record: record["modes"].pop(), "does not hold whole rollout groups"),
    (lambda record: record["sides"].pop(), "does not hold whole rollout groups"),
    (lambda record: record["sides"].__setitem__(0, "reject"), "side is 'reject'"),
    (lambda record: record["rng"].pop("sampling"), "state of the sampling generator is not readable"),
]


@pytest.mark.parametrize(("change", "reason"), EDITS, ids=[reason for _, reason in EDITS])
def test_records_of_another_shape_are_refused(
    change: Callable[[dict[str, Any]], object], reason: str, tmp_path: Path
) -> None:
    save(filled(), tmp_path)
    edit(tmp_path, change)
    replay = Replay(config())
    before = snapshot(replay)
    with pytest.raises(ReplayStateError) as caught:
        load(replay, tmp_path)
    assert reason in str(caught.value)
    assert snapshot(replay) == before


def test_smaller_capacity_is_refused_and_larger_accepted(tmp_path: Path) -> None:
    replay = filled()
    assert len(replay.buffer) == 9
    save(replay, tmp_path)
    with pytest.raises(ReplayStateError, match=r"holds 9 groups but replay\.capacity is 8"):
        load(Replay(config(capacity=8)), tmp_path)
    larger = Replay(config(capacity=10))
    load(larger, tmp_path)
    assert len(larger.buffer) == 9
