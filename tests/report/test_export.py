"""`recipe.rerule.export`: a folder that loads, and a card that says how the model was made and measured."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.rerule import export
from recipe.rerule.reporting.model_card import origin_of, shown_name
from recipe.rerule.runs import run_folder
from tests.unlearning.made import plain_model, put_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model with its tokenizer, as a user has it, with traces of where it came from."""
    folder = put_model(tmp_path / "secret_place" / "unlearned")
    plain_model(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | {"_name_or_path": str(folder)}))
    vector = {"format": "rerule/task_vector", "base": "/secret_place/base", "alpha": 1.0, "reinforced": "r"}
    (folder / "task_vector.json").write_text(json.dumps(vector))
    return folder


def run(*words: str | Path) -> int:
    return export.main([str(word) for word in words])


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """The YAML at the head of a card, and its text."""
    _, head, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), text


def test_the_folder_loads_gives_the_same_logits_and_names_no_folder(model, tmp_path):
    out = tmp_path / "out"
    assert run(model, "--to", out, "--name", "a: *b*") == 0
    head, card = card_of(out)
    assert head["model_name"] == "a: *b*"
    assert "\n# a: \\*b\\*\n" in card
    tokens = AutoTokenizer.from_pretrained(out)("Where was Ada born?", return_tensors="pt").input_ids
    logits = [AutoModelForCausalLM.from_pretrained(folder)(tokens).logits for folder in (model, out)]
    assert torch.equal(*logits)
    assert len(list(out.glob("model-*.safetensors"))) > 1
    for file in model.glob("*.safetensors"):
        assert load_file(file).keys() == load_file(out / file.name).keys()
    assert [path.name for path in out.iterdir() if b"secret_place" in path.read_bytes()] == []
    assert not (out / "task_vector.json").exists()
    assert json.loads((out / "config.json").read_text())["hidden_size"] == 32


