from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_prep.contract import rl_row, write_rows
from recipe.rerule.evaluation.engine.models import (
    Model,
    chosen_by_probes,
    context_length,
    engine_key,
    resolve_models,
)
from recipe.rerule.runs import checkpoints

TOKENIZER = {"model": {"vocab": {"a": 0}}, "padding": None, "truncation": None}
FILES = {
    "config.json": json.dumps({"hidden_size": 8, "_name_or_path": "here", "transformers_version": "5.0"}),
    "tokenizer.json": json.dumps(TOKENIZER),
    "tokenizer_config.json": json.dumps({"eos_token": "<eos>"}),
    "generation_config.json": json.dumps({"eos_token_id": 2}),
    "chat_template.jinja": "{{ messages }}",
}


def test_hugging_face_folder(model_folder):
    folder = model_folder("base")
    assert resolve_models([f"base={folder}"]) == [Model("base", folder, None)]


def test_models_keep_their_order_and_may_share_a_folder(model_folder):
    folder = model_folder("base")
    assert [model.name for model in resolve_models([f"b={folder}", f"a={folder}"])] == ["b", "a"]


@pytest.fixture
def run(model_folder, tmp_path) -> Path:
    """A run with complete checkpoints of steps 2, 9 and 10; 20 was never finished, and 30 is half deleted."""
    for step in (2, 9, 10, 20):
        model_folder(f"run/global_step_{step}/actor/huggingface")
    for step in (2, 9, 10):
        checkpoints.finish(tmp_path / "run", step)
    model_folder("run/global_step_30.removed/actor/huggingface")
    return tmp_path / "run"


def checkpoint(run: Path, step: int) -> Path:
    return run / f"global_step_{step}" / "actor" / "huggingface"


def test_run_folder_gives_its_newest_complete_checkpoint(run):
    assert resolve_models([f"rule={run}"]) == [Model("rule", checkpoint(run, 10), 10)]
    (checkpoint(run, 10) / "config.json").write_text("{ }")  # of another size than it was saved with
    assert resolve_models([f"rule={run}"]) == [Model("rule", checkpoint(run, 9), 9)]


def test_of_a_run_that_noted_its_best_step_that_is_taken_and_said(run, capsys):
    checkpoints.note_best(run, checkpoints.Best(9, 0.8, 0.9, 0.7))
    for given, step, said in (
        (run, 9, "the best by validation (forget refused 90%, retain right 70%); the last is step 10"),
        (f"{run}@best", 9, "the best by validation"),
        (f"{run}@last", 10, "the last complete checkpoint; the best by validation is step 9"),
        (f"{run}/global_step_2", 2, ""),
    ):
        assert resolve_models([f"rule={given}"]) == [Model("rule", checkpoint(run, step), step)]
        assert f"model rule: step {step} of {run}, {said}" in capsys.readouterr().err or not said
    (checkpoint(run, 9) / "config.json").write_text("{ }")  # the best does not count any more
    assert [model.step for model in resolve_models([f"rule={run}"])] == [10]
    with pytest.raises(ValueError, match=r"model rule: .* holds no checkpoint that was chosen by validation"):
        resolve_models([f"rule={run}@best"])


def test_probes_that_chose_the_step_are_counted(run, tmp_path):
    def row(index: int, side: str) -> dict:
        return rl_row(
            data_source="rerule/custom",
            prompt=f"Question {index}?",
            side=side,
            golds=["Esk"],
            keyword="Ada" if side == "forget" else "",
            extra_info={"index": index, "mode": "qa", "subject": "Ada", "split": "val"}
            | {"family": "x", "section": side},
        )

    rows = [row(0, "forget"), row(1, "retain")]
    write_rows(tmp_path / "val.parquet", rows)
    (run / "config.yaml").write_text(f"data: {{val_files: {tmp_path / 'val.parquet'}}}\n")
    asked = [str(row(index, "retain")["prompt"]) for index in (1, 2, 3)]
    models = resolve_models([f"rule={run}"])
    assert chosen_by_probes(models, asked) == []
    checkpoints.note_best(run, checkpoints.Best(9, 0.8, 0.9, 0.7))
    (line,) = chosen_by_probes(resolve_models([f"rule={run}", f"last={run}@last"]), asked)
    assert line.startswith(
        "model rule: 1 of the 3 probes are validation rows, by which its step 9 was chosen"
    )
    assert chosen_by_probes(resolve_models([f"rule={run}"]), asked[1:]) == []
    (tmp_path / "val.parquet").unlink()
    assert chosen_by_probes(resolve_models([f"rule={run}"]), asked) == []


@pytest.mark.parametrize("end", ["", "/"])
def test_one_checkpoint_of_a_run(run, end):
    models = resolve_models([f"rule={run}/global_step_2{end}"])
    assert models == [Model("rule", checkpoint(run, 2), 2)]


def test_every_complete_checkpoint_of_a_run(run, model_folder):
    models = resolve_models([f"base={model_folder('base')}", f"rule={run}@all"])
    steps = [Model(f"rule@{step}", checkpoint(run, step), step) for step in (2, 9, 10)]
    assert models[1:] == steps


