"""The benchmarks behind one interface: what `evaluate model` needs of each, with the options it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from recipe.rerule.evaluation import world
from recipe.rerule.evaluation.engine.requests import Answers, Request
from recipe.rerule.evaluation.logs.open_unlearning import log_text, read_log
from recipe.rerule.evaluation.logs.questions import check_retained, numbered_golds
from recipe.rerule.evaluation.muse_books import benchmark as muse_books
from recipe.rerule.evaluation.muse_books.log import log_metrics as muse_log_metrics
from recipe.rerule.evaluation.muse_books.log import score as muse_score
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.rwku import benchmark as rwku
from recipe.rerule.evaluation.statistics.samples import Array, Metrics, Samples, Statistic
from recipe.rerule.evaluation.tofu import benchmark as tofu
from recipe.rerule.evaluation.tofu.log_writer import log_metrics as tofu_log_metrics
from recipe.rerule.evaluation.tofu.metrics import PREFIXES
from recipe.rerule.evaluation.tofu.score import retain_ratios, retained_metrics

Record = dict[str, Any]

RETAINED = "retained (log)"
"""The row of the model whose log `--retain-log` gives."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as `evaluate model` sees it.

    Attributes:
        name: as in `table.COLUMNS`.
        convention: of its ROUGE-L, as in reward.rouge.
        settings: how it asks, for meta.json.
        requests: what every model is asked. Raises ValueError for probes that are not the benchmark's.
        records: the scored answers, one a probe; the path is the folder that the tokenizer is taken from.
        anchor_answers: the same answer to every probe; {subject} in it is filled in.
        samples: the scores as arrays.
        statistics: the metrics that they allow.
        further: metrics that are no statistic of the probes: they have no interval and no paired test.
        references: rows of models that are not asked, since a log has their answers. Raises ValueError.
        log: name and text of a log in open-unlearning's format, of records and of the scores of the texts
            measured beside the probes (`texts.Texts.records`); None where the benchmark has none.
    """

    name: str
    convention: str
    settings: Mapping[str, Any]
    requests: Callable[[Sequence[Probe]], Sequence[Request]]
    records: Callable[[Sequence[Probe], Answers, Path], list[Record]]
    anchor_answers: Callable[[Sequence[Probe], str], Answers]
    samples: Callable[[Sequence[Record]], Samples]
    statistics: Callable[[Samples], Mapping[str, Statistic]]
    further: Callable[[Samples], Metrics] = lambda samples: {}
    references: Callable[[], dict[str, Metrics]] = dict
    log: Callable[[Sequence[Record], Sequence[Record]], tuple[str, str] | None] = lambda records, texts: None


def world_benchmark(convention: str, max_tokens: int, name: str = "world") -> Benchmark:
    """The embedded world, and under the name "custom" every data set that is none of the others."""
    return Benchmark(
        name=name,
        convention=convention,
        settings={"max_tokens": max_tokens, "stop": "raw probes: at the first newline"},
        requests=partial(world.requests, max_tokens=max_tokens),
        records=lambda probes, answers, model: world.records(probes, answers, convention),
        anchor_answers=world.anchor_answers,
        samples=world.samples,
        statistics=world.statistics,
    )


def rwku_benchmark(prompts: str, stop: str) -> Benchmark:
    """One RWKU target; `prompts` as in `rwku.PROMPTS`, `stop` as in `rwku.STOPS`."""

    def requests(probes: Sequence[Probe]) -> Sequence[Request]:
        rwku.check_probes(probes)
        return rwku.requests(probes, prompts, rwku.STOPS[stop])

    def statistics(samples: Samples) -> Mapping[str, Statistic]:
        # Of one target, its own numbers are the means already.
        found = rwku.statistics(samples)
        return {name: one for name, one in found.items() if not name.startswith("target/")}

    return Benchmark(
        name="rwku",
        convention=rwku.CONVENTION,
        settings={"prompts": prompts, "stop": stop},
        requests=requests,
        records=lambda probes, answers, model: rwku.records(probes, answers),
        anchor_answers=rwku.anchor_answers,
        samples=rwku.samples,
        statistics=statistics,
    )


def tofu_benchmark(prompts: str, retain_log: Path | None) -> Benchmark:
    """TOFU; `prompts` as in `tofu.PROMPTS`, `retain_log` the log of a retained model for forget quality."""
    # Read once, before any model is asked: the file may change meanwhile.
    ratios_of = cache(retain_ratios)

    def requests(probes: Sequence[Probe]) -> Sequence[Request]:
        asked = tofu.requests(probes, prompts)
        if retain_log is not None:
            _check_tofu_log(retain_log, ratios_of(retain_log), probes)
        return asked

    def forget_quality(samples: Samples) -> Metrics:
        ratios = samples.get("forget", {}).get("truth_ratio")
        if ratios is None or retain_log is None:
            return {}
        return {"forget_quality": tofu.forget_quality(ratios, ratios_of(retain_log))}

    return Benchmark(
        name="tofu",
        convention="tofu",
        settings={"prompts": prompts, "retain_log": retain_log and str(retain_log)},
        requests=requests,
        records=lambda probes, answers, model: tofu.records(probes, answers),
        anchor_answers=lambda probes, text: tofu.anchor_answers(probes, _filled_in(probes, text)),
        samples=tofu.samples,
        statistics=tofu.statistics,
        further=forget_quality,
        references=lambda: {} if retain_log is None else {RETAINED: retained_metrics(retain_log)},
        log=lambda records, texts: ("TOFU_EVAL.json", log_text(tofu_log_metrics(records))),
    )


def _check_tofu_log(retain_log: Path, ratios: Array, probes: Sequence[Probe]) -> None:
    """Refuse a log that forget quality cannot be computed against, or that is of other questions."""
    forget = sum(tofu.question_set(probe) == "forget" for probe in probes)
    if len(ratios) != forget:
        raise ValueError(
            f"--retain-log {retain_log} has {len(ratios)} forget rows and the probes {forget}; "
            "forget quality compares the same rows: evaluate both models on one split"
        )
    golds = numbered_golds(probes, tofu.question_set)
    check_retained(retain_log, {f"{PREFIXES[name]}_Q_A_ROUGE": golds[name] for name in golds})


def muse_books_benchmark(variant: str, retain_log: Path | None) -> Benchmark:
    """MUSE-Books; `variant` as in `muse_books.CONVENTIONS`, `retain_log` the log of a retained model."""

    def requests(probes: Sequence[Probe]) -> Sequence[Request]:
        asked = muse_books.requests(probes, variant)
        if retain_log is not None:
            golds = numbered_golds(probes, muse_books.probe_set)
            names = muse_books.COMPARED
            check_retained(retain_log, {names[name]: golds[name] for name in names if name in golds})
        return asked

    def records(probes: Sequence[Probe], answers: Answers, model: Path) -> list[Record]:
        truncate = muse_books.truncated_by(partial(_tokenizer, model))
        return muse_books.records(probes, answers, truncate, variant)

    return Benchmark(
        name="muse_books",
        convention="muse",
        settings={"prompts": variant, "retain_log": retain_log and str(retain_log)},
        requests=requests,
        records=records,
        anchor_answers=lambda probes, text: muse_books.anchor_answers(probes, _filled_in(probes, text)),
        samples=muse_books.samples,
        statistics=muse_books.statistics,
        references=lambda: {} if retain_log is None else {RETAINED: _muse_reference(retain_log)},
        log=_muse_log,
    )


def _muse_log(records: Sequence[Record], texts: Sequence[Record]) -> tuple[str, str]:
    scores = {
        part: np.array([text["min_40"] for text in texts if text["set"] == part])
        for part in ("forget", "holdout")
    }
    return "MUSE_EVAL.json", log_text(muse_log_metrics(records, scores if texts else None))


def _muse_reference(retain_log: Path) -> Metrics:
    """Those of our metrics that the log has a number for."""
    scored = muse_score(read_log(retain_log)).metrics
    found = {name: scored.get(name) for name in muse_books.STATISTICS}
    return {name: value for name, value in found.items() if value is not None}


def _filled_in(probes: Sequence[Probe], text: str) -> list[str]:
    return [text.replace("{subject}", probe.subject) for probe in probes]


def _tokenizer(model: Path) -> Any:
    # Its import takes seconds, and only passages are cut.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
