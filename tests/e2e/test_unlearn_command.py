"""The command from end to end: what it writes, and that a killed run ends as if it had not been killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from data_prep.__main__ import main as data_prep
from recipe.rerule.runs import checkpoints
from tests.data_prep.raw_files import put_lines, put_muse
from tests.e2e.stack import Command
from tests.unlearning import made

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

Finish = Callable[..., dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, and `other`, a model that is near it."""
    folder = tmp_path_factory.mktemp("models")
    made.put_near(made.put_model(folder / "model"), folder / "other")
    return folder


@pytest.fixture(scope="module")
def overrides(models: Path) -> list[str]:
    """A run of 6 steps, two in each epoch."""
    return [
        "experiment=tiny",
        f"model.path={models}/model",
        *made.put_rows(models / "rows"),
        "data.train_batch_size=4",
        "data.micro_batch_size_per_gpu=2",
        "optim.lr=1e-3",
        "trainer.total_epochs=3",
    ]


@pytest.fixture
def start(command: Callable[..., Command], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Command]:
    """start(run folder, *overrides): the command."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return lambda run, *arguments: command(
        "-m", "recipe.rerule.unlearn", f"trainer.default_local_dir={run}", *arguments
    )


@pytest.fixture
def finish(start: Callable[..., Command]) -> Finish:
    """finish(run folder, *overrides): the weights that a run to its end publishes."""

    def run_to_end(run: Path, *arguments: str) -> dict[str, torch.Tensor]:
        one = start(run, *arguments)
        assert one.wait() == 0, one.output[-3000:]
        return load_file(run / "model" / "model.safetensors")

    return run_to_end


def test_a_run_writes_a_model_and_its_records(
    overrides: list[str], start: Callable[..., Command], finish: Finish, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    found = finish(run, "method=npo_klr", *overrides)
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    assert AutoTokenizer.from_pretrained(run / "model").chat_template
    assert found.keys() >= {"model.embed_tokens.weight"}
    assert all(torch.isfinite(value).all() for value in model.parameters())
    lines = [json.loads(line) for line in (run / "records" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    first, last = lines[0]["data"], lines[-1]["data"]
    assert first["loss/forget"] == pytest.approx(20 * 0.6931471805599453, rel=1e-5)  # (2 / beta) ln 2
    assert first["loss/retain"] == pytest.approx(0, abs=1e-6)
    assert first["train/loss"] == pytest.approx(first["loss/forget"] + first["loss/retain"], rel=1e-5)
    assert last["loss/forget"] < first["loss/forget"]
    record = json.loads((run / "run.json").read_text())
    assert record["stage"] == "unlearn"
    assert (record["identity"]["method.beta"], record["identity"]["method.retain"]) == (0.1, "kl")
    before = sorted(run.rglob("*"))
    again = start(run, "method=npo_klr", *overrides)
    assert again.wait() == 2
    assert "already holds the model of a finished recipe.rerule.unlearn" in again.output
    assert sorted(run.rglob("*")) == before


NPO = ["method=npo_klr"]
WHP = ["method=whp", "method.retain=kl", "reinforced.path=OTHER"]
"""Its terms read both frozen models."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "ranks", "killed_after"), [(NPO, 1, 2), (WHP, 1, 3), (WHP, 2, 2), (NPO, 2, 3)]
)
def test_a_killed_run_ends_with_the_parameters_of_one_that_was_not(
    method: list[str],
    ranks: int,
    killed_after: int,
    models: Path,
    overrides: list[str],
    start: Callable[..., Command],
    finish: Finish,
    tmp_path: Path,
) -> None:
    """After step 2, which ends an epoch, and after step 3, which does not."""
    given = [override.replace("OTHER", f"{models}/other") for override in method]
    arguments = [*given, *overrides, f"trainer.n_gpus_per_node={ranks}", "trainer.save_freq=1"]
    whole = finish(tmp_path / "whole", *arguments)
    run = tmp_path / "killed"
    killed = start(run, *arguments)
    killed.wait_until(lambda: (checkpoints.newest_complete(run) or 0) >= killed_after)
    killed.end()
    for step in range(killed_after + 1, 7):
        shutil.rmtree(checkpoints.step_folder(run, step), ignore_errors=True)
    assert not (run / "model").exists()
    resumed = finish(run, *arguments, "trainer.resume_mode=auto")
    assert resumed.keys() == whole.keys()
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name


@pytest.mark.full
def test_an_adapter_is_trained_against_the_start_model(
    overrides: list[str], finish: Finish, tmp_path: Path
) -> None:
    """A new adapter changes nothing, so that the first loss is the constant of NPO."""
    run = tmp_path / "run"
    finish(run, "method=npo_klr", *overrides, "model.lora_rank=4", "model.lora_alpha=8", "optim.lr=1e-2")
    lines = [json.loads(line) for line in (run / "records" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["data"]["loss/forget"] == pytest.approx(20 * 0.6931471805599453, rel=1e-5)
    assert lines[-1]["data"]["loss/forget"] < lines[0]["data"]["loss/forget"]
    AutoModelForCausalLM.from_pretrained(run / "model")


TEXTS = {
    "forget": ["The castle stood on a hill.", "Nobody went there. " * 20, "A storm came.", "Who wrote it?"],
    "retain1": ["Bread is made of flour and water.", "It rained on Monday.", "Roads lead to towns.", "Yes."],
}
LONGEST = 64


@pytest.mark.full
def test_of_a_corpus_every_token_but_the_first_of_each_text_is_learnt(finish: Finish, tmp_path: Path) -> None:
    """Rows as MUSE publishes its corpus, and a model without a chat template; two steps of all rows."""
    raw = put_muse(tmp_path / "raw")
    for name, texts in TEXTS.items():
        put_lines(raw / "raw" / f"{name}.jsonl", [{"text": text} for text in texts])
    assert data_prep(["muse-books", "--source", str(raw), "--out", str(tmp_path / "data")]) == 0
    folder = without_template(made.put_model(tmp_path / "model"))
    finish(
        tmp_path / "run",
        *("method=ga_gdr", "experiment=tiny", f"model.path={folder}", "optim.lr=1e-3"),
        f"data.forget={tmp_path}/data/forget_text.parquet",
        f"data.retain={tmp_path}/data/retain_text.parquet",
        *("data.train_batch_size=4", "data.micro_batch_size_per_gpu=2", "trainer.total_epochs=2"),
        *(f"data.max_length={LONGEST}", "data.truncation=right"),
    )
    lines = (tmp_path / "run" / "records" / "metrics.jsonl").read_text().splitlines()
    first, second = (json.loads(line)["data"] for line in lines)
    assert first["loss/forget"] == pytest.approx(mean_log_prob(folder, TEXTS["forget"]), rel=1e-5)
    assert first["loss/retain"] == pytest.approx(-mean_log_prob(folder, TEXTS["retain1"]), rel=1e-5)
    assert second["loss/forget"] < first["loss/forget"]
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "model").chat_template is None


def without_template(folder: Path) -> Path:
    """A model's folder whose tokenizer is that of a base model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)
    return folder


def mean_log_prob(folder: Path, texts: list[str]) -> float:
    """Over all tokens that follow the beginning of a text, by plain transformers."""
    model, tokenizer = made.plain_model(folder), AutoTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids][:LONGEST]
        log_probs = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        found.append(log_probs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])])
    return torch.cat(found).mean().item()
