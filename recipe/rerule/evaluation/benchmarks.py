"""The benchmarks behind one interface: what `evaluate model` needs of each, with the options it was given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recipe.rerule.evaluation import world
from recipe.rerule.evaluation.engine.requests import Answers, Request
from recipe.rerule.evaluation.logs.metrics import Scored
from recipe.rerule.evaluation.logs.open_unlearning import log_text, read_log
from recipe.rerule.evaluation.muse_books import benchmark as muse_books
from recipe.rerule.evaluation.muse_books.log import log_metrics as muse_log_metrics
from recipe.rerule.evaluation.muse_books.log import score as muse_score
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.rwku import benchmark as rwku
from recipe.rerule.evaluation.statistics.samples import Array, Metrics, Samples, Statistic
from recipe.rerule.evaluation.tofu import benchmark as tofu
from recipe.rerule.evaluation.tofu.log_writer import log_metrics as tofu_log_metrics
from recipe.rerule.evaluation.tofu.score import retain_ratios, retained_metrics

Record = dict[str, Any]

RETAINED = "retained (log)"
"""The row of the model whose log `--retain-log` gives."""


class Benchmark(Protocol):
    """A benchmark as `evaluate model` sees it.

    Attributes:
        name: as in `table.COLUMNS`.
        convention: of its ROUGE-L, as in reward.rouge.
        settings: how it asks, for meta.json.
    """

    @property
    def name(self) -> str:
        """See above."""

    @property
    def convention(self) -> str:
        """See above."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """See above."""

    def requests(self, probes: Sequence[Probe]) -> Sequence[Request]:
        """What every model is asked. Raises ValueError for probes that are not the benchmark's."""

    def records(self, probes: Sequence[Probe], answers: Answers, model: Path) -> list[Record]:
        """The scored answers, one a probe; `model` is the folder that the tokenizer is taken from."""

    def anchor_answers(self, probes: Sequence[Probe], text: str) -> Answers:
        """The same answer to every probe; {subject} in it is filled in."""

    def samples(self, records: Sequence[Record]) -> Samples:
        """The scores as arrays."""

    def statistics(self, samples: Samples) -> Mapping[str, Statistic]:
        """The metrics that they allow."""

    def further(self, samples: Samples) -> Metrics:
        """Metrics that are no statistic of the probes: they have no interval and no paired test."""

    def references(self) -> dict[str, Metrics]:
        """Rows of models that are not asked, since a log has their answers. Raises ValueError."""

    def log(self, records: Sequence[Record], texts: Sequence[Record]) -> tuple[str, str] | None:
        """Name and text of a log in open-unlearning's format; None where the benchmark has none.

        `texts` are the scores of the texts measured beside the probes (`texts.Texts.records`).
        """


@dataclass(frozen=True)
class World:
    """The embedded world, and every data set that is none of the others."""

    convention: str = world.CONVENTIONS[0]
    max_tokens: int = world.MAX_TOKENS
    name = "world"

    @property
    def settings(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "stop": "raw probes: at the first newline"}

    def requests(self, probes: Sequence[Probe]) -> Sequence[Request]:
        return world.requests(probes, self.max_tokens)

    def records(self, probes: Sequence[Probe], answers: Answers, model: Path) -> list[Record]:
        return world.records(probes, answers, self.convention)

    def anchor_answers(self, probes: Sequence[Probe], text: str) -> Answers:
        return world.anchor_answers(probes, text)

    def samples(self, records: Sequence[Record]) -> Samples:
        return world.samples(records)

    def statistics(self, samples: Samples) -> Mapping[str, Statistic]:
        return world.statistics(samples)

    def further(self, samples: Samples) -> Metrics:
        return {}

    def references(self) -> dict[str, Metrics]:
        return {}

    def log(self, records: Sequence[Record], texts: Sequence[Record]) -> tuple[str, str] | None:
        return None


@dataclass(frozen=True)
class Rwku:
    """One RWKU target; `prompts` as in `rwku.PROMPTS`, `stop` as in `rwku.STOPS`."""

    prompts: str = rwku.PROMPTS[0]
    stop: str = "newline"
    name = "rwku"
    convention = rwku.CONVENTION

    @property
    def settings(self) -> dict[str, Any]:
        return {"prompts": self.prompts, "stop": self.stop}

    def requests(self, probes: Sequence[Probe]) -> Sequence[Request]:
        rwku.check_probes(probes)
        return rwku.requests(probes, self.prompts, rwku.STOPS[self.stop])

    def records(self, probes: Sequence[Probe], answers: Answers, model: Path) -> list[Record]:
        return rwku.records(probes, answers)

    def anchor_answers(self, probes: Sequence[Probe], text: str) -> Answers:
        return rwku.anchor_answers(probes, text)

    def samples(self, records: Sequence[Record]) -> Samples:
        return rwku.samples(records)

    def statistics(self, samples: Samples) -> Mapping[str, Statistic]:
        # Of one target, its own numbers are the means already.
        found = rwku.statistics(samples)
        return {name: one for name, one in found.items() if not name.startswith("target/")}

    def further(self, samples: Samples) -> Metrics:
        return {}

    def references(self) -> dict[str, Metrics]:
        return {}

    def log(self, records: Sequence[Record], texts: Sequence[Record]) -> tuple[str, str] | None:
        return None


