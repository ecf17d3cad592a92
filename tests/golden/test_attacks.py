"""Attacks on made models that know, refuse and never knew, with a stand-in for vLLM (`engine`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.golden import folders
from tests.golden.commands import Ran, done, files
from tests.golden.conftest import ATTACK, CONTROL
from tests.golden.golden import check

OTHERWISE = {
    "without a control": f"{ATTACK} --attacks prefill samples quantise_4",
    "membership": f"{CONTROL.replace('data/', 'questions/')} --benchmark muse_books --texts texts "
    "--budget full --attacks membership membership_reference",
}
"""Further commands, but for --out."""
SHOWN = 8
"""Lines of a table that are kept at its beginning and at its end."""


def _kept(ran: Ran, out: Path) -> dict[str, Any]:
    """What was printed, with the beginning and the end of the table, whose numbers are kept elsewhere."""
    kept = ran.kept
    if len(kept["out"]) > 2 * SHOWN:
        kept["out"] = [*kept["out"][:SHOWN], "...", *kept["out"][-SHOWN:]]
    return kept | {"files": files(out)} | folders.attacks(out)


def test_attacks(people: Path, attacked: Ran) -> None:
    """Every attack's rows, the curves of relearning, the table, and the files."""
    check("attacks", _kept(attacked, people / "attacks"), people, 1e-3, 1e-4)


def test_attacks_otherwise(people: Path) -> None:
    """Without a never-knew model, and on texts, as MUSE has them."""
    kept = {}
    for number, (name, line) in enumerate(OTHERWISE.items()):
        kept[name] = _kept(done(f"{line} --out other/{number}", people), people / "other" / str(number))
    check("attacks_otherwise", kept, people, 1e-3, 1e-4)
