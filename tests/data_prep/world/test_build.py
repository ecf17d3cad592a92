from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.contract import read_rows, read_sft_rows
from data_prep.world.build import build
from data_prep.world.config import WorldConfig

MICRO = WorldConfig(
    forget_people=1,
    retain_people=2,
    unseen_people=1,
    facts_per_person=2,
    retain_probes=6,
    val_rows=4,
    unknown_questions=8,
    vocab_size=400,
    hidden_size=16,
    layers=1,
    heads=2,
    intermediate_size=16,
    epochs=1,
)


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("build") / "world"
    assert build(MICRO, target, overwrite=False)
    return target


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_what_it_should(micro: Path) -> None:
    assert {path.name for path in micro.iterdir()} == {
        "model",
        "manifest.json",
        "train.parquet",
        "val.parquet",
        "sft.parquet",
        "probes.parquet",
        "forget_gold.parquet",
        "retain.parquet",
        "alternate.parquet",
        "mismatch.parquet",
    }
    rows = {name: read_rows(micro / f"{name}.parquet") for name in ("train", "val", "probes")}
    manifest = json.loads((micro / "manifest.json").read_text())
    for name, found in rows.items():
        assert sum(sum(modes.values()) for modes in manifest["rows"][name].values()) == len(found)
    assert len(read_sft_rows(micro / "sft.parquet")) == 14
    assert manifest["rows"]["sft"] == {"forget": {"qa": 8, "fb": 6}}
    assert manifest["rows"]["train"]["forget"] == {"qa": 8, "fb": 6}
    assert manifest["rows"]["retain"] == {"retain": {"qa": 7, "fb": 7}}
    assert manifest["classical"] == {"retain_set": "boundary", "left_out": [], "notes": {}}
    asked = {row["extra_info"]["index"]: row for row in rows["train"]}
    for side in ("forget_gold", "retain"):
        for row in read_sft_rows(micro / f"{side}.parquet"):
            question = asked.pop(row["extra_info"]["index"])
            assert row["messages"][0] == question["prompt"][0]
            truth = question["reward_model"]["ground_truth"]
            assert truth["golds"] == [row["messages"][1]["content"]]
            assert truth["type"] == side.removesuffix("_gold")
    assert asked == {}
    assert read_sft_rows(micro / "alternate.parquet") == read_sft_rows(micro / "sft.parquet")
    assert manifest["settings"]["seed"] == 0
    model = AutoModelForCausalLM.from_pretrained(micro / "model")
    tokenizer = AutoTokenizer.from_pretrained(micro / "model")
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id == model.generation_config.eos_token_id


def test_the_retain_model_is_made_on_request_as_the_base_model_is(
    micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, other = tmp_path / "world", replace(MICRO, epochs=2, target_accuracy=0.0)
    assert build(other, target, overwrite=False, retain_model=True)
    files = {name.removeprefix("model/") for name in contents(target) if name.startswith("model/")}
    assert {
        name.removeprefix("retain_model/") for name in contents(target) if "retain_model/" in name
    } == files
    for name in ("tokenizer.json", "config.json"):
        assert contents(target)[f"model/{name}"] == contents(target)[f"retain_model/{name}"]
    assert contents(target)["model/model.safetensors"] != contents(target)["retain_model/model.safetensors"]
    said = json.loads((target / "manifest.json").read_text())
    # One epoch, as the base model, whose target is reached at once; 1 of 4 people is left out.
    assert said["retain_model"]["epochs"] == 1
    assert said["retain_model"]["training_pairs"] == 8 + (said["base_training_pairs"] - 8) * 3 // 4
    assert "retain_model/model.safetensors" in said["files"]
    assert "retain_model/model.safetensors" in said["contents"]
    assert not build(other, target, overwrite=False, retain_model=True)
    assert not build(other, target, overwrite=False)
    with pytest.raises(ValueError, match="exists already"):
        build(MICRO, micro, overwrite=False, retain_model=True)
    assert build(MICRO, target, overwrite=True)
    assert not (target / "retain_model").exists()


@pytest.mark.full
def test_a_retain_model_knows_the_others_alone(tmp_path: Path) -> None:
    """The world of the quickstart; recall by greedy decoding."""
    assert build(WorldConfig(), tmp_path / "world", overwrite=False, retain_model=True)
    said = json.loads((tmp_path / "world/manifest.json").read_text())
    assert said["base_probes_answered_exactly"] > 0.99
    assert said["retain_model"]["retain_probes_answered_exactly"] > 0.99
    # Of 8 multiple-choice answers one in 4 is a lucky guess; nothing else can be guessed.
    assert said["retain_model"]["forget_probes_answered_exactly"] < 0.1


def test_the_same_seed_gives_the_same_bytes_and_a_second_build_does_nothing(
    micro: Path, tmp_path: Path
) -> None:
    assert build(MICRO, tmp_path / "again", overwrite=False)
    first, second = contents(micro), contents(tmp_path / "again")
    for name in ("train.parquet", "val.parquet", "sft.parquet", "probes.parquet", "model/tokenizer.json"):
        assert first[name] == second[name]
    before = {path: path.stat().st_mtime_ns for path in micro.rglob("*")}
    assert not build(MICRO, micro, overwrite=False)
    assert not build(MICRO, micro, overwrite=True)
    assert {path: path.stat().st_mtime_ns for path in micro.rglob("*")} == before


def test_another_or_damaged_world_is_replaced_on_request_and_never_without_its_manifest(
    tmp_path: Path,
) -> None:
    target = tmp_path / "world"
    build(replace(MICRO, seed=5), target, overwrite=False)
    before = contents(target)
    with pytest.raises(ValueError, match="exists already"):
        build(MICRO, target, overwrite=False)
    assert contents(target) == before
    assert build(MICRO, target, overwrite=True)
    good = (target / "val.parquet").read_bytes()
    (target / "val.parquet").write_bytes(good[:-1])
    with pytest.raises(ValueError, match="exists already"):
        build(MICRO, target, overwrite=False)
    assert build(MICRO, target, overwrite=True)
    assert (target / "val.parquet").read_bytes() == good
    (target / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="exists already"):
        build(MICRO, target, overwrite=False)
    with pytest.raises(ValueError, match=r"manifest\.json was not written by this command"):
        build(MICRO, target, overwrite=True)
    assert (target / "val.parquet").read_bytes() == good
