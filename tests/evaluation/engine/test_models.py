"""NAME=PATH to models: which folder is taken, what is put around its questions, which share an engine.

Models, prefixes and arguments of templates that are wrong are in tests/refused.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from recipe.rerule.evaluation.engine.models import (
    UNLEARNED,
    Model,
    chosen_by_probes,
    context_length,
    engine_key,
    resolve_models,
    with_prefixes,
    with_template,
)
from recipe.rerule.evaluation.options import warn_of_models
from recipe.rerule.runs import checkpoints
from tests.evaluation.conftest import make_probe, write_probes

TOKENIZER = {"model": {"vocab": {"a": 0}}, "padding": None, "truncation": None}
FILES = {
    "config.json": json.dumps({"hidden_size": 8, "_name_or_path": "here", "transformers_version": "5.0"}),
    "tokenizer.json": json.dumps(TOKENIZER),
    "tokenizer_config.json": json.dumps({"eos_token": "<eos>"}),
    "generation_config.json": json.dumps({"eos_token_id": 2}),
    "chat_template.jinja": "{{ messages }}",
}
BEST = checkpoints.Best(9, 0.8, 0.9, 0.7, 0.1)
MODELS = [Model("base", Path("m")), Model("icu", Path("m")), Model("run@7", Path("r"), 7)]


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


def test_folders_and_checkpoints(run, model_folder):
    base = model_folder("模型=é")
    for spec, expected in {
        f"模型/é@1={base}": [Model("模型/é@1", base)],
        f"rule={run}": [Model("rule", checkpoint(run, 10), 10)],
        f"rule={run}/global_step_2/": [Model("rule", checkpoint(run, 2), 2)],
        f"rule={run}@all": [Model(f"rule@{step}", checkpoint(run, step), step) for step in (2, 9, 10)],
    }.items():
        assert resolve_models([spec]) == expected
    (checkpoint(run, 10) / "config.json").write_text("{ }")  # of another size than it was saved with
    assert resolve_models([f"rule={run}"]) == [Model("rule", checkpoint(run, 9), 9)]


def test_of_a_run_that_noted_its_best_step_that_is_taken_and_said(run, capsys):
    checkpoints.note_best(run, BEST)
    for given, step, said in (
        (run, 9, "the best by validation (forget refused 90%, retain right 70%); the last is step 10"),
        (f"{run}@best", 9, "the best by validation"),
        (f"{run}@last", 10, "the last complete checkpoint; the best by validation is step 9"),
    ):
        assert resolve_models([f"rule={given}"]) == [Model("rule", checkpoint(run, step), step)]
        assert f"model rule: step {step} of {run}, {said}" in capsys.readouterr().err
    (checkpoint(run, 9) / "config.json").write_text("{ }")  # the best does not count any more
    assert [model.step for model in resolve_models([f"rule={run}"])] == [10]
    with pytest.raises(ValueError, match=r"model rule: .* holds no checkpoint that was chosen by validation"):
        resolve_models([f"rule={run}@best"])


def test_probes_that_chose_the_step_are_counted(run, tmp_path, capsys):
    """None where no step was chosen, the step is another, or the rows of validation are gone."""
    probes = [make_probe(index, "retain", "qa", ["Esk"]) for index in range(4)]
    write_probes(tmp_path / "val.parquet", probes[:2])
    (run / "config.yaml").write_text(f"data: {{val_files: {tmp_path / 'val.parquet'}}}\n")
    asked = [str(probe.messages) for probe in probes[1:]]
    assert chosen_by_probes(resolve_models([f"rule={run}"]), asked) == []
    checkpoints.note_best(run, BEST)
    models = resolve_models([f"rule={run}", f"last={run}@last"])
    (line,) = chosen_by_probes(models, asked)
    assert line.startswith("model rule: 1 of the 3 probes are validation rows, by which its step 9 was chos")
    warn_of_models(models, [replace(probe, raw=True) for probe in probes[1:]])
    assert line in capsys.readouterr().err
    assert chosen_by_probes(models, asked[1:]) == []
    (tmp_path / "val.parquet").unlink()
    assert chosen_by_probes(models, asked) == []


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
        ('{"n_positions": 1024}', 1024),
        ('{"text_config": {"max_position_embeddings": 64}, "max_position_embeddings": null}', 64),
        ("{}", None),
    ],
)
def test_the_context_is_what_the_configuration_says(model_folder, config, length):
    assert context_length(Model("base", model_folder("base", **{"config.json": config}))) == length


# What is put around the questions.


def test_each_model_has_its_own_prefix(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Forget {target}: {target}!\n", "utf-8")
    found = with_prefixes(MODELS, ["icu", f"run={tmp_path / 'text.txt'}"], ["Ada", "Bo", "Ada"])
    own = UNLEARNED.replace("{target}", "Ada and Bo")
    assert [one.prefix for one in found] == ["", own, "Forget Ada and Bo: Ada and Bo!\n"]
    assert [replace(one, prefix="") for one in found] == with_prefixes(MODELS, [], []) == MODELS


def test_values_are_json_and_everything_else_is_text() -> None:
    given = ["a=false", "b=True", "c=3", "d=26 Jul 2024", 'e="3"', "f=", "g=x=y"]
    values = {"a": False, "b": True, "c": 3, "d": "26 Jul 2024", "e": "3", "f": "", "g": "x=y"}
    assert dict(with_template(MODELS[:1], given)[0].template) == values


# Engines.


@pytest.mark.parametrize(
    ("file", "content", "shared"),
    [
        # What differs between the folders of two checkpoints, and what single calls leave behind.
        ("config.json", {"transformers_version": "5.1", "_name_or_path": "there", "hidden_size": 8}, True),
        ("config.json", {"hidden_size": 8, "dtype": "bfloat16"}, True),
        ("tokenizer.json", TOKENIZER | {"padding": {"length": 4}}, True),
        ("config.json", {"hidden_size": 16}, False),
        ("tokenizer.json", TOKENIZER | {"model": {"vocab": {"b": 0}}}, False),
        ("tokenizer_config.json", {"eos_token": "<end>"}, False),
        ("tokenizer_config.json", {"eos_token": "<eos>", "add_bos_token": True}, False),
        ("generation_config.json", {"eos_token_id": [2, 3]}, False),
        ("chat_template.jinja", "{{ bos_token }}", False),
    ],
)
def test_one_engine_serves_models_that_differ_in_weights_alone(model_folder, file, content, shared):
    text = content if isinstance(content, str) else json.dumps(content)
    one = Model("a", model_folder("a", **FILES))
    other = Model("b", model_folder("b", **(FILES | {file: text})))
    assert (engine_key(one) == engine_key(other)) is shared


def test_no_engine_is_shared_by_models_that_are_asked_otherwise_or_have_slow_tokenizers(model_folder):
    fast = Model("a", model_folder("a", **FILES))
    models = [fast, replace(fast, prefix="Forget."), *with_template([fast], ["thinks=true"])]
    models += [Model(name, model_folder(f"slow {name}")) for name in "ab"]
    assert len({engine_key(one) for one in models}) == 5
