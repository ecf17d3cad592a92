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


@pytest.fixture
def run(model_folder, tmp_path) -> Path:
    """A run with complete checkpoints of steps 2, 9 and 10; 20 was never finished, 30 is half deleted, and
    40 holds no model."""
    for step in (2, 9, 10, 20):
        model_folder(f"run/global_step_{step}/actor/huggingface")
    for step in (2, 9, 10):
        checkpoints.finish(tmp_path / "run", step)
    model_folder("run/global_step_30.removed/actor/huggingface")
    return tmp_path / "run"


def checkpoint(run: Path, step: int) -> Path:
    return run / f"global_step_{step}" / "actor" / "huggingface"


def test_folders_and_checkpoints(run, model_folder):
    base = model_folder("模型=é")
    for spec, expected in {
        f"base={base}": [Model("base", base)],
        f"rule={run}": [Model("rule", checkpoint(run, 10), 10)],
        f"rule={run}/global_step_2/": [Model("rule", checkpoint(run, 2), 2)],
        f"rule={run}@all": [Model(f"rule@{step}", checkpoint(run, step), step) for step in (2, 9, 10)],
    }.items():
        assert resolve_models([spec]) == expected
    assert [model.name for model in resolve_models([f"模型/é@1={base}", f"a={base}"])] == ["模型/é@1", "a"]
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
            data_source="rerule/custom", prompt=f"Question {index}?", side=side, golds=["Esk"],
            keyword="Ada" if side == "forget" else "",
            extra_info={"index": index, "mode": "qa", "subject": "Ada", "split": "val"}
            | {"family": "x", "section": side},
        )  # fmt: skip

    write_rows(tmp_path / "val.parquet", [row(0, "forget"), row(1, "retain")])
    (run / "config.yaml").write_text(f"data: {{val_files: {tmp_path / 'val.parquet'}}}\n")
    asked = [str(row(index, "retain")["prompt"]) for index in (1, 2, 3)]
    assert chosen_by_probes(resolve_models([f"rule={run}"]), asked) == []
    checkpoints.note_best(run, checkpoints.Best(9, 0.8, 0.9, 0.7))
    (line,) = chosen_by_probes(resolve_models([f"rule={run}", f"last={run}@last"]), asked)
    assert line.startswith(
        "model rule: 1 of the 3 probes are validation rows, by which its step 9 was chosen"
    )
    assert chosen_by_probes(resolve_models([f"rule={run}"]), asked[1:]) == []
    (tmp_path / "val.parquet").unlink()
    assert chosen_by_probes(resolve_models([f"rule={run}"]), asked) == []


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["base"], "--model 'base' is not NAME=PATH"),
        (["=folder"], "is not NAME=PATH"),
        (["..={base}"], "no file can have this name"),
        ([f"{'模' * 30}={{base}}"], "no file can have this name"),
        (["a={base}", "a={base}"], "--model a is given twice"),
        (["rule={run}@all", "rule@9={run}"], "--model rule@9 is given twice"),
        (["rule={tmp}/nowhere"], "model rule: folder .*nowhere does not exist"),
        (["rule={tmp}"], r"model rule: .* holds neither config\.json nor a complete"),
        (["rule={tmp}@all"], "model rule: .* holds no complete checkpoint"),
        (
            ["rule={tmp}/other/global_step_40"],
            r"step_40 holds no actor/huggingface/config\.json; train with hf",
        ),
        (["rule={run}/global_step_20"], r"model rule: checkpoint .*step_20 is incomplete: complete\.json"),
        (
            ["base=nobody/nothing"],
            "model base: nobody/nothing is no folder, and cannot be loaded from the Hub",
        ),
    ],
)
def test_what_is_no_model_is_one_line(specs, message, run, model_folder, tmp_path):
    base = model_folder("base")
    (tmp_path / "other/global_step_40").mkdir(parents=True)
    checkpoints.finish(tmp_path / "other", 40)
    with pytest.raises(ValueError, match=message) as raised:
        resolve_models([spec.format(base=base, run=run, tmp=tmp_path) for spec in specs])
    assert "\n" not in str(raised.value)


def test_a_model_on_the_hub_is_looked_for_by_its_name(model_folder, monkeypatch):
    folder = model_folder("cache")
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda name, allow_patterns: folder / name if "*.safetensors" in allow_patterns else None,
    )
    assert resolve_models(["base=Some-Owner/model_1.5"]) == [Model("base", folder / "Some-Owner/model_1.5")]


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ('{"max_position_embeddings": 512}', 512),
        ('{"n_positions": 1024}', 1024),
        ('{"text_config": {"max_position_embeddings": 64}, "max_position_embeddings": null}', 64),
        ("{}", None),
        ("{no", r"config\.json is not complete JSON"),
        ("[]", r"config\.json holds no JSON object"),
    ],
)
def test_the_context_is_what_the_configuration_says(model_folder, config, length):
    model = Model("base", model_folder("base", **{"config.json": config}))
    if isinstance(length, str):
        with pytest.raises(ValueError, match=length):
            context_length(model)
    else:
        assert context_length(model) == length


def key(model_folder, name: str, **changes: str) -> str:
    return engine_key(Model(name, model_folder(name, **(FILES | changes))))


def test_one_engine_serves_models_that_differ_in_weights_alone(model_folder, tmp_path):
    config = {"transformers_version": "5.1", "_name_or_path": "there", "hidden_size": 8, "dtype": "bfloat16"}
    tokenizer = TOKENIZER | {"padding": {"length": 4}}
    same = {"config.json": json.dumps(config), "tokenizer.json": json.dumps(tokenizer)}
    assert key(model_folder, "a") == key(model_folder, "b", **same)
    # A slow tokenizer shares no engine.
    slow = [Model(name, model_folder(f"slow {name}")) for name in "ab"]
    assert engine_key(slow[0]) != engine_key(slow[1])


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
