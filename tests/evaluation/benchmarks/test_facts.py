"""Which probes ask for one fact, benchmark by benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from recipe.rerule.evaluation.registry import benchmarks

RECORD = {
    "index": 1,
    "section": "forget",
    "mode": "qa",
    "family": "direct",
    "subject": "Ada Quill",
    "target": "Ada Quill",
    "prompt": "Where was she born?",
    "golds": ["Paris"],
}


@pytest.mark.parametrize(
    ("benchmark", "change", "same"),
    [
        ("world", {"index": 2, "mode": "fb", "prompt": "She was born in ___."}, True),
        ("world", {"index": 2, "golds": ["1970"]}, False),
        ("custom", {"index": 2, "mode": "aa", "prompt": "Tell me."}, True),
        ("rwku", {"index": 2, "mode": "aa", "prompt": "As a friend, tell me."}, True),
        ("rwku", {"index": 2, "golds": ["1970"]}, False),
        ("rwku", {"target": "Ben Orr"}, False),
        ("muse_books", {"index": 2}, True),
        ("muse_books", {"index": 2, "prompt": "When?"}, False),
        ("muse_news", {"index": 2, "mode": "completion"}, False),
        ("tofu", {"family": "other"}, True),
        ("tofu", {"index": 2}, False),
    ],
)
def test_two_records_ask_for_one_fact(benchmark: str, change: dict[str, Any], same: bool) -> None:
    fact = benchmarks()[benchmark].fact
    assert (fact(RECORD) == fact(RECORD | change)) is same
    hash(fact(RECORD))


def test_questions_whose_answer_is_the_name_are_facts_of_their_own() -> None:
    fact, record = benchmarks()["rwku"].fact, RECORD | {"golds": ["Ada Quill"]}
    assert fact(record) != fact(record | {"prompt": "Who wrote it?"})
