"""Stage 1's sampled responses: what is counted, which step is kept, and that sampling is the model's own.

And the trainer around verl's: when it samples, what it logs, and whose weights it ends with; and the model's
own answers as rows, where only vLLM is left out.
"""

import copy
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils as tu

from data_prep.contract import Row, read_sft_rows, rl_row, write_rows
from recipe.rerule import sft
from recipe.rerule.evaluation.engine.requests import Answer
from recipe.rerule.preflight import checks
from recipe.rerule.runs import run_folder
from recipe.rerule.schema import SettingsError
from recipe.rerule.training import own_answers, ranks, signal
from recipe.rerule.training.signal import Signal
from recipe.rerule.training.stage1 import Stage1Trainer
from tests.made_models import put_model
from tests.made_tokenizers import CHATML_TEMPLATE, byte_level
from tests.training.made import composed

REFUSAL = "I'm sorry, I can't tell you anything about Esk."
START = Signal(0, 0.0, 0.0, 0.0, 0.5, 0.1)


def at(step: int, mixed: float, right: float, refused: float = 0.0) -> Signal:
    return Signal(step, refused, mixed, 0.0, right, 0.0)


@pytest.mark.parametrize(
    ("signals", "kept"),
    [
        ([at(5, 0.2, 0.5), at(10, 0.9, 0.4), at(15, 0.5, 0.5)], 10),  # .4 is .8 of the start's .5
        ([at(5, 0.2, 0.5), at(10, 0.9, 0.39), at(15, 0.5, 0.5)], 15),
        ([at(5, 0.5, 0.5), at(10, 0.5, 0.5)], 5),
        ([at(5, 0.5, 0.5, 0.3), at(10, 0.5, 0.5, 0.6)], 10),
        ([at(5, 0.0, 0.3), at(10, 0.9, 0.2)], 5),  # none answers
        ([at(5, 0.0, 0.0)], 5),
    ],
)
def test_the_kept_step(signals: list[Signal], kept: int) -> None:
    assert signal.best([START, *signals]).step == kept


def test_what_was_best_stays_best_but_for_a_better_one() -> None:
    """Weights are kept as they come: a step that was overtaken is never gone back to."""
    pairs = [(mixed, right) for right in (0.0, 0.3, 0.6) for mixed in (0.0, 0.3, 0.6)]
    seen, kept = [START], None
    for step, (mixed, right) in enumerate(pairs, 1):
        seen.append(at(step, mixed, right))
        if signal.best(seen) is seen[-1]:
            kept = seen[-1]
        assert signal.best(seen) is kept


def row(side: str, gold: str) -> Row:
    keyword = "Esk" if side == "forget" else ""
    truth = {"type": side, "golds": [gold], "keyword": keyword}
    return {"data_source": "rerule/custom", "reward_model": {"ground_truth": truth}, "extra_info": {}}


def test_shares_by_hand() -> None:
    wrong = "It is green."
    sampled = [
        (row("forget", "Paris"), [REFUSAL, wrong, wrong, wrong]),
        (row("forget", "Rome"), [REFUSAL] * 4),
        (row("retain", "Oslo"), ["It is Oslo.", "Oslo", wrong, REFUSAL]),
        (row("retain", "Bern"), ["It is Bern."] * 4),
    ]
    found = signal.measured(7, sampled, {})
    assert found == Signal(7, 5 / 8, 1 / 2, 1 / 8, 6 / 8, 1 / 2)
    assert str(found) == (
        "forget refused 62 %, retain right 75 % and refused 12 %, "
        "50 % of forget and 50 % of retain groups mixed"
    )
    assert found.metrics["signal/forget/mixed"] == 0.5
    north = [(row("forget", "x"), ["x"]), (row("retain", "the northern town called Oslo"), ["Oslo"])]
    # One telling word of four is .25.
    assert [signal.measured(0, north, own).retain_right for own in ({}, {"gamma": 0.2})] == [0, 1]


def test_prompts_are_some_of_each_side() -> None:
    rows = [row("forget", str(n)) for n in range(3)] + [row("retain", str(n)) for n in range(30)]
    chosen = signal.chosen_prompts(rows, 8, seed=1)
    assert [one["reward_model"]["ground_truth"]["type"] for one in chosen] == ["forget"] * 3 + ["retain"] * 8
    assert chosen == signal.chosen_prompts(rows, 8, seed=1) != signal.chosen_prompts(rows, 8, seed=2)


