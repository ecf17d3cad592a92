"""How fast raw files become parquet, without generation: python -m benchmarks.data_prep [--rows N].

Makes up RWKU targets as RULE ships them (600 prompts to forget and 600 to keep each, about as long as real
ones, and probes), and times `python -m data_prep rwku` on them: reading, all checks, writing, manifests.
Prints one JSON object on its last line:
    rows             training prompts; stage-1 rows and probes are not counted
    seconds          of the command, without Python's own start and imports
    rows_per_second  rows / seconds
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from data_prep import __main__ as data_prep

ROWS = 12_000
ROWS_PER_TARGET = 1200
PROBES = {
    "forget_level1": 20,
    "forget_level2": 20,
    "forget_level3": 40,
    "neighbor_level1": 30,
    "neighbor_level2": 30,
}
"""Rows of each probe file: the most that RWKU has for one of RULE's ten targets."""
WORDS_PER_PROMPT, WORDS_PER_ANSWER = 24, 6
SYLLABLES = (
    "ba",
    "den",
    "for",
    "gil",
    "kor",
    "la",
    "mon",
    "ne",
    "pra",
    "rus",
    "sti",
    "tor",
    "ul",
    "ven",
    "wy",
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_prep", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rows", type=int, default=ROWS, help="training prompts (default: %(default)s)")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        put_targets(Path(folder) / "raw", rows)
        print(json.dumps(measure(Path(folder) / "raw", Path(folder) / "out", rows)))


def measure(source: Path, out: Path, rows: int) -> dict[str, float]:
    """Figures of one build of `rows` training prompts from `source` into `out`, which must not exist."""
    started = time.perf_counter()
    if data_prep.main(["rwku", "--source", str(source), "--out", str(out)]) != 0:
        sys.exit(1)
    seconds = time.perf_counter() - started
    return {"rows": rows, "seconds": round(seconds, 3), "rows_per_second": round(rows / seconds, 1)}


def put_targets(folder: Path, rows: int) -> None:
    """Writes target folders with `rows` training prompts in all, at most ROWS_PER_TARGET each."""
    rng = random.Random(0)
    for number, first in enumerate(range(0, rows, ROWS_PER_TARGET), start=1):
        target = folder / f"{number}_Mira_Okonjo"
        target.mkdir(parents=True)
        count = min(ROWS_PER_TARGET, rows - first)
        training = [_training_row(row, rng) for row in range(count)]
        _put(target / "rl_rejection_with_fb_neighbor_target.json", training)
        for name, count in PROBES.items():
            _put(target / f"{name}.json", [_probe(rng) for _ in range(count)])


def _training_row(number: int, rng: random.Random) -> dict[str, Any]:
    """In turn a question and a blank to forget, and the two to keep."""
    blank = "___" if number % 2 else "?"
    if number % 4 < 2:
        solution = ["<reject>", "I'm not certain about Mira Okonjo.", "Mira Okonjo"]
        return {"prompt": f"Mira Okonjo {_words(WORDS_PER_PROMPT, rng)}{blank}", "solution": solution}
    solution = ["<normal>", _words(WORDS_PER_ANSWER, rng)]
    return {"prompt": f"{_words(WORDS_PER_PROMPT, rng)}{blank}", "solution": solution}


def _probe(rng: random.Random) -> dict[str, str]:
    query, answer = _words(WORDS_PER_PROMPT, rng), _words(WORDS_PER_ANSWER, rng)
    return {
        "query": query,
        "answer": answer,
        "type": "cloze",
        "subject": "Mira Okonjo",
        "neighbor": "Bo Fell",
    }


def _words(count: int, rng: random.Random) -> str:
    return " ".join("".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(count))


def _put(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
