"""Several updates in one step through the real worker, with parameter and optimiser offload."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.replay import Replay, ReplayConfig, save
from tests.e2e.stack import torchrun
from tests.replay.groups import make_group

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

RATE, STEPS = 2e-4, 4  # of experiment=tiny, and of the cosine schedule in worker_updates.py


@pytest.fixture(scope="module")
def seen(micro_world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("updates")
    replay = Replay(ReplayConfig(threshold_rule="fixed", threshold=1.0))
    replay.offer([make_group(index, rewards=[0.0, 0.5]) for index in range(4)], step=1)
    save(replay, folder / "groups")
    job = {"model": micro_world / "model", "groups": folder / "groups", "out": folder / "seen.json"}
    torchrun("worker_updates.py", 1, {name: str(path) for name, path in job.items()}, folder)
    return json.loads((folder / "seen.json").read_text())


def test_all_updates_of_a_step_share_one_round_trip_of_offloading(seen: dict[str, Any]) -> None:
    once = seen["verl_once"]["moves"]
    assert once, "offloading is on"
    assert seen["replay"]["moves"] == once
    assert seen["apart"]["moves"] == 3 * once


def test_staying_loaded_changes_no_parameter(seen: dict[str, Any]) -> None:
    assert seen["replay"]["parameters"] == seen["apart"]["parameters"]
    assert seen["replay"]["parameters"] != seen["verl_once"]["parameters"]


def test_the_schedule_moves_once_a_step(seen: dict[str, Any]) -> None:
    rate = RATE * (1 + math.cos(math.pi / STEPS)) / 2
    for name in ("replay", "apart", "verl_once"):
        assert seen[name]["schedule"] == 1, name
        assert seen[name]["rates"] == pytest.approx([rate] * len(seen[name]["rates"])), name