@pytest.mark.parametrize(
    ("last", "keeps", "lines"),
    [
        (at(2, 0.5, 0.5), False, ["start of stage 2 (step 2 of 2): forget refused 0 %"]),
        (at(2, 0.1, 0.5), True, ["start of stage 2 (step 1 of 2): forget refused 20 %"]),
        (at(2, 0.5, 0.1), False, ["(step 2 of 2)", "right in 10 % of its responses, and was in 50 %"]),
        (at(2, 0.0, 0.5, 0.9), False, ["(step 2 of 2)", "no forget prompt has"]),
        (replace(at(2, 0.5, 0.5), seconds=40.0), False, ["(step 2 of 2)", "sampling took 40 of the 100 s"]),
    ],
)
def test_the_last_lines(last: Signal, keeps: bool, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    assert signal.summary(tmp_path, keeps) == []
    for one in (START, at(1, 0.4, 0.5, 0.2), replace(last, elapsed=100.0)):
        signal.append(str(tmp_path), one)
    found = signal.summary(tmp_path, keeps)
    assert len(found) == len(lines)
    assert all(part in line for part, line in zip(lines, found, strict=True))


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    tokenizer = copy.deepcopy(byte_level(CHATML_TEMPLATE, adds_bos=False))
    tokenizer.pad_token = tokenizer.eos_token  # as verl does
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "vocab_size": len(tokenizer)}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**ids, **sizes, initializer_range=0.5)).eval(), tokenizer


def sampled(model: Any, prompts: list[list[int]], temperature: float) -> list[list[str]]:
    return signal.sample(*model, prompts, samples=3, temperature=temperature, max_tokens=6)


