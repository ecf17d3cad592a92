"""Presets, as docs/methods.md has them.

tests/golden has the settings, files, passes and losses of each; tests/refused has wrong settings.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from typing import get_args

import pytest

from recipe.rerule import schema
from recipe.rerule.unlearning import losses, presets, whp
from tests.e2e.stack import ROOT
from tests.unlearning.made import composed

PAGE = (ROOT / "docs" / "methods.md").read_text("utf-8")


def of_the_page() -> dict[str, tuple[str, list[str]]]:
    """Of each preset the loss, and what it reads, in the table of docs/methods.md."""
    table = PAGE.partition("| preset | loss | reads |\n|---|---|---|\n")[2].partition("\n\n")[0]
    found: dict[str, tuple[str, list[str]]] = {}
    for line in table.splitlines():
        named, loss, files = line.strip("| ").split(" | ")
        for other in re.findall(r"`(\w+)`", loss):
            loss = loss.replace(f"`{other}`", found[other][0])
        read = re.findall(r"`?([\w.]+\w)`?", files.replace("and ", ""))
        found |= {name: (loss, read) for name in re.findall(r"`(\w+)`", named)}
    return found


def test_the_page_and_the_choices_name_all_that_there_is() -> None:
    assert of_the_page().keys() == set(presets.names())
    assert get_args(schema.Divergence) == losses.DIVERGENCES
    assert get_args(schema.Labels) == whp.LABELS
    for side in ("forget", "retain", "alternate"):
        (named,) = re.findall(rf"\| {side} \| `{side}`: ([\w, ]+) \|", PAGE)
        assert named.split(", ") == list(get_args(getattr(schema, f"{side.title()}Term")))


@pytest.mark.parametrize("name", presets.names())
def test_the_page_says_what_a_preset_reads_and_its_numbers(name: str) -> None:
    preset, (loss, read) = presets.load(name), of_the_page()[name]
    assert read == [*preset.data, *["reinforced.path"] * bool(preset.reinforced)]
    numbers = {"b": preset.beta, "r": preset.smoothing, "a": preset.alpha}
    numbers["gamma"] = preset.gamma if preset.forget == "simnpo" else None
    numbers["K"] = preset.retain_rows + 1 if preset.smoothing else None
    for letter, value in numbers.items():
        found = re.findall(rf"\b{letter} = ([\d.]+)", loss)
        assert [float(number) for number in found] == ([] if value is None else [value]), letter


@pytest.mark.parametrize(
    ("alias", "name"), {"gd": "ga_gdr", "kl": "ga_klr", "npo_rt": "npo_gdr", "dpo_rt": "dpo_gdr"}.items()
)
def test_an_alias_is_the_method_under_another_name(alias: str, name: str) -> None:
    assert dataclasses.replace(presets.load(alias), name=name) == presets.load(name)


def test_an_adapter_on_one_gpu_is_stage_1_s_with_the_method_s_own_settings() -> None:
    config, whole = (composed(f"experiment=tofu{more}", "method=ga") for more in ("/lora_1gpu", ""))
    assert (config.model.lora_rank, config.optim.lr, config.trainer.n_gpus_per_node) == (32, 4e-6, 1)
    assert config.data.train_batch_size == whole.data.train_batch_size
    assert config.trainer.total_epochs == whole.trainer.total_epochs


@pytest.mark.parametrize(("option", "shown"), [("--list", "\nnpo_gdr  "), ("--help", "method=dpo|")])
def test_the_list_and_the_help_come_without_torch(option: str, shown: str) -> None:
    code = (
        f"import sys; sys.argv = ['unlearn', '{option}']; from recipe.rerule import unlearn; unlearn.main(); "
        "assert not {'torch', 'verl', 'pyarrow'} & set(sys.modules)"
    )
    words, environment = [sys.executable, "-c", code], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout
