"""A program for tests to kill: python ask.py URL MODEL COUNT CACHE OUT"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from server import (
    notes,
    small_endpoint,
)  # beside this file: in a process of its own, "tests" is verl's package

from data_prep.generate import generate


def main(url: str, model: str, count: str, cache: str, out: str) -> None:
    generated = generate(notes(int(count)), small_endpoint(url, model), Path(cache))
    Path(out).write_text(json.dumps(asdict(generated)))


if __name__ == "__main__":
    main(*sys.argv[1:])
