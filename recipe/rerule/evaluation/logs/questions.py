"""Whether two logs, or a log and the probes, are of the same questions, as far as their texts tell.

The right answers are compared. A logged prompt has the chat template of its model, and so tells nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recipe.rerule.evaluation.logs.open_unlearning import Log, LogError, read_log

if TYPE_CHECKING:  # `score` starts without pyarrow
    from recipe.rerule.evaluation.probes import Probe

_SHOWN = 60


@dataclass(frozen=True)
class Golds:
    """The right answers of one metric's samples.

    Attributes:
        where: what holds them, for messages.
        texts: by index; empty where a log carries none.
    """

    where: str
    texts: Mapping[str, str]


def logged_golds(log: Log, metric: str) -> Golds:
    """Those of a ROUGE metric, for the samples that carry one."""
    return Golds(log.name, log.some_texts(metric, "ground_truth"))


def numbered_golds(probes: Sequence[Probe], set_of: Callable[[Probe], str]) -> dict[str, dict[str, str]]:
    """By question set, the probes' right answers under the indices that our logs give them."""
    found: dict[str, dict[str, str]] = {}
    for probe in sorted(probes, key=lambda probe: probe.index):
        members = found.setdefault(set_of(probe), {})
        members[str(len(members))] = probe.golds[0]
    return found


def check_retained(path: Path, golds: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a retained model's log of other questions than the probes', as far as it carries right answers.

    `golds`: the probes', by ROUGE metric and index. Raises LogError.
    """
    log = read_log(path)
    for metric, texts in golds.items():
        found = difference(metric, Golds("the probes", texts), logged_golds(log, metric))
        if found:
            raise LogError(f"--retain-log is of other questions: {found}; evaluate both models on one split")


def difference(metric: str, ours: Golds, theirs: Golds) -> str | None:
    """The first index with another right answer, in words; None where no index of both has one."""
    for index, text in ours.texts.items():
        other = theirs.texts.get(index, text)
        if _bare(text) != _bare(other):
            return (
                f"at index {index} of {metric} the right answer is {_short(text)} in {ours.where} and "
                f"{_short(other)} in {theirs.where}"
            )
    return None


def _bare(text: str) -> str:
    """Without white space: open-unlearning logs answers as a model's tokenizer gives them back."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
