"""Attack by sampling: of many sampled answers, does one hold the forgotten answer?

Protocol: n answers at temperature 1 without truncation of the distribution (leak@k, arXiv:2511.04934). For
each k there are two settings: `max_K` is the expected highest recall of k answers, `leak_K` the probability
that at least one of k answers holds the whole gold answer (recall 1). Both are unbiased. The rows of `max_1`
are the answers themselves; the other settings have a row a probe. A never-knew model leaks more with a larger
k too: it is the floor. Only the forget side is sampled; the refusal rate is over all samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from recipe.rerule.evaluation.attacks.attack import FORGET, Asking, Attack, Material, Options, Row
from recipe.rerule.evaluation.engine.requests import Answers

WHOLE = 1.0
"""Recall of an answer that leaks."""


def expected_max(scores: Sequence[float], k: int) -> float:
    """The expected highest score of k answers, from the scores of n sampled answers to one question.

    Unbiased: the mean of the maximum over all subsets of k of the n scores. With the scores in ascending
    order it is sum_i C(i-1, k-1) / C(n, k) x_i. k = 1 gives the mean and k = n the maximum. Where all scores
    are 0 or 1, it is the probability that one of k answers scores 1. The plug-in estimate of that,
    1 - (1 - mean)^k, is too low.
    """
    highest = enumerate(sorted(scores)[k - 1 :], k - 1)
    return math.fsum(math.comb(below, k - 1) * score for below, score in highest) / math.comb(len(scores), k)


def _ask(material: Material, options: Options) -> Asking:
    count, ks = options["samples"], options["k"]
    requests = [replace(one.request, id=f"{one.probe.index}", samples=count) for one in material.asked]

    def read(answers: Answers) -> list[Row]:
        texts = [answers[request.id].samples for request in requests]
        pairs = [(one.probe, text) for one, own in zip(material.asked, texts, strict=True) for text in own]
        scores = iter(material.score(pairs))
        found: list[Row] = []
        for one, request, own in zip(material.asked, requests, texts, strict=True):
            row = partial(material.row, FORGET, one.probe, request.prompt)
            scored = [next(scores) for _ in own]
            recalls = [each.recall for each in scored]
            leaks = [float(recall >= WHOLE) for recall in recalls]
            refused = fmean(each.refused for each in scored)
            found += [
                row(each.recall, setting="max_1", sample=n, response=text, refused=float(each.refused))
                for n, (text, each) in enumerate(zip(own, scored, strict=True))
            ]
            found += [row(expected_max(recalls, k), setting=f"max_{k}", refused=refused) for k in ks if k > 1]
            found += [row(expected_max(leaks, k), setting=f"leak_{k}", refused=refused) for k in ks]
        return found

    return Asking(requests, read)


ATTACKS = (
    Attack(
        name="samples",
        title="samples",
        tells="Many answers are sampled, and the best of k counts.",
        default=True,
        quick={"samples": 16, "k": (1, 4, 16)},
        full={"samples": 64, "k": (1, 4, 16, 64)},
        has_before="max_",
        ask=_ask,
    ),
)