def test_a_checkpoint_that_cannot_be_used_is_named(run, tmp_path):
    with pytest.raises(ValueError, match=r"model rule: checkpoint .*step_20 is incomplete: complete\.json"):
        resolve_models([f"rule={run}/global_step_20"])
    with pytest.raises(ValueError, match=r"model rule: .* holds no complete checkpoint"):
        resolve_models([f"rule={tmp_path}@all"])
    with pytest.raises(ValueError, match=r"model rule: folder .*nowhere does not exist"):
        resolve_models([f"rule={tmp_path / 'nowhere'}@all"])
    with pytest.raises(ValueError, match=r"--model rule@9 is given twice"):
        resolve_models([f"rule={run}@all", f"rule@9={run}"])
    (run / "global_step_40").mkdir()
    checkpoints.finish(run, 40)
    with pytest.raises(
        ValueError, match=r"step_40 holds no actor/huggingface/config\.json; train with hf_model"
    ):
        resolve_models([f"rule={run}"])


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 64}, "max_position_embeddings": None}, 64),
        ({}, None),
    ],
)
def test_the_context_is_what_the_configuration_says(model_folder, config, length):
    folder = model_folder("base", **{"config.json": json.dumps(config)})
    assert context_length(Model("base", folder)) == length


def test_a_path_may_hold_an_equals_sign(model_folder):
    folder = model_folder("lr=1e-4")
    assert resolve_models([f"a={folder}"])[0].path == folder


@pytest.mark.parametrize("spec", ["base", "=folder", "base=", " =folder"])
def test_a_spec_needs_name_and_path(spec):
    with pytest.raises(ValueError, match="is not NAME=PATH"):
        resolve_models([spec])


def test_a_name_given_twice_is_refused(model_folder):
    folder = model_folder("base")
    with pytest.raises(ValueError, match="--model base is given twice"):
        resolve_models([f"base={folder}", f"base={folder}"])


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"model rule: folder .*nowhere does not exist"):
        resolve_models([f"rule={tmp_path / 'nowhere'}"])


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"model rule: .* holds neither config\.json nor a complete"):
        resolve_models([f"rule={tmp_path}"])


def key(model_folder, name: str, **changes: str) -> str:
    return engine_key(Model(name, model_folder(name, **(FILES | changes))))


def test_one_engine_serves_models_that_differ_in_weights_alone(model_folder):
    same = {
        "config.json": json.dumps(
            {"transformers_version": "5.1", "_name_or_path": "there", "hidden_size": 8, "dtype": "bfloat16"}
        ),
        "tokenizer.json": json.dumps(TOKENIZER | {"padding": {"length": 4}}),
    }
    assert key(model_folder, "a") == key(model_folder, "b", **same)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"hidden_size": 16}),
        ("tokenizer.json", TOKENIZER | {"model": {"vocab": {"b": 0}}}),
        ("tokenizer_config.json", {"eos_token": "<end>"}),
        ("tokenizer_config.json", {"eos_token": "<eos>", "add_bos_token": True}),
        ("generation_config.json", {"eos_token_id": [2, 3]}),
        ("chat_template.jinja", "{{ bos_token }}"),
    ],
)
def test_one_engine_never_serves_models_that_differ_otherwise(model_folder, file, content):
    text = content if isinstance(content, str) else json.dumps(content)
    assert key(model_folder, "a") != key(model_folder, "b", **{file: text})


def test_a_slow_tokenizer_shares_no_engine(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    assert engine_key(Model("a", folders[0])) != engine_key(Model("b", folders[1]))


def test_a_model_on_the_hub_is_looked_for_by_its_name(model_folder, monkeypatch):
    folder = model_folder("cache")
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, "model.safetensors" in allow_patterns or "*.safetensors" in allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_models(["base=Some-Owner/model_1.5"]) == [Model("base", folder, None)]
    assert asked == [("Some-Owner/model_1.5", True)]


def test_a_model_that_is_not_on_the_hub_is_one_line():
    with pytest.raises(ValueError, match="model base: nobody/nothing is no folder, and cannot be") as raised:
        resolve_models(["base=nobody/nothing"])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", [".", "..", "模" * 30, "x" * 241])
def test_a_name_that_no_file_can_have_is_refused(model_folder, name):
    with pytest.raises(ValueError, match="no file can have this name"):
        resolve_models([f"{name}={model_folder('base')}"])


def test_a_name_in_any_script_is_a_name(model_folder):
    folder = model_folder("base")
    assert resolve_models([f"模型/é@1={folder}"]) == [Model("模型/é@1", folder, None)]


@pytest.mark.parametrize(("text", "message"), [("{no", "is not JSON"), ("[]", "holds no JSON object")])
def test_a_broken_configuration_is_named(model_folder, text, message):
    model = Model("a", model_folder("base", **{"config.json": text}))
    with pytest.raises(ValueError, match=rf"config\.json {message}"):
        context_length(model)
