"""The configuration of the command: experiments, groups, declared settings, and its help."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from recipe.rerule import schema
from recipe.rerule.training import entry
from recipe.rerule.unlearning import presets
from recipe.rerule.unlearning.method import Method
from tests.e2e.stack import ROOT

# Learning rate, schedule, batch, epochs; by hand.
EXPERIMENTS = {
    "tiny": (1e-4, "constant", 8, 5),
    "tofu": (1e-5, "constant", 8, 10),
    "rwku": (1e-6, "cosine", 8, 3),
    "muse_books": (1e-5, "constant", 32, 10),
    "muse_news": (1e-5, "constant", 32, 10),
    "custom": (1e-5, "constant", 8, 5),
}


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("recipe.rerule.config.unlearn", version_base=None):
        config = compose("unlearn_trainer", list(overrides))
    OmegaConf.resolve(config)
    return config


def test_the_groups() -> None:
    of_stage1 = [f"{name}/lora_1gpu" for name in ("muse_books", "muse_news", "rwku", "tofu")]
    assert entry.UNLEARN.options("experiment") == sorted([*EXPERIMENTS, *of_stage1])
    assert entry.UNLEARN.options("method") == presets.names()
    assert entry.UNLEARN.options("platform") == ["cpu", "gpu"]


def test_an_adapter_on_one_gpu_is_stage_1_s_with_the_method_s_own_settings() -> None:
    config = composed("experiment=tofu/lora_1gpu", "method=ga")
    assert (config.model.lora_rank, config.optim.lr, config.trainer.n_gpus_per_node) == (32, 4e-6, 1)
    whole = composed("experiment=tofu", "method=ga")
    assert config.data.train_batch_size == whole.data.train_batch_size
    assert config.trainer.total_epochs == whole.trainer.total_epochs


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment(name: str) -> None:
    config = composed(f"experiment={name}", "method=ga")
    found = (config.optim.lr, config.optim.lr_scheduler_type, config.data.train_batch_size)
    assert (*found, config.trainer.total_epochs) == EXPERIMENTS[name]
    assert config.platform.name == ("cpu" if name == "tiny" else "gpu")
    assert config.data.train_batch_size % config.trainer.n_gpus_per_node == 0


@pytest.mark.parametrize("name", presets.names())
def test_hydra_reads_a_preset_as_the_list_does(name: str) -> None:
    section = OmegaConf.to_container(composed(f"method={name}").method)
    assert isinstance(section, dict)
    assert Method.of({str(key): value for key, value in section.items()}) == presets.load(name)


def test_a_preset_says_where_its_formula_comes_from() -> None:
    for name in presets.names():
        text = (presets.CONFIG / "method" / f"{name}.yaml").read_text("utf-8")
        if "Another name" not in text and "weight 1" not in text:
            assert re.search(r"formula .*(arXiv|TOFU)", " ".join(text.split())), name


PAGE = (ROOT / "docs" / "methods.md").read_text("utf-8")
FORMULAE = {
    ("forget", "ga"): r"-.*NLL\(forget\)",
    ("forget", "npo"): r"log sigma\(-b \(s - s0\)\)",
    ("forget", "simnpo"): r"log sigma\(-\(b/n\) s - gamma\)",
    ("forget", "dpo"): r"log sigma\(b \[\(s - s0\) of the refusal - \(s - s0\) of the answer\]\)",
    ("forget", "flat"): r"-g\(P of the refusal\)",
    ("forget", "whp"): r"z0 - a relu\(z1 - z0\)",
    ("retain", "nll"): r"\bNLL\(retain\)",
    ("retain", "kl"): r"\bKL\(retain\)",
    ("alternate", "nll"): r"NLL\((refusal|answer of another forget row|5 answers of retain rows)\)",
}
"""What stands for a term in the page's table of presets."""


def presets_of_the_page() -> dict[str, tuple[str, list[str]]]:
    """Of each preset the loss, and what it reads, in the table of docs/methods.md."""
    table = PAGE.partition("| preset | loss | reads |\n|---|---|---|\n")[2].partition("\n\n")[0]
    found: dict[str, tuple[str, list[str]]] = {}
    for line in table.splitlines():
        named, loss, files = line.strip("| ").split(" | ")
        names, read = re.findall(r"`(\w+)`", named), re.findall(r"`?([\w.]+\w)`?", files.replace("and ", ""))
        for other in re.findall(r"`(\w+)`", loss):
            loss = loss.replace(f"`{other}`", found[other][0])
        found |= {name: (loss, read) for name in names}
    return found


def test_the_page_names_every_preset_and_every_term() -> None:
    assert presets_of_the_page().keys() == set(presets.names())
    for side, terms in (
        ("forget", get_args(schema.ForgetTerm)),
        ("retain", get_args(schema.RetainTerm)),
        ("alternate", get_args(schema.AlternateTerm)),
    ):
        (named,) = re.findall(rf"\| {side} \| `{side}`: ([\w, ]+) \|", PAGE)
        assert named.split(", ") == list(terms)
    for key in ("alpha", "labels", "dpo_scale", "kl_positions", "smoothing"):
        assert f"| `method.{key}` |" in PAGE


@pytest.mark.parametrize("entry", presets.listed(), ids=presets.names())
def test_the_page_and_the_list_agree_on_files_and_terms(entry: dict[str, Any]) -> None:
    loss, read = presets_of_the_page()[entry["method"]]
    models = ["reinforced.path"] if presets.load(entry["method"]).reinforced else []
    assert sorted(read) == sorted([*entry["data"], *models])
    for (side, term), formula in FORMULAE.items():
        assert (re.search(formula, loss) is not None) == (entry[side] == term), (side, term)


def test_the_page_gives_the_numbers_of_the_presets() -> None:
    losses = {name: loss for name, (loss, _) in presets_of_the_page().items()}
    llmu = presets.load("llmu")
    assert losses["llmu"].startswith(
        f"-{llmu.forget_weight:g} NLL(forget) + NLL({llmu.alternate_rows} answers"
    )
    for name, loss in losses.items():
        preset = presets.load(name)
        for letter, value in (
            ("b", preset.beta),
            ("r", preset.smoothing),
            ("a", preset.alpha),
            ("gamma", preset.gamma if preset.forget == "simnpo" else None),
            ("K", preset.retain_rows + 1 if preset.smoothing else None),
        ):
            found = re.findall(rf"\b{letter} = ([\d.]+)", loss)
            assert [float(number) for number in found] == ([] if value is None else [value]), (name, letter)


def test_help_names_the_groups_and_comes_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['unlearn', '--help']; from recipe.rerule import unlearn; unlearn.main(); "
        "assert not {'torch', 'verl', 'pyarrow'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("method=dpo|", "experiment=custom|", "platform=cpu|gpu", "method.beta=null", "data.forget="):
        assert text in done.stdout


def test_the_other_commands_have_their_groups_still() -> None:
    for command in (entry.STAGE1, entry.STAGE2):
        assert command.groups == ("experiment", "platform")
        assert command.options("platform") == ["cpu", "gpu"]
