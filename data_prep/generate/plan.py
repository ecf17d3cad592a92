"""What has to be asked, and what is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_prep.generate.call import cache_key, check_answer
from data_prep.generate.endpoint import Endpoint
from data_prep.generate.errors import AttemptError
from data_prep.generate.task import Answer, Request


@dataclass(frozen=True)
class Plan:
    """Requests sorted by what is known of them; identical requests share a key.

    Attributes:
        keys: the cache key of every request, in their order.
        answers: what is known already, by key.
        pending: what has to be asked, by key, in order of first appearance.
    """

    keys: list[str]
    answers: dict[str, Answer]
    pending: dict[str, Request]


def make_plan(
    requests: Sequence[Request], endpoint: Endpoint, recall: Callable[[str], Answer | None]
) -> Plan:
    """Looks every request up; `recall` gives what is kept under a key."""
    plan = Plan([cache_key(request, endpoint) for request in requests], {}, {})
    for key, request in zip(plan.keys, requests, strict=True):
        if key in plan.answers or key in plan.pending:
            continue
        answer = recall(key)
        if answer is not None and _stands(request, answer):
            plan.answers[key] = answer
        else:
            plan.pending[key] = request
    return plan


def _stands(request: Request, answer: Answer) -> bool:
    """Whether a kept answer passes the checks of today: a file may have been edited, or a check changed."""
    try:
        check_answer(request, answer)
    except AttemptError:
        return False
    return True
