"""Stored, evicted and drawn groups, metrics, files and updates are those that `fixtures/` keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.replay import Replay, ReplayConfig, ReplayStateError, load
from tests.replay import recorded
from tests.replay.recorded import BUFFER, FOLDER, RUN, RUNS, SAVED_AFTER, UPDATES


def kept(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_stores_evicts_and_draws_as_recorded(name: str) -> None:
    expected = kept("runs")[name]
    assert any(step["record"]["drawn"] for step in expected)
    assert any(step["record"]["evicted"] for step in expected)
    assert list(recorded.steps(Replay(ReplayConfig(**RUNS[name])))) == expected


def test_metrics_and_records_keep_the_order_of_their_names() -> None:
    for name, expected in kept("runs").items():
        found = next(recorded.steps(Replay(ReplayConfig(**RUNS[name]))))
        assert [list(found[part]) for part in found] == [list(expected[0][part]) for part in found]


def test_a_recorded_buffer_goes_on_with_the_recorded_steps() -> None:
    memory = Replay(ReplayConfig(**BUFFER))
    load(memory, FOLDER / "buffer", RUN)
    assert len(memory.buffer) == BUFFER["capacity"]
    assert list(recorded.steps(memory, SAVED_AFTER + 1)) == kept("buffer_goes_on")


def test_a_recorded_buffer_is_refused_by_another_run() -> None:
    with pytest.raises(ReplayStateError, match=r"was saved with rollout.n 4, and this run has 8"):
        load(Replay(ReplayConfig(**BUFFER)), FOLDER / "buffer", {**RUN, "rollout.n": 8})


def test_the_saved_files_are_the_recorded_ones_byte_for_byte(tmp_path: Path) -> None:
    recorded.write(tmp_path)
    names = {path.name: path.read_bytes() for path in (FOLDER / "buffer").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "buffer").iterdir()} == names
    assert len(names) == 2


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_weighs_and_learns_as_recorded(name: str) -> None:
    expected, found = kept("updates")[name], recorded.replay_update(UPDATES[name])
    assert found["groups"] == expected["groups"]
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-12)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-12)
    for part in ("weights", "gradient"):
        for row, values in zip(found[part], expected[part], strict=True):
            assert row == pytest.approx(values, rel=1e-12)
