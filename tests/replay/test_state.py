"""The saved state: a run goes on as if never stopped, and no damage is loaded or half of a state left."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, load, save
from recipe.rerule.replay.state import read_record
from tests.replay import own_rules
from tests.replay.groups import contents, keys
from tests.replay.runs import PAPER, configs, offered, offers, steps, train_step

RUN = {"model": "tiny", "rollout.n": 8, "temperature": 0.7}


def empty(**changes: Any) -> Replay:
    base = {"min_groups": 4, "warmup_steps": 3, "capacity": 9, "groups_per_update": 4, "seed": 7}
    return Replay(ReplayConfig(**{**base, **changes}))


def filled(steps: int = 6, **changes: Any) -> Replay:
    """Groups uneven in every extent, with and without a reference, and some draws."""
    replay = empty(admission="all", **changes)
    for step in range(1, steps + 1):
        train_step(replay, [step % 5, 1, 3, 4][: 1 + step % 4], step)
    return replay


def snapshot(replay: Replay) -> dict[str, Any]:
    """All of a state, in a form that compares with ==."""
    taken = replay.state_dict()
    groups = [(stored.reuse_count, contents(stored.group())) for stored in taken.pop("groups")]
    return {**taken, "groups": groups}


def loaded(folder: Path) -> dict[str, Any]:
    replay = empty()
    load(replay, folder)
    return snapshot(replay)


def refusal(folder: Path, run: dict[str, Any] | None = None) -> str:
    """Why the state in the folder is not loaded: one line; the replay is as it was."""
    replay = filled(steps=2)
    before = snapshot(replay)
    with pytest.raises(ReplayStateError) as caught:
        load(replay, folder, run)
    assert snapshot(replay) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@settings(deadline=None, max_examples=settings.default.max_examples // 4)
@given(config=configs(), run=offers(12, minimum=12), ranks=st.integers(1, 2))
def test_a_run_saved_at_any_step_continues_as_if_never_stopped(
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
    save(empty(), tmp_path)
    load(other, tmp_path)
    assert snapshot(other) == snapshot(empty())


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
def test_the_state_of_another_run_is_refused(
    run: dict[str, Any] | None, setting: str, had: str, has: str, tmp_path: Path
) -> None:
    save(filled(), tmp_path, RUN)
    load(empty(), tmp_path, dict(reversed(RUN.items())))
    assert refusal(tmp_path, run) == (
        f"the replay buffer in {tmp_path} was saved with {setting} {had}, and this run has {has}; go on with "
        "the same, or pass replay.restore=false to start with an empty buffer"
    )


def test_the_folder_holds_only_formats_that_execute_nothing_and_no_leftovers(tmp_path: Path) -> None:
    """Other files stay."""
    replay = filled()
    save(replay, tmp_path)
    for name in ("groups-0123.safetensors", "groups-0123.safetensors.tmp", "state.json.tmp", "notes.txt"):
        (tmp_path / name).write_text("x")
    train_step(replay, [1, 4], 7)
    save(replay, tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors", ".txt"]
    json.loads((tmp_path / "state.json").read_text())
    (tensors,) = tmp_path.glob("*.safetensors")
    length = int.from_bytes(tensors.read_bytes()[:8], "little")
    assert "0.old_log_probs" in json.loads(tensors.read_bytes()[8 : 8 + length])
    assert loaded(tmp_path) == snapshot(replay)


@pytest.mark.parametrize("named", [0, 1])
def test_a_save_that_fails_leaves_the_earlier_state(
    named: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends before its first file has its name, or its second."""
    older = filled(steps=4)
    save(older, tmp_path)
    calls = [os.replace] * named
    monkeypatch.setattr(os, "replace", lambda *paths: calls.pop()(*paths))
    with pytest.raises(IndexError):
        save(filled(steps=6), tmp_path)
    assert loaded(tmp_path) == snapshot(older)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    save(filled(), folder)
    return folder


