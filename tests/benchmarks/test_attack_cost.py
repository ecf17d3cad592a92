"""What the quick budget of attacks costs: the commands that are measured, and how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import attack_cost
from benchmarks.attack_cost import Cost, _attack, _run
from recipe.rerule import evaluate


def test_the_attacked_command_is_one_that_evaluate_takes(tmp_path: Path) -> None:
    words = _attack(tmp_path / "world", tmp_path, ["--model", "original=a", "--model", "unlearned=b"])[2:]
    options = evaluate._parser(words).parse_args(words)
    assert (options.attacks, options.budget, options.overwrite) == (["default"], "quick", True)
    assert options.cache == tmp_path / "cache"
    assert options.control == f"{tmp_path / 'world/retain_model'}"


def test_processes_of_processes_are_counted() -> None:
    """A process that only waits for another one, which computes for half a second."""
    busy = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    cost = _run(["-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"])
    assert 0.5 <= cost.cpu_seconds < 5
    assert cost.seconds >= 0.5


def test_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bound is compared with the larger number of seconds of the run with both controls in the cache."""
    (tmp_path / "attacks").mkdir()
    rows = {"none": {"unlearned": {"facts": 42}}}
    (tmp_path / "attacks/attacks.json").write_text(json.dumps(rows))
    asked: list[list[str]] = []

    def run(words: list[str]) -> Cost:
        asked.append(words)
        return Cost(40.0, 90.0) if any("unlearned=" in word for word in words) else Cost(50.0, 120.0)

    monkeypatch.setattr(attack_cost, "_run", run)
    monkeypatch.setattr(attack_cost, "_unlearned", lambda world, out: out / "unlearned")
    assert attack_cost.main(["--out", f"{tmp_path}", "--world", f"{tmp_path / 'world'}"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told == {
        "seconds": 40.0, "cpu_seconds": 90.0, "facts": 42, "bound_seconds": 300, "ratio": 0.3,
        "controls_seconds": 50.0, "controls_cpu_seconds": 120.0,
    }  # fmt: skip
    assert [sum("unlearned=" in word for word in words) for words in asked] == [0, 1]
