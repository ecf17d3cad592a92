"""The figures of the comparison with TRL, worked out by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import peer_trl


def step(seconds: float, replayed: bool = True, **timing: float) -> dict[str, float]:
    times = dict.fromkeys(peer_trl.PARTS, 0.0) | {"update_actor": seconds} | timing
    data = {f"timing_s/{name}": value for name, value in times.items()} | {"response_length/mean": 5.0}
    return data | ({"replay/updates": 1.0, "replay/seconds": seconds / 4} if replayed else {})


def test_figures_leave_out_the_first_steps_the_last_and_those_without_replay() -> None:
    """Steps 5 to 9 remain of ten; 6 has no replay: 1, 3, 4 and 9 seconds, median 3.5."""
    ends = [0.0, 50.0, 100.0, 150.0, 151.0, 251.0, 254.0, 258.0, 267.0, 400.0]
    steps = [step(8.0) for _ in ends]
    steps[5] = step(8.0, replayed=False)
    found = peer_trl.our_figures(ends, steps)
    assert (found["ours_seconds"], found["ours_steps"], found["ours_tokens"]) == (3.5, 4, 5.0)
    with pytest.raises(peer_trl.PeerError, match="no step with a replay update"):
        peer_trl.our_figures(ends, [step(1.0, replayed=False)] * 10)


def test_parts_add_up_to_the_step() -> None:
    """verl times the whole of `_update_actor`: 2.0 s of which 0.5 s are the replay update."""
    parts = peer_trl.part_seconds(4.0, step(2.0, gen=1.0, ref=0.25))
    assert (parts["update_actor"], parts["replay"], parts["rest"]) == (1.5, 0.5, 0.75)
    assert sum(parts.values()) == pytest.approx(4.0)


def test_when_lines_were_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = "open(sys.argv[1], 'a').write('{}\\n'); time.sleep(0.5)"
    command = [sys.executable, "-c", f"import sys, time\nfor _ in range(2): {line}", str(path)]
    first, second = peer_trl.watch_lines(subprocess.Popen(command), path)
    assert 0.4 < second - first < 1.5


def test_an_installation_that_fails_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: no such version\n")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: failed)
    with pytest.raises(
        peer_trl.PeerError, match=r"^cannot install trl==1.10.0 into .*: ERROR: no such version$"
    ):
        peer_trl.install_trl(tmp_path / "site")


def test_a_side_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = peer_trl.start(["-c", "print('begun'); raise SystemExit('error: no such model')"], log, {})
    with pytest.raises(peer_trl.PeerError, match=r"^our run failed with exit code 1: error: no such model$"):
        peer_trl.require_success(process, log, "our run")
