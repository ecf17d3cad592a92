"""evaluate attack --template: every kind of attack asks with the arguments of the chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from recipe.rerule import evaluate
from recipe.rerule.evaluation import tidy
from tests.evaluation.attacks.conftest import words

ATTACKS = ("prefill", "relearn_retain", "refusal_direction", "logit_lens")
"""Attacks that ask, that change models and that measure."""


@pytest.fixture(scope="module")
def switched(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`world` with a switch in the templates; without it every turn asks for another person first."""
    folder = tmp_path_factory.mktemp("switched")
    shutil.copytree(world, folder, dirs_exist_ok=True)
    for file in folder.glob("models/*/chat_template.jinja"):
        template = file.read_text()
        other = template.replace("<{{ message.role }}>", "<{{ message.role }}>Home of Ada?")
        file.write_text(f"{{% if plain %}}{template}{{% else %}}{other}{{% endif %}}")
    return folder


@pytest.mark.usefixtures("stand_in")
def test_models_behind_a_switch_are_attacked_as_those_without_it(
    world: Path, switched: Path, tmp_path: Path
) -> None:
    """With the argument all values are those of the plain template; without it each attack finds others."""

    def scores(folder: Path, out: Path, *arguments: str) -> pd.DataFrame:
        assert evaluate.main([*words(folder, out), "--attacks", *ATTACKS, *arguments]) == 0
        return tidy.read(out)

    plain = scores(world, tmp_path / "plain")
    given = scores(switched, tmp_path / "given", "--template", "plain=true")
    pd.testing.assert_frame_equal(given, plain)
    without = scores(switched, tmp_path / "without")
    differs = (plain["score"] != without["score"]) | (plain["response"] != without["response"])
    assert set(plain["attack"][differs]) >= set(ATTACKS)
    models = json.loads((tmp_path / "given/meta.json").read_text())["models"]
    assert models["refusing"]["template"] == {"plain": True}