def test_a_folder_is_pushed_where_there_is_a_token(model, tmp_path, monkeypatch, capsys):
    """Nothing leaves this machine: the Hub is off."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for words, code, told in (
        (
            ["--push", "me/mine", "--dry-run"],
            0,
            "not uploaded to me/mine, as --dry-run says:\n  README.md",
        ),
        (["--push", "me/mine", "--overwrite"], 2, "is there, but --push failed: "),
        (["--push", "me/mine/other"], 2, "me/mine/other"),
        (["--push", "mine"], 2, "--push mine: give OWNER/NAME"),
        (["--dry-run"], 2, "--dry-run belongs to --push"),
    ):
        assert run(model, "--to", tmp_path / "out", *words) == code
        said = capsys.readouterr()
        assert told in said.out + said.err
        assert "hf_secret" not in said.out + said.err
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", f"{tmp_path}/none")
    assert run(model, "--to", tmp_path / "new", "--push", "me/mine") == 2
    assert not (tmp_path / "new").exists()


def test_the_origin_of_a_run_of_unlearn(tmp_path):
    identity = {
        "method.forget": "npo", "method.retain": "nll", "method.alternate": "none", "method.beta": 0.1,
        "model.path": "/home/me/base", "optim.lr": 1e-05, "trainer.seed": 3, "data.train_batch_size": 16,
        "data.forget": {"path": "/home/me/forget_gold.parquet", "sha256": "ab12"},
    }  # fmt: skip
    record = {"format": "rerule/run", "format_version": 2, "stage": "unlearn", "identity": identity}
    (tmp_path / "run.json").write_text(json.dumps(record))
    origin = origin_of(tmp_path, None)
    terms = "forget term npo, retain term nll, alternate term none"
    assert origin.method == f"unlearning without reinforcement: {terms}"
    assert origin.facts == {
        "batch": "16", "learning rate": "1e-05", "seed": "3",
        "rows (forget)": "forget_gold.parquet (sha256 ab12)",
    }  # fmt: skip
    assert shown_name(str(origin.base)) == "base"


def test_the_card_names_the_model_before_all_training(model, tmp_path):
    """Through a model that was made before, as `rerule forget --from` starts from, and stage 1."""
    hub = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "0ab1"
    begun = {"first/npo": hub, "out/stage1": tmp_path / "first/npo/model"}
    for (name, start), stage in zip(begun.items(), ("unlearn", 1), strict=True):
        run_folder.begin(tmp_path / name, stage)
        run_folder.keep_identity(tmp_path / name, {"model.path": str(start)})
    rule = {"replay": {}, "actor_rollout_ref": {"model": {"path": str(tmp_path / "out/stage1/model")}}}
    (tmp_path / "out/rule").mkdir()
    (tmp_path / "out/rule/config.yaml").write_text(yaml.safe_dump(rule))
    run_folder.begin(tmp_path / "out/rule", 2)
    model.rename(tmp_path / "out/rule/model")
    assert run(tmp_path / "out/rule", "--to", tmp_path / "card") == 0
    head, card = card_of(tmp_path / "card")
    assert head["base_model"] == "Qwen/Qwen3-8B"
    assert "- trained from: Qwen/Qwen3-8B\n" in card


def test_only_names_on_the_hub_are_shown_whole():
    names = {"Qwen/Qwen3-8B": "Qwen/Qwen3-8B", "./a": "a", "a/b/c": "c", "base": "base"}
    assert {name: shown_name(name) for name in names} == names


def test_the_model_of_a_finished_run_is_its_folder_model(model, tmp_path):
    folder = tmp_path / "stage1"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"format": "rerule/run", "stage": 1}))
    (model / "task_vector.json").unlink()
    model.rename(folder / "model")
    for given in (folder, folder / "model"):
        assert run(given, "--to", tmp_path / "out", "--overwrite") == 0
        head, card = card_of(tmp_path / "out")
        assert head["model_name"] == "stage1"
        assert "Method: rejection steering, which is stage 1 of RULE" in card


def test_the_origin_of_a_task_vector(tmp_path):
    made = {"base": "models/llama", "reinforced": "/home/me/more", "alpha": 0.5}
    (tmp_path / "task_vector.json").write_text(json.dumps(made))
    origin = origin_of(tmp_path, None)
    assert (origin.method, origin.base) == ("task arithmetic", "models/llama")
    assert origin.facts == {"alpha": "0.5", "reinforced model": "more"}


def test_the_card_has_the_sum_of_the_rows_that_were_trained_on(tmp_path):
    rows = tmp_path / "train.parquet"
    rows.write_text("other rows now")
    run_folder.begin(tmp_path / "rule", 2)
    run_folder.keep_identity(tmp_path / "rule", {"data.train_files": ["ab12"]})
    config = {"replay": {}, "data": {"train_files": [f"{rows}"]}}
    (tmp_path / "rule" / "config.yaml").write_text(yaml.safe_dump(config))
    assert origin_of(tmp_path / "rule", None).facts == {"training prompts": "train.parquet (sha256 ab12)"}


def test_the_card_has_the_first_model_and_the_one_that_was_read_from_the_folder(
    model, write_evaluation, tmp_path
):
    numbers = {"base": {"forget/recall": 0.9}, "mine": {"forget/recall": 0.1}, "other": {"forget/recall": 0}}
    meta = {"benchmark": "custom", "models": {"mine": {"path": str(model)}}}
    results = write_evaluation("eval", results=numbers, meta=meta)
    assert run(model, "--to", tmp_path / "out", "--results", results) == 0
    _, card = card_of(tmp_path / "out")
    assert [line for line in card.splitlines() if line.startswith(("| base", "| mine", "| other"))] == [
        "| base | 0.900 |",
        "| mine | 0.100 |",
    ]


def test_the_card_has_the_checkpoint_that_is_exported_and_no_other_run(
    model, write_evaluation, tmp_path, capsys
):
    """The retained model of a log was not asked, so it is none to compare with."""
    steps = {"base": 0.9, "rule@10": 0.1, "rule@20": 0.2}
    numbers = {name: {"forget/all": value} for name, value in {"retained (log)": 0.5, **steps}.items()}
    meta = {"benchmark": "rwku", "models": {"rule@10": {"path": str(model)}}, "probes": {"sha256": "k"}}
    first = write_evaluation("first", results=numbers, meta=meta)
    assert run(model, "--to", tmp_path / "out", "--results", first) == 0
    _, card = card_of(tmp_path / "out")
    assert [line for line in card.splitlines() if line.startswith(("| base", "| rule", "| retained"))] == [
        "| base | 90.0 |",
        "| rule@10 | 10.0 |",
    ]
    meta |= {"models": {"rule@10": {"path": "elsewhere"}}, "probes": {"sha256": "l"}}
    other = write_evaluation("other", results=numbers, meta=meta)
    capsys.readouterr()
    assert run(model, "--to", tmp_path / "two", "--results", first, "--results", other) == 2
    assert "--results names no models read from" in capsys.readouterr().err
