"""docs/attacks.md lists every attack, and the example of docs/architecture.md is an attack."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from recipe.rerule.evaluation.attacks.registry import BEFORE, attacks
from recipe.rerule.evaluation.engine.requests import Answer
from tests.evaluation.attacks.made_material import material, probe, scores

DOCS = Path(__file__).parents[3] / "docs"


def rows() -> list[list[str]]:
    """The rows of the table of attacks: its cells."""
    text = (DOCS / "attacks.md").read_text(encoding="utf-8").split("\n## The attacks\n")[1]
    lines = text.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_attack_is_in_the_table_with_its_default() -> None:
    listed = {
        name: cells[1] == "yes" or (name == BEFORE and cells[1] == "always")
        for cells in rows()
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert listed == {name: attack.default for name, attack in attacks().items()}


def test_the_example_of_an_attack() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n# loud\.py\n(.*?)```", text, re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    asking = made["ATTACK"].ask(material([probe(0)]), {})
    (request,) = asking.requests
    assert request.prompt.messages[0]["content"] == "WHERE DOES PERSON 0 LIVE (QA)?"
    assert scores(asking.read({request.id: Answer("Paris")}))["", "forget"] == {0: 1.0}
