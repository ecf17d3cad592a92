"""Which attacks there are, what one may declare, and that the documents tell of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule.evaluation.attacks import registry
from recipe.rerule.evaluation.attacks.attack import Asking, Attack
from recipe.rerule.evaluation.engine.requests import Answer
from tests.evaluation.attacks.made import material, probe, scores

DOCS = Path(__file__).parents[3] / "docs"


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


def test_every_attack_is_in_the_table_of_the_documents_with_its_default() -> None:
    """And they stand by what they do: those that ask, those that change and those that measure."""
    known = registry.attacks()
    text = (DOCS / "attacks.md").read_text(encoding="utf-8").split("\n## The attacks\n")[1]
    cells = [line.strip("|").split("|") for line in text.split("\n\n")[0].splitlines()[2:]]
    listed = {name: one[1].strip() for one in cells for name in re.findall(r"`(\w+)`", one[0])}
    assert listed == {
        name: "always" if name == registry.BEFORE else "yes" if attack.default else "no"
        for name, attack in known.items()
    }
    kinds = [(one.ask is None, one.changes is None) for one in known.values()]
    assert kinds == sorted(kinds)
    assert next(iter(known)) == registry.BEFORE


def test_the_example_of_an_attack() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n# loud\.py\n(.*?)```", text, re.DOTALL)
    written: dict[str, Any] = {}
    exec(code, written)
    asking = written["ATTACK"].ask(material([probe(0)]), {})
    (request,) = asking.requests
    assert request.prompt.messages[0]["content"] == "WHERE DOES PERSON 0 LIVE (QA)?"
    assert scores(asking.read({request.id: Answer("Paris")}))["", "forget"] == {0: 1.0}


def test_attacks_of_other_packages(outside: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    outside += [made("one"), made("one"), "no attack", made("default"), SystemExit(3), made("two")]
    assert list(registry.attacks()) == ["one", "two"]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 4
    assert warnings[0] == (
        "warning: attack theirs (package:ATTACK) is left out: there is an attack one already"
    )
    assert "it is no recipe.rerule.evaluation.attacks.attack.Attack" in warnings[1]


def test_choosing_and_what_may_not_be_declared(outside: list[Any]) -> None:
    outside += [made("one"), made("two", default=True), made("three", default=True)]
    assert [one.name for one in registry.chosen(["three", "one", "three"])] == ["one", "three"]
    assert [one.name for one in registry.chosen(["one", "default"])] == ["one", "two", "three"]
    with pytest.raises(ValueError, match=r"there is no attack 'thre'; the nearest name is three\. Known are"):
        registry.chosen(["one", "thre"])
    for name, changes, message in (
        ("A b", {}, "its name is 'A b'"),
        ("one", {"full": {"n": 1}}, "has the option n, which its quick budget lacks"),
        ("one", {"ask": None}, "needs one of ask, changes and measure"),
    ):
        with pytest.raises(ValueError, match=message):
            made(name, **changes)
