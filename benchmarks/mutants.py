"""How many changed lines the tests notice: python -m benchmarks.mutants [PATTERN ...].

mutmut changes one expression at a time in recipe/rerule/replay and reward (each change is a mutant), and runs
the tests that reach the changed function; [tool.mutmut] in pyproject.toml says how. A mutant is killed when a
test fails, and survives when all pass or none reaches it; where they ran out of time or crashed it is
undecided.
PATTERN limits the run to mutants by name, such as 'reward.*'. Prints a score for each module and the names of
the survivors (`mutmut show NAME` prints the change), and one JSON object on its last line:
    mutation_score  killed / (killed + survived)
    killed, survived, undecided, seconds
Exits with 1 when the score is below 0.85.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

LEAST_SCORE = 0.85
FOLDER = Path("mutants")  # mutmut's own choice
# What mutmut notes of a mutant: how pytest ended, the signal that ended it, or a number of mutmut's own.
VERDICTS = {**dict.fromkeys([1, 3], "killed"), **dict.fromkeys([0, 5, 33], "survived")}


def main() -> None:
    """Mutate, test and report; from the beginning, since mutmut does not notice changed tests."""
    if FOLDER.exists():
        if not any(FOLDER.rglob("*.meta")):
            sys.exit(f"error: {FOLDER.resolve()} is not mutmut's; move it away")
        shutil.rmtree(FOLDER)
    began = time.monotonic()
    # One thread each: the mutants are tested in forks, as many at a time as there are cores. Given a pattern,
    # mutmut first runs the tests by their ids; an id it cannot find again would look like a kill.
    subprocess.run(
        [Path(sys.executable).parent / "mutmut", "run", *(sys.argv[1:] or ["*"])],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    total: Counter[str] = Counter()
    for path in sorted(FOLDER.rglob("*.meta")):
        total += _report(path)
    figures = {
        "mutation_score": round(_score(total), 3),
        **{verdict: total[verdict] for verdict in ("killed", "survived", "undecided")},
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(figures))
    sys.exit(figures["mutation_score"] < LEAST_SCORE)


def _report(path: Path) -> Counter[str]:
    """Print the score and the survivors of one module; return how many mutants have which verdict."""
    ended = json.loads(path.read_text())["exit_code_by_key"]
    verdicts = {name: VERDICTS.get(code, "undecided") for name, code in ended.items() if code is not None}
    counts = Counter(verdicts.values())
    if counts:
        print(f"{_score(counts):.2f} of {counts.total():4d} in {path.relative_to(FOLDER).with_suffix('')}")
    for name, verdict in verdicts.items():
        if verdict != "killed":
            print(f"     {verdict} {name}")
    return counts


def _score(counts: Counter[str]) -> float:
    """Share of the killed among the killed and the survivors; 0 of none."""
    return counts["killed"] / max(1, counts["killed"] + counts["survived"])


if __name__ == "__main__":
    main()
