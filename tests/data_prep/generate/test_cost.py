from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from data_prep.generate import REFUSALS, Endpoint, Estimate, Request, estimate
from data_prep.generate.cache import Cache
from data_prep.generate.call import cache_key
from tests.data_prep.generate.server import NOTE, notes

ENDPOINT = Endpoint("http://localhost:8000/v1", "tiny", price_in=2.0, price_out=10.0)
SCHEMA_BYTES = len(json.dumps(NOTE.schema({})))


def test_tokens_and_cost_of_the_calls_to_make() -> None:
    """Three different prompts of 13 characters; NOTE says 8 tokens an answer."""
    prompt_tokens = 3 * -(-(13 + SCHEMA_BYTES) // 4)
    found = estimate(notes(3) + notes(2), ENDPOINT)
    assert found == Estimate(
        requests=5,
        calls=3,
        prompt_tokens=prompt_tokens,
        completion_tokens=24,
        cost=(prompt_tokens * 2 + 24 * 10) / 1e6,
    )


def test_bytes_count_and_not_characters() -> None:
    ascii_, greek = (Request(NOTE, {"number": text}) for text in ("a" * 40, "α" * 40))
    tokens = [estimate([request], ENDPOINT).prompt_tokens for request in (ascii_, greek)]
    assert tokens[1] - tokens[0] == 10


def test_what_is_kept_costs_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put_answer(cache_key(notes(1)[0], ENDPOINT), {"note": "x"})
    assert estimate(notes(3), ENDPOINT, tmp_path).calls == 2
    assert estimate(notes(1), ENDPOINT, tmp_path).cost == 0


def test_more_refusals_are_a_longer_answer() -> None:
    few, many = (Request(REFUSALS, {"name": "A", "count": count}) for count in (5, 50))
    assert estimate([many], ENDPOINT).completion_tokens > 5 * estimate([few], ENDPOINT).completion_tokens


def test_the_text_says_how_it_was_estimated() -> None:
    text = str(Estimate(requests=5, calls=3, prompt_tokens=120, completion_tokens=24, cost=0.00048))
    assert text.splitlines() == [
        "5 requests, 3 calls to make (the others repeat one or are known)",
        "prompt tokens: about 120 (4 bytes of prompt and schema counted as one)",
        "completion tokens: about 24 (the usual length of each task's answers)",
        "cost: 0.0005 in the currency of the prices; calls that have to be repeated come on top",
    ]


def test_without_prices_the_price_is_unknown() -> None:
    unpriced = replace(ENDPOINT, price_in=None, price_out=None)
    assert "cost: price unknown" in str(estimate(notes(1), unpriced))
