"""`benchmarks.robust`: how commands make its arms, and what its plan and answer say of finished runs."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import robust, what_works
from data_prep.contract import read_sft_rows, write_sft_rows
from recipe.rerule import task_vector
from tests.training.made import composed
from tests.unlearning import made


def line(arm: str, seed: int, returned: float, forget: float = 0.1, retain: float = 0.9) -> dict[str, Any]:
    """A finished run with one recall under all attacks; the base model's held-out recalls are 0.7 and 1."""
    shares = {"base": (0.7, 1.0), "last": (forget, retain)}
    held_out = {of: {"forget recall": one, "retain recall": two} for of, (one, two) in shares.items()}
    attacks = {attack: {"original": 1.0, "last": returned} for attack in robust.COUNTED}
    return {"platform": "cpu", "arm": arm, "seed": seed, "held_out": held_out, "attacks": attacks}


def test_what_returns_is_the_mean_over_the_attacks_that_count() -> None:
    run = line("rule", 8, 0.0)
    run["attacks"]["samples/max_16"]["last"] = 0.9
    run["attacks"]["samples/max_1"] = {"original": 1.0, "last": 1.0}
    assert robust.returned(run) == pytest.approx(0.15)  # 0.9 / 6


@pytest.mark.parametrize(
    ("run", "better"),
    [
        (line("distilled_10", 8, 0.49), True),
        (line("distilled_10", 8, 0.5), False),
        (line("distilled_10", 8, 0.1, forget=0.2), False),
        (line("distilled_10", 8, 0.1, retain=0.89), False),
    ],
    ids=["less returns", "as much", "forgets too little", "keeps too little"],
)
def test_an_arm_that_did_not_hold_better_is_not_run_again(run: dict[str, Any], better: bool) -> None:
    lines = [line("rule", 8, 0.5), run]
    assert not robust.planned(lines, "distilled_10", 8), "it is finished"
    assert not robust.planned(lines, "distilled_10", 9), "rule comes first"
    assert robust.planned([*lines, line("rule", 9, 0.5)], "distilled_10", 9) == better
    lost = [line(arm, 8, 0.9) for arm in robust.OTHERS if arm != "distilled_10"]
    assert robust.planned([*lines, *lost], "rule", 9) == better, "nothing is left to compare rule with"


def test_the_answer_held_better_with_every_seed() -> None:
    lines = [line("rule", seed, 0.5) for seed in robust.SEEDS]
    lines += [line("npo_then_rule", seed, 0.4) for seed in robust.SEEDS]
    lines += [line("distilled_10", seed, 0.1) for seed in robust.SEEDS[:2]]
    assert robust.answer(lines) == "npo_then_rule"
    assert robust.answer([*lines, line("distilled_10", robust.SEEDS[2], 0.6)]) == "npo_then_rule"
    assert robust.answer([*lines, line("distilled_10", robust.SEEDS[2], 0.2)]) == "distilled_10"
    table = robust.table(lines).splitlines()
    assert table[2].startswith("| rule | cpu | 8 | 0.10 | 0.90 | yes | 0.50 | 0.50 |")
    assert table[-1] == "cpu: npo_then_rule held better than rule with all of seeds (8, 9, 10)"
    assert robust.answer(lines[:3]) is None


class Commands:
    """In place of the commands: their words, with a run folder as each training's result.

    Attributes:
        given: {module and the name of the run folder: settings}.
    """

    def __init__(self, model: Path) -> None:
        self.model, self.given = model, dict[str, dict[str, str]]()

    def __call__(self, log: Path, module: str, *words: str) -> None:
        if module == "recipe.rerule.task_vector":
            assert task_vector.main(words) == 0
            return
        settings = dict(word.split("=", 1) for word in words)
        folder = Path(settings["trainer.default_local_dir"])
        assert folder.with_suffix(".log") == log
        self.given[f"{module} {folder.name}"] = settings
        composed(module, *words)
        shutil.copytree(self.model, folder / "model")
        (folder / "records").mkdir()
        write_sft_rows(folder / "records" / "own_answers.parquet", [made.row(5, "Who?", "It is Bo.")])


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    """The base model is at base, and what a stage 2 has trained at FOLDER/model."""
    found = Commands(made.put_model(tmp_path / "base"))
    for module in (what_works, robust):
        monkeypatch.setattr(module, "command", found)
    resolved = lambda words: [SimpleNamespace(path=Path(words[0][5:-5]) / "model")]  # noqa: E731  last=...@last
    monkeypatch.setattr(robust, "resolve_models", resolved)
    return found


def test_rule_starts_from_an_unlearned_model(commands: Commands, tmp_path: Path) -> None:
    study = what_works.Study(commands.model, tmp_path / "out", "cpu", float("inf"))
    found = robust.trained(study, "simnpo_then_rule", 8)
    assert found == tmp_path / "out" / "simnpo_then_rule-8" / "model"
    unlearn, stage1, stage2 = commands.given.values()
    assert (unlearn["method"], unlearn["model.path"]) == ("simnpo_gdr", str(commands.model))
    assert unlearn["data.forget"] == str(tmp_path / "out" / "data" / "forget_gold.parquet")
    assert stage1["model.path"] == f"{unlearn['trainer.default_local_dir']}/model"
    assert stage2["actor_rollout_ref.model.path"] == f"{stage1['trainer.default_local_dir']}/model"
    assert {unlearn["trainer.seed"], stage1["trainer.seed"], stage2["data.seed"]} == {"8"}


def test_rule_is_distilled_into_its_copy_with_noise(commands: Commands, tmp_path: Path) -> None:
    """The copy's weights lie at 0.3 of the way from RULE's to new ones; a norm's new weight is 1."""
    study = what_works.Study(commands.model, tmp_path / "out", "cpu", float("inf"))
    study.data.mkdir(parents=True)
    write_sft_rows(study.data / "alternate.parquet", [made.row(5, "Who wrote it?", "I do not know.")])
    assert robust.trained(study, "distilled_30", 8) == tmp_path / "out" / "distilled_30-8" / "model"
    *_, distil = commands.given.values()
    assert distil["reference.path"] == str(tmp_path / "out" / "rule-8" / "model")
    assert (distil["method.retain"], distil["trainer.seed"]) == ("kl", "8")
    rows = read_sft_rows(distil["data.retain"])
    assert [row["messages"][-1]["content"] for row in rows] == ["I do not know.", "It is Bo."]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1], "both files have a row 5"
    copy, teacher = Path(distil["model.path"]), AutoModelForCausalLM.from_pretrained(commands.model)
    weights = dict(AutoModelForCausalLM.from_pretrained(copy, dtype=torch.float32).named_parameters())
    new = dict(AutoModelForCausalLM.from_pretrained(f"{copy}-new").named_parameters())
    for name, weight in teacher.named_parameters():
        expected = 0.7 * weight + 0.3 * (1 if "norm" in name else new[name])
        torch.testing.assert_close(weights[name], expected, msg=name)
    assert not torch.equal(new["lm_head.weight"], teacher.lm_head.weight)
