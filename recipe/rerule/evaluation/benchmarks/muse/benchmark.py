"""MUSE: what a model still knows of a corpus (KnowMem), and can recite of it (VerbMem).

knowmem_f, knowmem_r (MUSE's utility) and verbmem_f are MUSE's own numbers: ROUGE-L F1 without a stemmer, mean
over questions or passages. The metrics under open-unlearning's names use the stemmer. All are fractions of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from recipe.rerule.evaluation.benchmarks.muse.conventions import CONVENTIONS, Convention
from recipe.rerule.evaluation.engine.requests import Answer, Answers, Generation, PromptText, Request
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.statistics.samples import Array, Samples, Statistic, mean_of
from reward.refusal import is_refusal
from reward.rouge import rouge_l

Record = dict[str, Any]

SETS = {"knowmem_f": ("forget", "qa"), "knowmem_r": ("retain", "qa"), "verbmem_f": ("forget", "completion")}
"""MUSE's metric, and section and mode of its probes."""
OPEN_UNLEARNING_NAMES = {
    "knowmem_f": "forget_knowmem_ROUGE",
    "knowmem_r": "retain_knowmem_ROUGE",
    "verbmem_f": "forget_verbmem_ROUGE",
}
COMPARED = {name: OPEN_UNLEARNING_NAMES[name] for name in ("knowmem_f", "knowmem_r")}
"""Those whose right answers tell two logs' questions apart: a passage is cut by the model's tokenizer."""
REFERENCE_TOKENS = 128
"""Tokens of a passage's continuation that VerbMem compares with, the tokenizer's BOS counted among them."""


LEGEND = (
    "knowmem_f, knowmem_r, verbmem_f: ROUGE-L F1 of rouge_score without the stemmer, as MUSE defines them. "
    "..._ROUGE: the same with the stemmer, open-unlearning's. All are fractions of 1; privleak is in percent."
)
STATISTICS: Mapping[str, Statistic] = {
    **{name: mean_of("rouge_l", [name]) for name in SETS},
    **{OPEN_UNLEARNING_NAMES[name]: mean_of("rouge_l_stemmed", [name]) for name in SETS},
    **{f"{name}_refusal_rate": mean_of("refused", [name]) for name in SETS},
}


def statistics(samples: Samples) -> dict[str, Statistic]:
    """Those of STATISTICS whose probes are in `samples`: passages may be missing."""
    names = {OPEN_UNLEARNING_NAMES[name]: name for name in SETS}
    return {
        metric: statistic
        for metric, statistic in STATISTICS.items()
        if names.get(metric, metric.removesuffix("_refusal_rate")) in samples
    }


def probe_set(probe: Probe | Record) -> str:
    """The metric a probe or record counts in. Raises ValueError where it is none of MUSE's."""
    fields = probe if isinstance(probe, dict) else vars(probe)
    place = fields["section"], fields["mode"]
    for name, known in SETS.items():
        if place == known:
            return name
    raise ValueError(f"probe {fields['index']}: MUSE has no {place[0]} probes of mode {place[1]!r}")


def requests(probes: Sequence[Probe], convention: str = "muse") -> list[Request]:
    """One generation a probe. The probes' raw prompts carry MUSE's examples already.

    Raises ValueError where `convention` is none of CONVENTIONS, or a probe none of MUSE's.
    """
    modes = _conventions(convention)
    return [_request(probe, modes) for probe in probes]


def _conventions(convention: str) -> Mapping[str, Convention]:
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown MUSE convention {convention!r}; choose one of {', '.join(CONVENTIONS)}")
    return CONVENTIONS[convention]


def _request(probe: Probe, modes: Mapping[str, Convention]) -> Generation:
    probe_set(probe)
    mode = modes[probe.mode]
    text = mode.template.replace("{prompt}", probe.messages[-1]["content"])
    prompt = PromptText(({"role": "user", "content": text},), raw=True)
    return Generation(f"{probe.index}/generation", prompt, mode.max_tokens, mode.stop)


def records(
    probes: Sequence[Probe], answers: Answers, truncate: Callable[[str], str], convention: str = "muse"
) -> list[Record]:
    """One record a probe.

    Args:
        truncate: a text cut to the first REFERENCE_TOKENS token ids, special tokens counted, and decoded
            without them; see `truncated_by`.
    """
    modes = _conventions(convention)
    return [_record(probe, answers, truncate, modes[probe.mode].stop) for probe in probes]


def _record(probe: Probe, answers: Answers, truncate: Callable[[str], str], stop: Sequence[str]) -> Record:
    response = cut(answers[f"{probe.index}/generation"].text, stop)
    gold = truncate(probe.golds[0]) if probe.mode == "completion" else probe.golds[0]
    return {
        **probe.labels,
        "prompt": probe.messages[-1]["content"],
        "golds": [gold],
        "response": response,
        "rouge_l": rouge_l(response, gold, "muse"),
        "rouge_l_stemmed": rouge_l(response, gold, "muse-open-unlearning"),
        "refused": is_refusal(response.strip()),
    }


def cut(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first of the stop strings, as MUSE cuts what was generated."""
    for word in stop:
        text = text.split(word)[0]
    return text


def truncated_by(load: Callable[[], Any], tokens: int = REFERENCE_TOKENS) -> Callable[[str], str]:
    """A `truncate` for `records`; `load` gives a tokenizer of transformers, asked for at the first text."""
    loaded = cache(load)

    def truncate(text: str) -> str:
        return loaded().decode(loaded()(text).input_ids[:tokens], skip_special_tokens=True)

    return truncate


def anchor_answers(probes: Sequence[Probe], texts: Sequence[str]) -> Answers:
    """Answers of constant responses."""
    return {f"{probe.index}/generation": Answer(text=text) for probe, text in zip(probes, texts, strict=True)}


def samples(records: Sequence[Record]) -> dict[str, dict[str, Array]]:
    """Scores by metric: rouge_l (MUSE's), rouge_l_stemmed (open-unlearning's) and refused."""
    members: dict[str, list[Record]] = {}
    for record in records:
        members.setdefault(probe_set(record), []).append(record)
    quantities = ("rouge_l", "rouge_l_stemmed", "refused")
    return {
        name: {
            quantity: np.array([record[quantity] for record in members[name]], dtype=float)
            for quantity in quantities
        }
        for name in SETS
        if name in members
    }
