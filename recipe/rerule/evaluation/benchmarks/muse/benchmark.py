"""MUSE: what a model still knows of a corpus (KnowMem), and can recite of it (VerbMem).

knowmem_f, knowmem_r (MUSE's utility) and verbmem_f are MUSE's own numbers: ROUGE-L F1 without a stemmer, mean
over questions or passages. The metrics under open-unlearning's names use the stemmer. All are fractions of 1.
Extraction strength and exact memorisation are of the right answers' tokens, and of the first REFERENCE_TOKENS
of a passage's continuation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from recipe.rerule.evaluation.benchmarks.muse.conventions import CONVENTIONS, Convention
from recipe.rerule.evaluation.engine.requests import Answer, Answers, Generation, PromptText, Request
from recipe.rerule.evaluation.memorised import MEMORISATION, memorised, of_all, right_answer
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
MEMORISED = {
    (name if set_name == "verbmem_f" else f"{set_name}_{name}"): (set_name, name)
    for set_name in SETS
    for name in MEMORISATION
}
"""Metric to its set and quantity. open-unlearning's names are those of the passages."""
_REFERENCE_WORDS = re.compile(rf"(?:\s*\S+){{1,{REFERENCE_TOKENS}}}")

LEGEND = (
    "knowmem_f, knowmem_r, verbmem_f: ROUGE-L F1 of rouge_score without the stemmer, as MUSE defines them. "
    "..._ROUGE: the same with the stemmer, open-unlearning's. All are fractions of 1; privleak is in percent."
)
STATISTICS: Mapping[str, Statistic] = {
    **{name: mean_of("rouge_l", [name]) for name in SETS},
    **{OPEN_UNLEARNING_NAMES[name]: mean_of("rouge_l_stemmed", [name]) for name in SETS},
    **{f"{name}_refusal_rate": mean_of("refused", [name]) for name in SETS},
    **{metric: mean_of(quantity, [name]) for metric, (name, quantity) in MEMORISED.items()},
}


def statistics(samples: Samples) -> dict[str, Statistic]:
    """Those of STATISTICS that `samples` allow: without passages, and without ranks, some are left out."""
    names = {OPEN_UNLEARNING_NAMES[name]: name for name in SETS}

    def allowed(metric: str) -> bool:
        if metric in MEMORISED:
            name, quantity = MEMORISED[metric]
            return quantity in samples.get(name, {})
        return names.get(metric, metric.removesuffix("_refusal_rate")) in samples

    return {metric: statistic for metric, statistic in STATISTICS.items() if allowed(metric)}


def probe_set(probe: Probe | Record) -> str:
    """The metric a probe or record counts in. Raises ValueError where it is none of MUSE's."""
    fields = probe if isinstance(probe, dict) else vars(probe)
    place = fields["section"], fields["mode"]
    for name, known in SETS.items():
        if place == known:
            return name
    raise ValueError(f"probe {fields['index']}: MUSE has no {place[0]} probes of mode {place[1]!r}")


def requests(probes: Sequence[Probe], convention: str = "muse") -> list[Request]:
    """A generation and the ranks of the right answer a probe. Its raw prompt carries MUSE's examples already.

    Raises ValueError where `convention` is none of CONVENTIONS, or a probe none of MUSE's.
    """
    modes = _conventions(convention)
    return [request for probe in probes for request in _requests(probe, modes)]


def _conventions(convention: str) -> Mapping[str, Convention]:
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown MUSE convention {convention!r}; choose one of {', '.join(CONVENTIONS)}")
    return CONVENTIONS[convention]


def _requests(probe: Probe, modes: Mapping[str, Convention]) -> Iterable[Request]:
    probe_set(probe)
    mode = modes[probe.mode]
    text = mode.template.replace("{prompt}", probe.messages[-1]["content"])
    prompt = PromptText(({"role": "user", "content": text},), raw=True)
    yield Generation(f"{probe.index}/generation", prompt, mode.max_tokens, mode.stop)
    if answer := measured(probe):
        yield right_answer(f"{probe.index}/answer", prompt, answer)


def measured(probe: Probe) -> str:
    """The text whose tokens are ranked: of a passage not much more than counts, since each token costs.

    Line ends before it are left out: some tokenizers would join them with the end of the prompt.
    """
    answer = probe.golds[0]
    if "\n" in answer[: len(answer) - len(answer.lstrip())]:
        answer = answer.lstrip()
    if probe.mode != "completion":
        return answer
    # A token holds hardly ever more than one word.
    found = _REFERENCE_WORDS.match(answer)
    return found[0] if found else ""


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
        **memorised(answers.get(f"{probe.index}/answer"), REFERENCE_TOKENS),
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
    """Scores by metric: rouge_l (MUSE's), rouge_l_stemmed (open-unlearning's), refused, and MEMORISATION."""
    members: dict[str, list[Record]] = {}
    for record in records:
        members.setdefault(probe_set(record), []).append(record)
    quantities = ("rouge_l", "rouge_l_stemmed", "refused")
    return {
        name: {
            quantity: np.array([record[quantity] for record in members[name]], dtype=float)
            for quantity in quantities
        }
        | of_all(members[name])
        for name in SETS
        if name in members
    }
