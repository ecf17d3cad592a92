"""The figures of the benchmarks, worked out by hand, and the tables that documents have of them."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import peer_trl, projected_step, real_step, what_works
from benchmarks.real_step import Usage
from tests.training.made import composed


def test_figures_leave_out_the_first_two_steps() -> None:
    """Steps 3, 4 and 5 took 4, 10 and 6 seconds, and 8, 2 and 12 seconds of processors."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    usage = Usage(process, samples=[(0, 0), (150, 300), (154, 308), (164, 310), (170, 322)], peak=3 * 10**9)
    found = real_step.figures("ours", [50, 150, 154, 164, 170], [9, 9, 1, 2, 5], usage)
    process.wait()
    expected = {"seconds": 6, "cpu": 8, "peak_gb": 3.0, "tokens": 2, "steps": 3}
    assert found == {f"ours_{name}": value for name, value in expected.items()}


def test_memory_and_processor_time_of_all_processes() -> None:
    """The child of the child holds 200 MB and works until it has used half a second."""
    work = "import time\nheld = b'x' * 200_000_000\nwhile time.process_time() < 0.5: pass\ntime.sleep(1)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    usage = Usage(subprocess.Popen([sys.executable, "-c", outer]), every=0.05).follow()
    usage.process.wait()
    assert 0.2e9 < usage.peak < 0.4e9
    assert 0.4 < usage.cpu_at(usage.samples[-1][0]) < 3


# The comparison with TRL.


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


def test_a_side_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = peer_trl.start(["-c", "print('begun'); raise SystemExit('error: no such model')"], log, {})
    with pytest.raises(peer_trl.PeerError, match=r"^our run failed with exit code 1: error: no such model$"):
        peer_trl.require_success(process, log, "our run")


# The projected step.

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"


def test_an_update_by_hand_and_the_table_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """64 rows of 170 tokens on each of four GPUs, four forward passes' worth, at 35 % of 312 TFLOP/s."""
    flops = 4 * 64 * 170 * 2 * (8.03e9 + 32 * 4096 * 170)
    assert projected_step.parts("A100", 4)["on-policy update"] == pytest.approx(flops / (0.35 * 312e12))
    projected_step.main()
    assert capsys.readouterr().out in PAGE.read_text("utf-8")


# What works: arms are settings that exist, and the table says what the responses say.


@pytest.mark.parametrize("name", what_works.ARMS)
def test_the_settings_of_an_arm_exist(name: str) -> None:
    arm = what_works.ARMS[name]
    for platform, settings in what_works.PLATFORMS.items():
        composed("recipe.rerule.sft", f"platform={platform}", *what_works.STAGE1, *arm.stage1)
        if arm.stage2 is not None:
            words = (f"platform={platform}", *what_works.STAGE2, *settings, *arm.stage2)
            enabled = composed("recipe.rerule.main", *words).replay.enable
            assert enabled == ("replay.enable=true" in arm.stage2)
        if arm.po:
            composed("recipe.rerule.unlearn", f"platform={platform}", *what_works.PO)


def test_held_out_answers_are_averaged_by_model_and_side(tmp_path: Path) -> None:
    """0.9 of the base model's 0.8 is 0.72: the last step reaches the goal, the best one has 0.71."""
    answers = {  # model: recalls and refusals of two forget and of two retain answers
        "base": ([1.0, 0.5, 1.0, 0.6], [0, 0, 0, 0]),
        "last": ([0.0, 0.2, 1.0, 0.44], [1, 0, 0, 1]),
        "best": ([0.0, 0.2, 1.0, 0.42], [1, 1, 0, 1]),
    }
    sides = ["forget", "forget", "retain", "retain"]
    tables = [
        pd.DataFrame({"model": name, "side": sides, "rouge_l": recalls, "refused": refused})
        for name, (recalls, refused) in answers.items()
    ]
    pd.concat(tables).to_parquet(tmp_path / "responses.parquet")
    found = what_works.held_out(tmp_path / "responses.parquet")
    names = ("forget recall", "forget refused", "retain recall", "retain refused")
    assert {model: tuple(values[name] for name in names) for model, values in found.items()} == {
        "base": (0.75, 0.0, 0.8, 0.0),
        "last": (0.1, 0.5, 0.72, 0.5),
        "best": (0.1, 1.0, 0.71, 0.5),
    }
    run = {"platform": "gpu", "arm": "rule", "seed": 1, "held_out": found, "reward": 0.875}
    run["over_refusal"] = {"last": {"plain": 0.0, "named": 0.5, "offered": 0.25}}
    table = what_works.table([run])
    assert [row.split(" | ")[-1] for row in table.splitlines()[2:]] == ["no |", "no |", "yes |"]
    assert "| rule | gpu | 1 | last | 0.10 | 0.50 | 0.72 | 0.50 | 0.88 | 0.38 | yes |" in table


def test_reward_is_the_mean_of_the_last_ten_steps_and_of_both_sides(tmp_path: Path) -> None:
    """Steps 3 to 12: forget 0.3 to 1.2, mean 0.75; retain 0.5; validations are no steps."""
    steps = [{"reward/forget/mean": step / 10, "reward/retain/mean": 0.5} for step in range(1, 13)]
    lines = [json.dumps({"step": 0, "data": step}) for step in [*steps, {"val-health/score": 1.0}]]
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "metrics.jsonl").write_text("\n".join(lines))
    assert what_works.reward(tmp_path) == 0.625