@dataclass(frozen=True)
class Tofu:
    """TOFU; `prompts` as in `tofu.PROMPTS`, `retain_log` the log of a retained model for forget quality."""

    prompts: str = "chat"
    retain_log: Path | None = None
    name = "tofu"
    convention = "tofu"

    @property
    def settings(self) -> dict[str, Any]:
        log = None if self.retain_log is None else str(self.retain_log)
        return {"prompts": self.prompts, "retain_log": log}

    @cached_property
    def _retain_ratios(self) -> Array | None:
        return None if self.retain_log is None else retain_ratios(self.retain_log)

    def requests(self, probes: Sequence[Probe]) -> Sequence[Request]:
        requests = tofu.requests(probes, self.prompts)
        self._check_retain_log(probes)
        return requests

    def _check_retain_log(self, probes: Sequence[Probe]) -> None:
        """Refuse, before any model is asked, a log that forget quality cannot be computed against."""
        forget = sum(tofu.question_set(probe) == "forget" for probe in probes)
        retained = self._retain_ratios
        if retained is not None and len(retained) != forget:
            raise ValueError(
                f"--retain-log {self.retain_log} has {len(retained)} forget rows and the probes {forget}; "
                "forget quality compares the same rows: evaluate both models on one split"
            )

    def records(self, probes: Sequence[Probe], answers: Answers, model: Path) -> list[Record]:
        return tofu.records(probes, answers)

    def anchor_answers(self, probes: Sequence[Probe], text: str) -> Answers:
        return tofu.anchor_answers(probes, [text.replace("{subject}", probe.subject) for probe in probes])

    def samples(self, records: Sequence[Record]) -> Samples:
        return tofu.samples(records)

    def statistics(self, samples: Samples) -> Mapping[str, Statistic]:
        return tofu.statistics(samples)

    def further(self, samples: Samples) -> Metrics:
        ratios = samples.get("forget", {}).get("truth_ratio")
        if ratios is None or self._retain_ratios is None:
            return {}
        return {"forget_quality": tofu.forget_quality(ratios, self._retain_ratios)}

    def references(self) -> dict[str, Metrics]:
        return {} if self.retain_log is None else {RETAINED: retained_metrics(self.retain_log)}

    def log(self, records: Sequence[Record], texts: Sequence[Record]) -> tuple[str, str] | None:
        return "TOFU_EVAL.json", log_text(tofu_log_metrics(records))


@dataclass(frozen=True)
class MuseBooks:
    """MUSE-Books; `variant` as in `muse_books.CONVENTIONS`, `retain_log` the log of a retained model."""

    variant: str = "muse"
    retain_log: Path | None = None
    name = "muse_books"
    convention = "muse"

    @property
    def settings(self) -> dict[str, Any]:
        log = None if self.retain_log is None else str(self.retain_log)
        return {"prompts": self.variant, "retain_log": log}

    def requests(self, probes: Sequence[Probe]) -> Sequence[Request]:
        return muse_books.requests(probes, self.variant)

    def records(self, probes: Sequence[Probe], answers: Answers, model: Path) -> list[Record]:
        return muse_books.records(
            probes, answers, muse_books.truncated_by(partial(_tokenizer, model)), self.variant
        )

    def anchor_answers(self, probes: Sequence[Probe], text: str) -> Answers:
        return muse_books.anchor_answers(
            probes, [text.replace("{subject}", probe.subject) for probe in probes]
        )

    def samples(self, records: Sequence[Record]) -> Samples:
        return muse_books.samples(records)

    def statistics(self, samples: Samples) -> Mapping[str, Statistic]:
        return muse_books.statistics(samples)

    def further(self, samples: Samples) -> Metrics:
        return {}

    def references(self) -> dict[str, Metrics]:
        if self.retain_log is None:
            return {}
        return {RETAINED: _numbers(muse_score(read_log(self.retain_log)), muse_books.STATISTICS)}

    def log(self, records: Sequence[Record], texts: Sequence[Record]) -> tuple[str, str] | None:
        scores = {
            part: np.array([text["min_40"] for text in texts if text["set"] == part])
            for part in ("forget", "holdout")
        }
        return "MUSE_EVAL.json", log_text(muse_log_metrics(records, scores if texts else None))


def _numbers(scored: Scored, names: Iterable[str]) -> Metrics:
    """Those of `names` that a log has a number for."""
    found = {name: scored.metrics.get(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _tokenizer(model: Path) -> Any:
    # Its import takes seconds, and only passages are cut.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
