"""A tokenizer of each family, made once."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.families.made import FAMILIES, LLAMA_3_1, Family, tokenizer_of

TEXTS = ["Who wrote it? Ada Thorn wrote it.", "I do not know who wrote it.", "Say nothing of Ada Thorn."]
ALL = [*FAMILIES.values(), LLAMA_3_1]


@cache
def _tokenizer(name: str) -> Any:
    family = next(one for one in ALL if one.name == name)
    return tokenizer_of(family, TEXTS * 4)


@pytest.fixture(params=ALL, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture
def tokenizer(family: Family) -> Any:
    return _tokenizer(family.name)
