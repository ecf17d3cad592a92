"""Attacks on made models that know, refuse and never knew, with a stand-in for vLLM (`engine`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.golden import adapters
from tests.golden.attack_inputs import CONTROL, GIVEN
from tests.golden.commands import Ran, done, files
from tests.golden.golden import check

EVALUATE = "recipe.rerule.evaluate"
OTHERWISE = {
    "without a control": f"{GIVEN} --attacks prefill samples quantise_4",
    "membership": f"{CONTROL.replace('data/', 'questions/')} --benchmark muse_books --texts texts "
    "--budget full --attacks membership membership_reference",
}
"""Words of further commands."""
SHOWN = 8
"""Lines of a table that are kept at its beginning and at its end."""


def _kept(ran: Ran, work: Path) -> dict[str, Any]:
    """What was printed, with the beginning and the end of the table, whose numbers are kept elsewhere."""
    kept = ran.kept(work)
    if len(kept["out"]) > 2 * SHOWN:
        kept["out"] = [*kept["out"][:SHOWN], "...", *kept["out"][-SHOWN:]]
    return kept


def test_attacks(attack_work: Path, attacked: Ran) -> None:
    """Every attack's rows, the curves of relearning, the table, and the files."""
    kept = (
        _kept(attacked, attack_work)
        | {"files": files(attack_work / "attacks")}
        | adapters.attacks(attack_work / "attacks")
    )
    check("attacks", kept, 1e-3, 1e-4)


def test_attacks_otherwise(attack_work: Path) -> None:
    """Without a never-knew model, and on texts, as MUSE has them."""
    kept = {}
    for number, (name, words) in enumerate(OTHERWISE.items()):
        ran = done(EVALUATE, *words.split(), "--out", f"other/{number}", folder=attack_work)
        out = attack_work / "other" / str(number)
        kept[name] = _kept(ran, attack_work) | {"files": files(out)} | adapters.attacks(out)
    check("attacks_otherwise", kept, 1e-3, 1e-4)
