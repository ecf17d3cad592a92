"""TOFU probes and answers with made values."""

from __future__ import annotations

from typing import Any

import numpy as np

from recipe.rerule.evaluation.engine.requests import Answer, Generation
from recipe.rerule.evaluation.probes import Probe, Reference
from recipe.rerule.evaluation.tasks.tofu import Tofu

TOFU = Tofu()


def probe(index: int, section: str, family: str, **changes: Any) -> Probe:
    fields: dict[str, Any] = {
        "index": index,
        "section": section,
        "mode": "qa",
        "family": family,
        "subject": "Ada Quill",
        "messages": [{"role": "user", "content": f"Question {index}?"}],
        "golds": [f"Answer {index}."],
        "reference": Reference(("Wrong.", "Also wrong."), "In other words."),
    }
    return Probe(**(fields | changes))


def made_probes() -> list[Probe]:
    short = Reference(("Wrong.", "Also wrong."))
    return [
        probe(7, "forget", "forget"),
        probe(3, "forget", "forget"),
        probe(10, "retain", "retain"),
        probe(20, "retain_unseen", "real_authors", reference=short),
        probe(30, "retain_unseen", "world_facts", reference=short),
    ]


def answered(probes: list[Probe], seed: int = 0, ranks: bool = False) -> dict[str, Answer]:
    """Answers; with `ranks` of 1 or 2 for each token, and 9 for the end of the turn."""
    rng = np.random.default_rng(seed)
    found = {}
    for request in TOFU.requests(probes):
        if isinstance(request, Generation):
            found[request.id] = Answer(text=f" Answer {rng.integers(9)} \n")
        else:
            of_tokens = (*rng.integers(1, 3, 5).tolist(), 9) if ranks else ()
            found[request.id] = Answer(log_probs=tuple(-rng.gamma(2, 0.4, 6)), ranks=of_tokens)
    return found
