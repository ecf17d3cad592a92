"""A replay buffer as it is shown, the list of other methods, and `minimal` on a made model."""

import json
from pathlib import Path

from tests.golden.commands import done, run
from tests.golden.golden import ROOT, check

MINIMAL = {"ReRULE": "", "RULE": "--no-replay"}
"""Options of `minimal`."""


def test_replay_inspect() -> None:
    """The buffer of tests/replay/fixtures as `inspect` shows it."""
    fixtures, kept = ROOT / "tests/replay/fixtures", {}
    for name, more in {"summary": "", "groups": "--groups", "JSON": "--groups --json"}.items():
        kept[name] = done(f"replay inspect tests/replay/fixtures/buffer {more}", ROOT).kept
    kept["nothing there"] = {"code": run(f"replay inspect {fixtures}").code}
    check("replay_inspect", kept, fixtures)


def test_unlearning_methods() -> None:
    """What `--list` says of every method; tests/unlearning has the losses."""
    listed = json.loads(done("unlearn --list --json").out)
    check("unlearning", {"list": {one.pop("method"): one for one in listed}})


def test_minimal(people: Path) -> None:
    """What the command prints of five steps of RULE and of ReRULE; tests/test_minimal.py has every update."""
    given = (
        "minimal --model models/refusing --data data/train.parquet --probes data/probes.parquet --steps 5 "
        "--prompts 8 --rollouts 4 --response-limit 6 --warmup-steps 1 --learning-rate 1e-3"
    )
    kept = {name: done(f"{given} {more}", people).kept for name, more in MINIMAL.items()}
    check("minimal", kept, people, 1e-3, 1e-6)