@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(data=st.data())
def test_any_damaged_byte_is_refused_in_one_line_or_loads_a_whole_state(
    data: st.DataObject, saved: Path
) -> None:
    """Bytes of the record: a changed number cannot be told, but nothing may fail half-way or unexplained."""
    record = (saved / "state.json").read_bytes()
    position = data.draw(st.integers(0, len(record) - 1))
    byte = data.draw(st.integers(0, 255) | st.sampled_from(b'0123456789-.eE," '))
    (saved / "state.json").write_bytes(record[:position] + bytes([byte]) + record[position + 1 :])
    replay, told = empty(), ""
    try:
        load(replay, saved)
    except ReplayStateError as error:
        told = str(error)
    finally:
        (saved / "state.json").write_bytes(record)
    assert "\n" not in told
    assert len(replay.buffer) == (0 if told else 9)


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """A damage: the record with a change."""

    def damage(folder: Path) -> None:
        record = json.loads((folder / "state.json").read_text())
        change(record)
        (folder / "state.json").write_text(json.dumps(record))

    return damage


def put(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "state.json").write_text(text)


def tensors_of(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


def put_foreign(folder: Path) -> None:
    """In the place of the tensors, with a right checksum."""
    foreign = b"PK\x03\x04 not safetensors at all"
    digest = hashlib.sha256(foreign).hexdigest()
    (folder / f"groups-{digest[:16]}.safetensors").write_bytes(foreign)
    edited(lambda record: record.update(groups_sha256=digest))(folder)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (
        lambda folder: (folder / "state.json").unlink(),
        "FOLDER/state.json does not exist: no complete replay state was saved there; use another checkpoint, "
        "or pass replay.restore=false to start with an empty buffer",
    ),
    (put("{"), "FOLDER/state.json is damaged or of another version: Invalid JSON: EOF while parsing"),
    (put("[" * 10_000), "FOLDER/state.json is damaged or of another version: Invalid JSON: recursion"),
    (put("[]"), "FOLDER/state.json is damaged or of another version: Input should be an object"),
    (edited(lambda r: r.update(format_version=3)), "version: format_version: Input should be 4; use another"),
    (edited(lambda r: r.pop("rng")), "version: rng: Field required; use another checkpoint"),
    (edited(lambda r: r.update(more=1)), "version: more: Extra inputs are not permitted; use another"),
    (edited(lambda r: r.update(gate_open=1)), "version: gate_open: Input should be a valid boolean"),
    (edited(lambda r: r["groups"][8].update(step=1.5)), "groups: 8: step: Input should be a valid integer"),
    (edited(lambda r: r["groups"][8].pop("mode")), "groups: 8: mode: Field required"),
    (edited(lambda r: r["groups"].append(r["groups"][0])), "FOLDER does not hold whole rollout groups"),
    (edited(lambda r: r["groups"].pop()), "FOLDER does not hold whole rollout groups"),
    (edited(lambda r: r["groups"][0].update(side="reject")), "side is 'reject'"),
    (edited(lambda r: r["rng"].pop("sampling")), "state of the sampling generator is not readable"),
    (
        lambda folder: tensors_of(folder).write_bytes(tensors_of(folder).read_bytes() + b"more"),
        "safetensors is damaged: its checksum is wrong; use another checkpoint",
    ),
    (lambda folder: tensors_of(folder).write_bytes(b""), "is damaged: its checksum is wrong; use another"),
    (
        lambda folder: tensors_of(folder).unlink(),
        "safetensors does not exist, though state.json names it; use another checkpoint",
    ),
    (put_foreign, "safetensors is not a safetensors file: "),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=[words for _, words in DAMAGES])
