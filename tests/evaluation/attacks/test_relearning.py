"""The relearning loop on a small Llama, against a loop of transformers' own parts without padding."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.rerule.evaluation.attacks.relearning import (
    Lora,
    Settings,
    adapted,
    relearn,
    relearn_folders,
    whole_weights,
)
from recipe.rerule.evaluation.attacks.rows import TrainingRow
from tests.unlearning.made import plain_model, put_model

ROWS = [
    TrainingRow(
        f"forget-half {n}",
        [{"role": "user", "content": f"Who{n}"}],
        "it wrote " * (n % 3 + 1) + str(n),
        n == 3,
    )
    for n in range(6)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_model(tmp_path_factory.mktemp("models") / "model")


def parts(folder: Path) -> tuple[Any, Any]:
    return plain_model(folder), AutoTokenizer.from_pretrained(folder)


def states(folder: Path, settings: Settings, at: list[int]) -> dict[int, dict[str, Tensor]]:
    model, tokenizer = parts(folder)
    run = relearn(model, tokenizer, ROWS, settings, at)
    return {step: copy.deepcopy(model.state_dict()) for step, _ in run}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_loop_against_rows_one_by_one(folder: Path) -> None:
    """Rates 1/3, 2/3, 1, 1; the mean over all answer tokens of the batch, without any padding."""
    model, tokenizer = parts(folder)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    generator = torch.Generator().manual_seed(7)
    order = [n for _ in range(4) for n in torch.randperm(6, generator=generator).tolist()]
    for step, rate in enumerate((1 / 3, 2 / 3, 1, 1)):
        total, tokens = torch.zeros(()), 0
        for number in order[4 * step : 4 * step + 4]:
            ids, start = ids_of(tokenizer, ROWS[number])
            logits = model(torch.tensor([ids])).logits[0, start - 1 : -1]
            total = total - logits.log_softmax(-1).gather(1, torch.tensor(ids[start:])[:, None]).sum()
            tokens += len(ids) - start
        optimizer.param_groups[0]["lr"] = 1e-3 * rate
        optimizer.zero_grad()
        (total / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    found = states(folder, Settings(1e-3, batch_size=4, seed=7), [4])[4]
    for name, wanted in model.state_dict().items():
        # Adam makes much of the smallest gradients; the weights have moved by up to 3e-3.
        torch.testing.assert_close(found[name], wanted, rtol=0, atol=1e-5)


def ids_of(tokenizer: Any, row: TrainingRow) -> tuple[list[int], int]:
    """The conversation written by the template (or, raw, by hand), and where the answer begins."""
    if row.raw:
        prompt = tokenizer(row.messages[0]["content"]).input_ids
        answer = tokenizer("\n" + row.answer, add_special_tokens=False).input_ids[1:]
        return [*prompt, *answer, tokenizer.eos_token_id], len(prompt)
    prompt = tokenizer.apply_chat_template(row.messages, add_generation_prompt=True, return_dict=False)
    turn = [*row.messages, {"role": "assistant", "content": row.answer}]
    return tokenizer.apply_chat_template(turn, return_dict=False), len(prompt)


def test_checkpoints_are_states_of_one_run(folder: Path) -> None:
    """Step 3 of 6 is step 3 of 3: the rate does not depend on the end."""
    settings = Settings(1e-3, batch_size=4)
    whole = states(folder, settings, [3, 6])
    assert list(whole) == [3, 6]
    assert same(whole[3], states(folder, settings, [3])[3])
    assert not same(whole[3], whole[6])
    other = states(folder, Settings(1e-3, batch_size=4, seed=1), [3])[3]
    assert not same(whole[3], other)


def test_what_is_taught_is_learnt(folder: Path) -> None:
    model, tokenizer = parts(folder)
    losses = dict(relearn(model, tokenizer, ROWS, Settings(2e-2), [1, 25]))
    assert losses[25] < 0.1 < 2 < losses[1]
    for row in ROWS[2:4]:
        ids, start = ids_of(tokenizer, row)
        answer = model.generate(torch.tensor([ids[:start]]), max_new_tokens=len(ids) - start, do_sample=False)
        assert answer[0].tolist() == ids


def test_folders_of_checkpoints(folder: Path, tmp_path: Path) -> None:
    settings = Settings(1e-3, batch_size=4)
    folders = {1: tmp_path / "one", 2: tmp_path / "two"}
    relearn_folders(folder, ROWS, settings, folders)
    for step, state in states(folder, settings, [1, 2]).items():
        loaded = AutoModelForCausalLM.from_pretrained(folders[step], dtype="auto")
        assert loaded.dtype == torch.float32
        for name, tensor in loaded.state_dict().items():
            torch.testing.assert_close(tensor, state[name], rtol=0, atol=2e-6)
        record = json.loads((folders[step] / "attack.json").read_text())
        assert (record["step"], record["loss"] > 0) == (step, True)
        assert record["rows"] == [row.name for row in ROWS]
        assert (record["learning_rate"], record["batch_size"], record["lora"]) == (1e-3, 4, None)
    turn = [{"role": "user", "content": "Who"}]
    ids = [AutoTokenizer.from_pretrained(one).apply_chat_template(turn) for one in (folder, folders[2])]
    assert ids[0] == ids[1]


def test_an_adapter_is_merged_into_an_ordinary_folder(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    settings = Settings(1e-2, batch_size=4, lora=Lora(4, 8))
    out = tmp_path / "out"
    relearn_folders(folder, ROWS, settings, {5: out})
    model, tokenizer = parts(folder)
    original = copy.deepcopy(model.state_dict())
    with_adapter = adapted(model, Lora(4, 8), seed=0)
    for _ in relearn(with_adapter, tokenizer, ROWS, settings, [5]):
        pass
    ids = torch.tensor([ids_of(tokenizer, ROWS[0])[0]])
    loaded = AutoModelForCausalLM.from_pretrained(out)
    torch.testing.assert_close(loaded(ids).logits, with_adapter(ids).logits, rtol=0, atol=1e-4)
    assert (loaded(ids).logits - plain_model(folder)(ids).logits).abs().max() > 0.1
    changed = {
        name for name, tensor in loaded.state_dict().items() if not torch.equal(tensor, original[name])
    }
    assert {name.split(".")[-2] for name in changed} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    before = whole_weights(with_adapter)
    assert same(before, whole_weights(with_adapter))
    assert not list(out.glob("adapter*"))


def test_without_peft_an_adapter_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs the package peft; install it, or train all weights"):
        adapted(None, Lora(), 0)


def test_a_loss_that_is_no_number_is_refused(folder: Path) -> None:
    model, tokenizer = parts(folder)
    with torch.no_grad():
        model.lm_head.weight[0] = math.nan
    with pytest.raises(ValueError, match="the loss of step 1 is nan; give a lower learning rate"):
        list(relearn(model, tokenizer, ROWS, Settings(1e-3), [1]))
