"""evaluate attack --template: every kind of attack asks with the arguments of the chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from recipe.rerule import evaluate
from tests.evaluation.engine.made_models import TEMPLATE

ATTACKS = ("prefill", "many_shot", "relearn_forget_half", "refusal_direction", "logit_lens", "linear_probe")
"""Attacks by requests, by changed models and by forward passes."""
_OTHER = TEMPLATE.replace("<{{ message.role }}>", "<{{ message.role }}>{{ 'Home of AZ?' * 4 }}")
SWITCHED = f"{{% if plain %}}{TEMPLATE}{{% else %}}{_OTHER}{{% endif %}}"
"""The template of the models behind a switch; without it every turn asks for a person of its own first."""


@pytest.fixture(scope="module")
def switched(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of `world` with the template SWITCHED."""
    folder = tmp_path_factory.mktemp("switched")
    for source in (world / "models").iterdir():
        shutil.copytree(source, folder / source.name)
        (folder / source.name / "chat_template.jinja").write_text(SWITCHED)
    return folder


def scores(models: Path, world: Path, out: Path, *arguments: str) -> list[dict[str, Any]]:
    """Every value that the command found."""
    code = evaluate.main(
        [
            *("attack", "--platform", "cpu", "--max-tokens", "12", "--out", f"{out}", *arguments),
            *("--probes", f"{world / 'probes.parquet'}", "--train", f"{world / 'train.parquet'}"),
            *("--model", f"original={models / 'original'}", "--model", f"refusing={models / 'refusing'}"),
            *("--control", f"{models / 'control'}", "--attacks", *ATTACKS),
        ]
    )
    assert code == 0
    return [json.loads(line) for line in (out / "scores.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("attack")
def test_models_behind_a_switch_are_attacked_as_those_without_it(
    world: Path, switched: Path, tmp_path: Path
) -> None:
    """With the argument all values are those of the plain template; without it each attack finds others."""
    plain = scores(world / "models", world, tmp_path / "plain")
    given = scores(switched, world, tmp_path / "given", "--template", "plain=true")
    assert given == plain
    without = scores(switched, world, tmp_path / "without")
    changed = {one["attack"].split("/")[0] for one, other in zip(plain, without, strict=True) if one != other}
    assert changed >= set(ATTACKS)
    assert json.loads((tmp_path / "given/meta.json").read_text())["template"] == {"plain": True}
    assert "template" not in json.loads((tmp_path / "plain/meta.json").read_text())


@pytest.mark.usefixtures("attack")
def test_an_argument_that_no_template_has_ends_the_command(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = evaluate.main(
        [
            *("attack", "--platform", "cpu", "--out", f"{tmp_path / 'out'}", "--template", "plane=true"),
            *("--probes", f"{world / 'probes.parquet'}", "--attacks", "prefill"),
            *("--model", f"original={world / 'models/original'}"),
        ]
    )
    assert code == 2
    line = "error: --template plane: no model's chat template has an argument of this name"
    assert capsys.readouterr().err.strip().splitlines()[-1] == line
    assert not (tmp_path / "out").exists()