def test_each_damage_is_told_by_its_own_words(
    damage: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    save(filled(), tmp_path)
    damage(tmp_path)
    assert words.replace("FOLDER", str(tmp_path)) in refusal(tmp_path)


# Rules of a user's own decide, and go on after a restart; tests/refused has those that do not fit.

OWN = {
    "admission": "EveryOther",
    "sampling": "LeastDrawn",
    "eviction": "AnyLeaves",
    "threshold_rule": "MovingMean",
}


def replay_of(changes: dict[str, Any] | None = None, **names: str) -> Replay:
    """The paper's replay with these rules of `own_rules`."""
    paths = {setting: f"{own_rules.__name__}:{name}" for setting, name in names.items()}
    return Replay(ReplayConfig(**{**PAPER, **paths, **(changes or {})}))


def test_an_own_admission_decides_what_is_stored() -> None:
    """Seven groups a step: the first step stores 0 2 4 6, the second 1 3 5."""
    first, second = steps(replay_of(admission="EveryOther"), last=2)
    assert first["record"]["stored"] == [[0, 1], [2, 1], [4, 1], [6, 1]]
    assert second["record"]["stored"] == [[1, 2], [3, 2], [5, 2]]
    replay = replay_of({"require_signal": True}, admission="EveryOther")
    replay.offer(offered(1), 1)
    assert keys(replay.buffer) == keys([group for group in offered(1) if group.has_signal][::2])


def test_an_own_sampling_decides_what_is_drawn() -> None:
    replay = replay_of(sampling="LeastDrawn")
    list(steps(replay, last=8))
    assert max(replay.log.draws[0].reuse) <= min(stored.reuse_count for stored in replay.buffer)


def test_an_own_threshold_decides_what_is_hard() -> None:
    (step,) = steps(replay_of(threshold_rule="MovingMean"), last=1)
    rule = own_rules.MovingMean(ReplayConfig(), None)  # type: ignore[arg-type]
    assert step["record"]["threshold"] == rule.update(offered(1))


def test_an_own_eviction_draws_from_numbers_of_its_own() -> None:
    """With the same admissions, another seed lets others go."""
    runs = [steps(replay_of({"seed": seed}, eviction="AnyLeaves"), last=8) for seed in (1, 2)]
    first, second = ([step["record"]["evicted"] for step in run] for run in runs)
    assert first != second


@pytest.mark.parametrize("stop", [1, 4, 9])
def test_a_run_with_own_rules_goes_on_as_if_never_stopped(stop: int, tmp_path: Path) -> None:
    expected = list(steps(replay_of(**OWN), last=14))
    first, second = replay_of(**OWN), replay_of(**OWN)
    list(steps(first, last=stop))
    save(first, tmp_path)
    load(second, tmp_path)
    assert list(steps(second, stop + 1, 14)) == expected[stop:]
    assert json.dumps(read_record(tmp_path)["rules"]) == json.dumps(first.state_dict()["rules"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"admission": "EveryOther"}, {"admission": "EveryOtherAgain"}),
        ({"admission": "EveryOther"}, {}),
        ({}, OWN),
    ],
    ids=["another class", "a built-in rule", "own rules after built-in ones"],
)
def test_another_rule_starts_anew_and_the_groups_stay(
    before: dict[str, str], after: dict[str, str], tmp_path: Path
) -> None:
    first, second = replay_of(**before), replay_of(**after)
    list(steps(first, last=5))
    save(first, tmp_path)
    load(second, tmp_path)
    assert keys(second.buffer) == keys(first.buffer)
    assert second.state_dict()["rules"] == replay_of(**after).state_dict()["rules"]
    list(steps(second, 6, 9))


@pytest.mark.parametrize("rules", [{"admission": 3}, {"admission": {}}, {"admission": "text"}])
def test_a_damaged_state_of_a_rule_is_refused(rules: Any) -> None:
    replay = replay_of(admission="EveryOther")
    with pytest.raises(ReplayStateError, match="state of a rule is not readable"):
        replay.load_state_dict({**replay.state_dict(), "rules": rules})
