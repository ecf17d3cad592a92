"""The helpers of ``groups`` as fixtures. Session-wide, so that property tests may use them too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recipe.rerule.replay import RolloutGroup
from tests.replay import groups


@pytest.fixture(scope="session")
def make_group() -> Callable[..., RolloutGroup]:
    return groups.make_group


@pytest.fixture(scope="session")
def contents() -> Callable[[RolloutGroup], dict[str, object]]:
    return groups.contents
