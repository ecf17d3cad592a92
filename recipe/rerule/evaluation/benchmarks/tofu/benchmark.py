"""TOFU: what it asks of a model about each probe, and the scores of the answers.

ROUGE-L is recall with the stemmer (convention "tofu" of reward.rouge); metrics.py has the definitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from recipe.rerule.evaluation.benchmarks.tofu.declaration import PROMPTS
from recipe.rerule.evaluation.benchmarks.tofu.metrics import (
    LEGEND,
    OPTIONS,
    PREFIXES,
    STATISTICS,
    forget_quality,
    probabilities,
    ratios,
    statistics,
)
from recipe.rerule.evaluation.engine.requests import (
    Answer,
    Answers,
    Generation,
    Likelihood,
    PromptText,
    Request,
)
from recipe.rerule.evaluation.memorised import memorised, of_all
from recipe.rerule.evaluation.probes import Probe
from recipe.rerule.evaluation.statistics.samples import Array
from reward.refusal import is_refusal
from reward.rouge import rouge_l

__all__ = [
    "LEGEND",
    "PROMPTS",
    "STATISTICS",
    "anchor_answers",
    "forget_quality",
    "question_set",
    "records",
    "requests",
    "samples",
    "statistics",
]

Record = dict[str, Any]

MAX_TOKENS = 200


def question_set(probe: Probe | Record) -> str:
    """The question set of a probe or record. Raises ValueError where it is none of TOFU's."""
    fields = probe if isinstance(probe, dict) else vars(probe)
    name = "forget" if fields["section"] == "forget" else fields["family"]
    if name not in PREFIXES:
        known = ", ".join(PREFIXES)
        raise ValueError(f"probe {fields['index']}: family {name!r} is none of TOFU's sets ({known})")
    return name


def requests(probes: Sequence[Probe], prompt: str = "chat", max_tokens: int = MAX_TOKENS) -> list[Request]:
    """What TOFU asks of a model: a generation, and the likelihoods of right, paraphrased and wrong answers.

    Args:
        prompt: one of PROMPTS.

    Raises:
        ValueError: an unknown prompt, or a probe without the answers TOFU compares.
    """
    if prompt not in PROMPTS:
        raise ValueError(f"unknown TOFU prompt {prompt!r}; choose one of {', '.join(PROMPTS)}")
    return [request for probe in probes for request in _requests(probe, prompt, max_tokens)]


def _requests(probe: Probe, prompt: str, max_tokens: int) -> Iterable[Request]:
    text = _prompt_text(probe, PROMPTS[prompt])
    yield Generation(f"{probe.index}/generation", text, max_tokens)
    for name, answer in _measured(probe):
        yield Likelihood(f"{probe.index}/{name}", text, answer)


def _prompt_text(probe: Probe, template: str | None) -> PromptText:
    if template is None:
        return PromptText(tuple(probe.messages), raw=probe.raw)
    query = probe.query or probe.messages[-1]["content"]
    # The query may hold braces of its own.
    return PromptText(({"role": "user", "content": template.replace("{query}", query)},), raw=True)


def _measured(probe: Probe) -> list[tuple[str, str]]:
    """(name, answer) of each likelihood that is asked for."""
    reference = probe.reference
    if reference is None or not reference.perturbed:
        raise ValueError(
            f"probe {probe.index} has no wrong answers to compare with; prepare the data again from TOFU's "
            "*_perturbed tables"
        )
    named = [("answer", probe.golds[0])]
    if question_set(probe) not in OPTIONS:
        if reference.paraphrased is None:
            raise ValueError(f"probe {probe.index} has no paraphrased answer, which TOFU's truth ratio needs")
        named.append(("paraphrased", reference.paraphrased))
    return named + [(f"perturbed/{number}", text) for number, text in enumerate(reference.perturbed)]


def records(probes: Sequence[Probe], answers: Answers) -> list[Record]:
    """One record a probe; losses are None where their answers are missing, as of constant responses."""
    return [_record(probe, answers) for probe in probes]


def _record(probe: Probe, answers: Answers) -> Record:
    response = answers[f"{probe.index}/generation"].text.strip()
    return {
        **probe.labels,
        "prompt": probe.query or probe.messages[-1]["content"],
        "golds": probe.golds,
        "response": response,
        "rouge_l": rouge_l(response, probe.golds[0], "tofu"),
        "refused": is_refusal(response),
        **_losses(probe, answers),
        **memorised(answers.get(f"{probe.index}/answer")),
    }


def _losses(probe: Probe, answers: Answers) -> Record:
    def loss(name: str) -> float | None:
        answer = answers.get(f"{probe.index}/{name}")
        return None if answer is None else answer.avg_loss

    right = loss("answer")
    if right is None:
        return {"prob": None, "avg_loss": None, "paraphrased_loss": None, "perturbed_losses": None}
    wrong = probe.reference.perturbed if probe.reference else ()
    return {
        "prob": math.exp(-right),
        "avg_loss": right,
        "paraphrased_loss": loss("paraphrased"),
        "perturbed_losses": [loss(f"perturbed/{number}") for number in range(len(wrong))],
    }


def anchor_answers(probes: Sequence[Probe], texts: Sequence[str]) -> Answers:
    """Answers of constant responses: texts, and no likelihoods."""
    return {f"{probe.index}/generation": Answer(text=text) for probe, text in zip(probes, texts, strict=True)}


# From records to samples.


def samples(records: Sequence[Record]) -> dict[str, dict[str, Array]]:
    """Quantities by question set; those of likelihoods only where every record of the set has them."""
    members: dict[str, list[Record]] = {}
    for record in records:
        members.setdefault(question_set(record), []).append(record)
    return {name: _quantities(name, members[name]) for name in PREFIXES if name in members}


def _quantities(set_name: str, members: Sequence[Record]) -> dict[str, Array]:
    found = {
        "rouge_l": np.array([record["rouge_l"] for record in members], dtype=float),
        "refused": np.array([record["refused"] for record in members], dtype=float),
        **of_all(members),
    }
    if any(record["avg_loss"] is None for record in members):
        return found
    _check_wrong(members)
    right_key = "avg_loss" if set_name in OPTIONS else "paraphrased_loss"
    loss = np.array([record["avg_loss"] for record in members], dtype=float)
    right = np.array([record[right_key] for record in members], dtype=float)
    wrong = np.array([record["perturbed_losses"] for record in members], dtype=float)
    probs = probabilities(set_name, np.exp(-loss), np.exp(-wrong))
    return found | probs | ratios(right, wrong)


def _check_wrong(members: Sequence[Record]) -> None:
    expected = len(members[0]["perturbed_losses"])
    for record in members:
        count = len(record["perturbed_losses"])
        if count != expected:
            raise ValueError(
                f"probe {record['index']} has {count} wrong answers, where others have {expected}"
            )
