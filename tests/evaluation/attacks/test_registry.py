"""Attacks of other packages, what one may declare, and the example of the documents."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipe.rerule.evaluation.attacks import registry
from recipe.rerule.evaluation.attacks.attack import Asking, Attack
from recipe.rerule.evaluation.engine.requests import Answer
from tests.evaluation.attacks.made import material, probe, scores

DOCS = Path(__file__).parents[3] / "docs"


def made(name: str, **changes: Any) -> Attack:
    def ask(material: Any, options: Any) -> Asking:
        return Asking([], lambda answers: [])

    return Attack(**{"name": name, "title": "T", "tells": "It asks.", "ask": ask, **changes})


def test_the_example_of_an_attack():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n# loud\.py\n(.*?)```", text, re.DOTALL)
    written: dict[str, Any] = {}
    exec(code, written)
    asking = written["ATTACK"].ask(material([probe(0)]), {})
    (request,) = asking.requests
    assert request.prompt.messages[0]["content"] == "WHERE DOES PERSON 0 LIVE (QA)?"
    assert scores(asking.read({request.id: Answer("Paris")}))["", "forget"] == {0: 1.0}


def test_attacks_of_other_packages_are_chosen_by_name(monkeypatch, capsys):
    def broken() -> None:
        raise SystemExit(3)

    given = [made("one"), made("one"), "no attack", made("default"), made("two", default=True)]
    loads = [broken, *((lambda one=one: one) for one in given)]
    entries = [SimpleNamespace(name="theirs", value="package:ATTACK", load=load) for load in loads]
    monkeypatch.setattr(registry.pkgutil, "iter_modules", lambda folder: [])
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    registry.attacks.cache_clear()
    assert list(registry.attacks()) == ["one", "two"]
    _, second, third, fourth = capsys.readouterr().err.splitlines()
    left_out = "warning: attack theirs (package:ATTACK) is left out: "
    assert second == f"{left_out}there is an attack one already"
    assert third.startswith(f"{left_out}it is no recipe.rerule.evaluation.attacks.attack.Attack")
    assert fourth == f"{left_out}there is an attack default already"
    assert [one.name for one in registry.chosen(["two", "one", "two"])] == ["one", "two"]
    assert [one.name for one in registry.chosen(["default"])] == ["two"]
    with pytest.raises(ValueError, match=r"there is no attack 'tow'; the nearest name is two\. Known are"):
        registry.chosen(["one", "tow"])
    registry.attacks.cache_clear()


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("A b", {}, "its name is 'A b'"),
        ("one", {"full": {"n": 1}}, "has the option n, which its quick budget lacks"),
        ("one", {"ask": None}, "needs one of ask, changes and measure"),
    ],
)
def test_what_may_not_be_declared(name, changes, told):
    with pytest.raises(ValueError, match=told):
        made(name, **changes)
