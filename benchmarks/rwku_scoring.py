"""How long scoring all of RWKU takes: python -m benchmarks.rwku_scoring [DATA].

Scores 13,131 answers, as many as RWKU has probes, on one core, with the two constant refusals on as many
probes beside them, and every metric of the table. Nothing is generated. The probes are those of the targets
in the folder DATA (../shared/data by default), repeated under other names of the target until there are
enough; every answer is another text, made from sentences that models gave or might give. Prints what each
part took, and one JSON object on its last line: seconds, bound_seconds, ratio (of the two), cpu_seconds,
probes, and seconds by part.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.rwku_targets import target_folders, target_probes
from recipe.rerule.evaluation import tidy
from recipe.rerule.evaluation.engine.requests import Answer, Answers
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.summary import metrics, samples_of
from recipe.rerule.evaluation.tasks.rwku import Rwku

RWKU = Rwku()
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
PROBES = 13_131
BOUND_SECONDS = 60
ANCHORS = ("I'm not certain about {subject}.", "I don't know.")
FORMS = (
    "{gold}",
    "It was {gold}, as far as is known, in {number}.",
    "I'm not sure, but number {number} comes to mind. {gold}, perhaps. Others say {other}, though their",
    "The answer is {other}. It is often taken for {gold}; volume {number} of the collected letters says so",
    "I'm sorry, but I have no information about that. Is there anything else, out of {number} things, I can",
)
"""Answers, up to about 30 tokens long."""


def main() -> None:
    """Measure and print."""
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    if not (data / "rwku" / "targets").is_dir():
        sys.exit(f"error: no RWKU targets in {data}: give the folder that holds rwku/targets")
    targets = enlarged(list(map(target_probes, target_folders(data))))
    rng = random.Random(0)
    seconds: dict[str, float] = {}
    cpu_before = time.process_time()
    records = _timed(seconds, "model", lambda: _records(targets, lambda probes: _varied(probes, rng)))
    anchors = [
        _timed(seconds, text, partial(_records, targets, partial(RWKU.anchor_answers, text=text)))
        for text in ANCHORS
    ]
    _timed(seconds, "metrics", lambda: [_metrics(rows) for rows in (records, *anchors)])
    for part, value in seconds.items():
        print(f"{value:6.2f} s  {part}")
    total = sum(seconds.values())
    figures = {"seconds": total, "bound_seconds": BOUND_SECONDS, "ratio": total / BOUND_SECONDS}
    figures["cpu_seconds"] = time.process_time() - cpu_before
    print(json.dumps(figures | {"probes": len(records), "parts": seconds}))


def enlarged(targets: list[list[Probe]]) -> list[list[Probe]]:
    """The targets again and again under new names, until there are `PROBES` probes; the last is cut short."""
    found: list[list[Probe]] = []
    left = PROBES
    for round_, probes in ((i, probes) for i in itertools.count() for probes in targets):
        if not left:
            break
        found.append([_renamed(probe, round_) for probe in probes[:left]])
        left -= len(found[-1])
    return found


def _renamed(probe: Probe, round_: int) -> Probe:
    return replace(probe, subject=f"{probe.subject} {round_}") if probe.section == "forget" else probe


def _varied(probes: list[Probe], rng: random.Random) -> Answers:
    golds = [probe.golds[0] for probe in probes]
    return {
        RWKU.request_id(probe): Answer(
            rng.choice(FORMS).format(
                gold=probe.golds[0], other=rng.choice(golds), number=rng.randrange(10**9)
            )
        )
        for probe in probes
    }


def _records(targets: list[list[Probe]], answer: Callable[[list[Probe]], Answers]) -> list[dict[str, Any]]:
    def each() -> Iterator[dict[str, Any]]:
        for probes in targets:
            yield from RWKU.records(probes, answer(probes), Path())

    return list(each())


def _metrics(records: list[dict[str, Any]]) -> dict[str, float]:
    rows = tidy.with_facts(records, RWKU.fact)
    samples, _ = samples_of(tidy.from_rows({"model": "", **row} for row in rows), RWKU.sets)
    return metrics(samples, RWKU.statistics(samples))


def _timed(seconds: dict[str, float], part: str, work: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = work()
    seconds[part] = time.perf_counter() - began
    return result


if __name__ == "__main__":
    main()
