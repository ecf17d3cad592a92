"""Which attacks there are, what one may declare, and how folds and seeds come together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from recipe.rerule.evaluation.attacks import registry
from recipe.rerule.evaluation.attacks.attack import Asking, Attack


def made(name: str, **changes: Any) -> Attack:
    said = {
        "title": "T",
        "tells": "It asks.",
        "ask": lambda material, options: Asking([], lambda answers: []),
    }
    return Attack(name=name, **(said | changes))


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A list of what entry points give; the registry is empty but for them."""
    given: list[Any] = []

    class Entry:
        name, value = "theirs", "package:ATTACK"

        def __init__(self, loaded: Any) -> None:
            self.loaded = loaded

        def load(self) -> Any:
            if isinstance(self.loaded, BaseException):
                raise self.loaded
            return self.loaded

    monkeypatch.setattr(registry.pkgutil, "iter_modules", lambda folder: [])
    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry(one) for one in given])
    registry.attacks.cache_clear()
    yield given
    registry.attacks.cache_clear()


def test_built_in_attacks_have_their_own_names() -> None:
    """And stand by what they do: those that ask, those that change and those that measure."""
    known = registry.attacks()
    for name, attack in known.items():
        assert attack.name == name
        assert attack.tells.endswith(".")
    kinds = [(one.ask is None, one.changes is None) for one in known.values()]
    assert kinds == sorted(kinds)
    assert next(iter(known)) == registry.BEFORE


def test_attacks_of_other_packages(outside: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    outside += [made("one"), made("one"), "no attack", made("default"), SystemExit(3), made("two")]
    assert list(registry.attacks()) == ["one", "two"]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 4
    assert warnings[0] == (
        "warning: attack theirs (package:ATTACK) is left out: there is an attack one already"
    )
    assert "it is no recipe.rerule.evaluation.attacks.attack.Attack" in warnings[1]


def test_choosing(outside: list[Any]) -> None:
    outside += [made("one"), made("two", default=True), made("three", default=True)]
    assert [one.name for one in registry.chosen(["default"])] == ["two", "three"]
    assert [one.name for one in registry.chosen(["three", "one", "three"])] == ["one", "three"]
    assert [one.name for one in registry.chosen(["one", "default"])] == ["one", "two", "three"]
    with pytest.raises(ValueError, match=r"there is no attack 'thre'; the nearest name is three\. Known are"):
        registry.chosen(["one", "thre"])


def test_what_may_not_be_declared() -> None:
    with pytest.raises(ValueError, match="its name is 'A b'"):
        made("A b")
    with pytest.raises(ValueError, match="has the option n, which its quick budget lacks"):
        made("one", full={"n": 1})
    with pytest.raises(ValueError, match="needs one of ask, changes and measure"):
        made("one", ask=None)
