"""Whole texts that a benchmark measures beside its probes: RWKU's membership texts and instructions, MUSE's
PrivLeak texts.

They are asked together with the probes, of the same engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from recipe.rerule.evaluation.engine.requests import Answers, Request
from recipe.rerule.evaluation.muse_books import privleak as privleak_texts
from recipe.rerule.evaluation.rwku import fluency, membership
from recipe.rerule.evaluation.rwku.utility.target_files import instructions, membership_texts, texts_of
from recipe.rerule.evaluation.statistics.roc import auc, privleak
from recipe.rerule.evaluation.statistics.samples import Metrics, metrics

RETRAINED_AUC = 1 - 0.5393
"""Min-40 % AUC of MUSE-Books' retrained model: a constant in MUSE's own code, which counts it the other way
round (see `roc.privleak`)."""


class Texts(Protocol):
    """What is measured beside the probes."""

    def requests(self) -> list[Request]:
        """What every model is asked. Raises ValueError where the texts are missing or wrong."""

    def metrics(self, answers: Answers) -> Metrics:
        """What comes of the answers."""

    def records(self, answers: Answers) -> list[dict[str, Any]]:
        """The scores of single texts, for texts.jsonl."""


@dataclass(frozen=True)
class NoTexts:
    """Probes alone."""

    def requests(self) -> list[Request]:
        return []

    def metrics(self, answers: Answers) -> Metrics:
        return {}

    def records(self, answers: Answers) -> list[dict[str, Any]]:
        return []


@dataclass(frozen=True)
class RwkuTexts:
    """forget_mia, retain_mia and fluency of a target's folder."""

    folder: Path

    @cached_property
    def _membership(self) -> dict[str, list[str]]:
        return membership_texts(self.folder)

    @cached_property
    def _instructions(self) -> list[str]:
        return instructions(self.folder)

    def requests(self) -> list[Request]:
        return [*membership.requests(self._membership), *fluency.requests(self._instructions)]

    def metrics(self, answers: Answers) -> Metrics:
        found = membership.samples(membership.records(self._membership, answers))
        written = fluency.samples(fluency.records(self._instructions, answers))
        return metrics(found, membership.statistics(found)) | metrics(written, fluency.STATISTICS)

    def records(self, answers: Answers) -> list[dict[str, Any]]:
        written = fluency.records(self._instructions, answers)
        return [
            *membership.records(self._membership, answers),
            *({"set": "fluency", **record} for record in written),
        ]


@dataclass(frozen=True)
class PrivLeakTexts:
    """forget and holdout texts of MUSE's folder `privleak`; `reference` is the retained model's AUC."""

    folder: Path
    reference: float = RETRAINED_AUC

    @cached_property
    def _texts(self) -> dict[str, Sequence[str]]:
        return {part: texts_of(self.folder, part) for part in ("forget", "holdout")}

    def requests(self) -> list[Request]:
        return privleak_texts.requests(self._texts["forget"], self._texts["holdout"])

    def metrics(self, answers: Answers) -> Metrics:
        scores = privleak_texts.scores(answers)
        return {"privleak": privleak(auc(scores["forget"], scores["holdout"]), self.reference)}

    def records(self, answers: Answers) -> list[dict[str, Any]]:
        scores = privleak_texts.scores(answers)
        return [
            {"set": part, "index": number, "min_40": float(score)}
            for part, values in scores.items()
            for number, score in enumerate(values)
        ]