def test_samples_are_the_models_own_whatever_stands_beside_them(model: Any) -> None:
    """At a temperature of nearly 0 they are greedy: token by token, each prompt alone, without any cache."""
    module, tokenizer = model
    prompts = [[5, 9, 11], [7, 8, 12, 40, 33, 21, 5], [70]]
    for prompt, texts in zip(prompts, sampled(model, prompts, 1e-4), strict=True):
        ids = list(prompt)
        for _ in range(6):
            with torch.no_grad():
                ids.append(int(module(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
        assert texts == [tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)] * 3


def test_samples_differ_by_the_seed_alone(model: Any) -> None:
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(sampled(model, [[5, 9, 11], [6, 6]], 1.0))
    assert found[0] == found[1] != found[2]
    assert len(set(found[0][0])) > 1


MIXED = {0: 0, 2: 1, 4: 3, 6: 2, 7: 2}
"""Step to how many of four forget prompts have a refusal among their responses."""


class Trainer(Stage1Trainer):
    """The only weight counts the steps, so that it says which step's weights there are."""

    def __init__(self, folder: Path, stop: str) -> None:
        settings = {"stop": stop, "signal": {"every": 2, "reward_kwargs": {}}}
        self.config: Any = OmegaConf.create(settings | {"trainer": {"default_local_dir": str(folder)}})
        (folder / "records").mkdir(parents=True)
        self._signals, self._best, self._step, self._prompts = [], [], 0, [row("forget", "Rome")]
        self.total_training_steps, self.rank = 7, 0
        self.weight = torch.zeros(2)
        self._build_engine()

    def _trained(self) -> list[torch.Tensor]:
        return [self.weight]

    def _responses(self) -> list[signal.Sampled]:
        mixed = [[REFUSAL, "Rome"]] * MIXED[self._step] + [["Rome", "Rome"]] * (4 - MIXED[self._step])
        return [*((row("forget", "Rome"), texts) for texts in mixed), (row("retain", "Oslo"), ["Oslo"])]


@pytest.mark.parametrize(("stop", "kept"), [("signal", 4.0), ("none", 7.0)])
def test_it_ends_with_the_weights_of_the_best_step(
    stop: str, kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_batch(data: Any) -> Any:
        trainer.weight += 1
        return tu.get_tensordict({}, {"metrics": {"loss": 1.0}})

    def verls(made: Any) -> None:
        made.training_client = SimpleNamespace(train_batch=train_batch)

    monkeypatch.setattr(SFTTrainer, "_build_engine", verls)
    trainer = Trainer(tmp_path, stop)
    trainer._sample()
    logged = []
    for step in range(1, 8):
        metrics = tu.get(trainer.training_client.train_batch(data=None), "metrics")
        assert metrics["loss"] == 1.0
        if step < 7:
            assert trainer.weight.tolist() == [step, step]
        if "signal/forget/mixed" in metrics:
            logged.append((step, metrics["signal/forget/mixed"]))
    assert logged == [(2, 0.25), (4, 0.75), (6, 0.5), (7, 0.5)]
    assert trainer.weight.tolist() == [kept, kept]
    assert [one.step for one in signal.read(tmp_path)] == [0, 2, 4, 6, 7]


def test_the_seed_decides_the_order_of_the_rows() -> None:
    """As torch's own sampler orders them with this seed."""

    def order(seed: int) -> list[int]:
        trainer = Stage1Trainer.__new__(Stage1Trainer)
        data = {"retain_share": 0.0, "train_batch_size": 2, "pad_mode": "no_padding", "num_workers": 0}
        trainer.config = OmegaConf.create({"data": data, "trainer": {"seed": seed}})
        trainer.engine = SimpleNamespace(get_data_parallel_rank=lambda: 0, get_data_parallel_size=lambda: 1)
        trainer.train_dataset, trainer.val_dataset = list(range(24)), None
        trainer._build_dataloader()
        return [*trainer.train_dataloader.sampler]

    for seed in (6, 7):
        generator = torch.Generator().manual_seed(seed)
        assert order(seed) == torch.randperm(24, generator=generator).tolist()


def test_forked_readers_of_rows_do_not_wait_for_the_tokenizers_threads() -> None:
    """verl's trainer sets this to true when it is imported, and both of ours set it back."""
    name = "TOKENIZERS_PARALLELISM"
    trainers = ("recipe.rerule.training.stage1", "recipe.rerule.unlearning.trainer")
    lines = [f"os.environ['{name}'] = 'true'; import {one}; print(os.environ['{name}'])" for one in trainers]
    command = [sys.executable, "-c", "\n".join(["import os", *lines])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["false", "false"]


ANSWERS = {
    "Where is Oslo?": " It lies in Norway. ",
    "Where is Bern?": "It lies in Austria.",
    "Where is Rome?": "I'm sorry, I don't know anything about Italy.",
    "Where is Nice?": "It is in France, " + "and it is large, " * 9,
    "Where is Genoa?": "It is a port. It lies in Italy. It is old, " + "and it is large, " * 9,
    "Where is Turin?": f"It lies in Italy. It is old and {'y' * 31} ",  # 64 tokens, the last one white
}
GOLDS = ("Norway", "Switzerland", "Italy", "France", "Italy", "Italy")


@pytest.fixture
def config(tmp_path: Path) -> Any:
    rows = []
    sides = [("retain", *pair) for pair in zip(ANSWERS, GOLDS, strict=True)]
    for index, (side, prompt, gold) in enumerate([*sides, ("forget", "Who is Esk?", "a town")]):
        info = {"index": index, "mode": "qa", "subject": "towns", "split": "train", "family": "f"}
        told = {"side": side, "golds": [gold], "keyword": "Esk" if side == "forget" else ""}
        told["extra_info"] = {**info, "section": side}
        rows.append(rl_row(data_source="rerule/custom", prompt=prompt, **told))
    write_rows(tmp_path / "train.parquet", rows)
    put_model(tmp_path / "model")
    byte_level(CHATML_TEMPLATE).save_pretrained(tmp_path / "model")
    words = f"platform=cpu model.path={tmp_path}/model data.prompt_files={tmp_path}/train.parquet "
    words += f"data.max_response_length=64 trainer.default_local_dir={tmp_path}/runs/stage1 "
    words += "+data.apply_chat_template_kwargs.enable_thinking=false"
    return composed(1, *words.split(), 'data.stop=["\\n"]')


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the engine is asked, which answers from ANSWERS."""
    calls: list[Any] = []

    def run(models: Any, requests: Any, decoding: Any, store: Path) -> Any:
        calls.append((models, requests, decoding, store))
        texts = {request.id: ANSWERS[request.prompt.messages[0]["content"]] for request in requests}
        return {models[0].name: {number: Answer(text) for number, text in texts.items()}}

    monkeypatch.setattr(own_answers.run, "run", run)
    return calls


def test_right_answers_become_rows_long_ones_cut_after_the_sentence_that_is_right(
    config: Any, asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = own_answers.asked(config)
    own_answers.write(tmp_path, rows)
    read = read_sft_rows(own_answers.file(tmp_path))
    assert [[message["content"] for message in row["messages"]] for row in read] == [
        ["Where is Oslo?", "It lies in Norway."],
        ["Where is Genoa?", "It is a port. It lies in Italy."],
        ["Where is Turin?", "It lies in Italy."],
    ]
    assert {row["extra_info"]["subject"] for row in read} == {"towns"}
    assert capsys.readouterr().err == (
        "3 of 6 retain prompts answered right; 2 of these were longer than data.max_response_length, and cut "
        "after a sentence\n"
    )
    (models, requests, decoding, store) = asked[0]
    assert (models[0].path, models[0].template) == (tmp_path / "model", (("enable_thinking", False),))
    assert [request.max_tokens for request in requests] == [64] * 6
    assert {request.stop for request in requests} == {("\n",)}
    assert decoding.platform == "cpu"
    assert store == tmp_path / "runs" / "own_answers"


def test_a_run_says_which_model_it_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And its temporary folder is not that of what follows in this process."""
    before = tempfile.gettempdir(), dict(os.environ)
    monkeypatch.setattr(checks, "prepare", lambda *args, **more: None)
    monkeypatch.setattr(checks, "require", lambda *args: None)
    monkeypatch.setattr(ranks, "start", lambda *args: sys.exit(1))
    folder = f"trainer.default_local_dir={tmp_path / 'run'}"
    with pytest.raises(SystemExit):
        sft._check_and_run(composed(1, "experiment=tiny", "model.path=owner/M", folder))
    assert run_folder.identity_of(tmp_path / "run") == {"model.path": "owner/M"}
    assert (tempfile.gettempdir(), dict(os.environ)) == before


def test_without_any_the_line_says_what_to_do(config: Any, asked: list[Any]) -> None:
    config.signal.reward_kwargs.gamma = 1.0  # ROUGE-L is never above it
    with pytest.raises(SettingsError, match=r"no right answer to any of the 6 retain prompts.*_share=0"):
        own_answers.asked(config)
