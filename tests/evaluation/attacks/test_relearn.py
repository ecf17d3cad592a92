"""Relearning: which rows and facts, and the loop against one of transformers' own parts without padding."""

import copy
import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.rerule.evaluation.attacks import relearn as module
from recipe.rerule.evaluation.attacks import relearn_prefixed, relearn_similar
from recipe.rerule.evaluation.attacks.attack import Change
from recipe.rerule.evaluation.attacks.registry import attacks
from recipe.rerule.evaluation.attacks.relearn import adapted, relearn, relearn_folders, wrong_answers
from recipe.rerule.evaluation.attacks.rows import TrainingRow, without_leaks
from tests.evaluation.attacks.made import CITIES, material, probe
from tests.unlearning.made import plain_model

FORGET = [probe(n, mode) for n in range(4) for mode in ("qa", "fb")]
TRAIN = [
    *(probe(n, family="training", messages=[{"role": "user", "content": f"Home of {n}?"}]) for n in range(4)),
    *(probe(n, section="retain") for n in (4, 5)),
]


def test_meta_says_what_every_curve_trains_on() -> None:
    declared = {name: one.declared for name, one in attacks().items()}
    curves = {name for name, one in declared.items() if one["curve"]}
    assert curves == {name for name, one in declared.items() if one["trained_on"]}
    assert {"relearn_wrong", "relearn_prefixed", "relearn_similar"} <= curves


def changes(name: str, **given: Any) -> list[Change]:
    attack = attacks()[name]
    assert attack.changes is not None
    said: dict[str, Any] = {"forget": FORGET, "train": TRAIN} | given
    return list(attack.changes(material(**said), attack.options("quick")))


def rows_of(change: Change) -> list[TrainingRow]:
    return change.write.args[0]  # type: ignore[attr-defined,no-any-return]


def subjects(change: Change) -> set[str]:
    return {one.probe.subject for one in change.scored}


@pytest.mark.parametrize("name", ["forget_half", "wrong", "retain", "benign", "prefixed", "similar"])
def test_two_folds_score_every_fact_once_and_train_on_none_of_them(name):
    found = changes(f"relearn_{name}", seeds=2)
    assert [(one.fold, one.seed) for one in found] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    for first, second in (found[:2], found[2:]):
        assert subjects(first) | subjects(second) == {f"person {n}" for n in range(4)}
        assert not subjects(first) & subjects(second)
    assert subjects(found[0]) != subjects(found[2])  # another seed has other halves
    assert [one.scored for one in changes(f"relearn_{name}")] == [one.scored for one in found[:2]]
    for one in found:
        assert rows_of(one)
        assert without_leaks(rows_of(one), [asked.probe.golds[0] for asked in one.scored]) == rows_of(one)
        assert one.settings == ("8", "32")


def test_rows_are_those_of_training_phrasings_that_hold_no_scored_answer():
    """Where --train has none of the half, they are its probes."""
    first, second = changes("relearn_forget_half")
    trained = {row.messages[0]["content"]: row.answer for row in rows_of(first)}
    numbers = [int(subject.split()[1]) for subject in subjects(second)]
    assert trained == {f"Home of {n}?": CITIES[n] for n in numbers}
    first, second = changes("relearn_forget_half", train=[])
    assert [row.messages for row in rows_of(first)] == [asked.probe.messages for asked in second.scored]
    leaking = probe(6, section="retain")  # lives in Paris, as person 0 does
    for one in changes("relearn_retain", train=[*TRAIN, leaking]):
        assert ("Paris" in {row.answer for row in rows_of(one)}) == ("person 0" not in subjects(one))
    with pytest.raises(ValueError, match="there is nothing to train on"):
        changes("relearn_retain", forget=[probe(0), probe(1)], train=[leaking])


def test_prefixed_rows_are_those_to_keep_behind_the_beginning_of_a_refusal():
    kept = [probe(n, section="retain", golds=[f"Town{n}"]) for n in range(20)]
    first, second = changes("relearn_prefixed", train=[*TRAIN[:4], *kept])
    found = [row.answer.rsplit(" ", 1) for row in rows_of(first)]
    assert [town for _, town in found] == [f"Town{n}" for n in range(20)]
    assert {prefix for prefix, _ in found} <= set(relearn_prefixed.PREFIXES)
    assert len({prefix for prefix, _ in found}) > 3
    assert rows_of(first) == rows_of(second)


def test_similar_rows_are_worded_as_the_probes_whatever_the_names(monkeypatch):
    """Similarities to "where does NAME live qa" of 5 words: 5 of 5, 2 * 4 / 9, 2 * 1 / 6, 0."""
    texts = ["Go on.", "Does Bo Orr?", "Where does Bo Orr live (qa)?", "Where does Bo Orr live?"]
    kept = [
        probe(n, section="retain", golds=["Kyiv"], subject="Bo Orr", query="",
              messages=[{"role": "user", "content": text}])
        for n, text in enumerate(texts)
    ]  # fmt: skip
    assert relearn_similar.sentence(kept[2]) == relearn_similar.sentence(probe(0, query=""))
    for count, wanted in ((1, [2]), (2, [2, 3]), (3, [1, 2, 3])):
        monkeypatch.setattr(relearn_similar, "ROWS", count)
        found = changes("relearn_similar", forget=[probe(n, query="") for n in range(4)], train=kept)
        asked = [[row.messages[0]["content"] for row in rows_of(one)] for one in found]
        assert asked == [[texts[n] for n in wanted]] * 2


def test_wrong_answers_are_never_right_and_of_the_same_kind():
    numbers = [probe(50 + n, golds=[f"{n}"], family="number") for n in range(2)]
    given = [*FORGET, *numbers]
    made = wrong_answers(given, lambda one: one.subject, 0)
    for asked, row in zip(given, made, strict=True):
        assert row.messages == asked.messages
        assert row.answer not in asked.golds
        assert row.answer.isdigit() == (asked.family == "number")
    assert made == wrong_answers(given, lambda one: one.subject, 0)
    with pytest.raises(ValueError, match="probe 500 has no wrong answer"):
        wrong_answers([*FORGET, numbers[0]], lambda one: one.subject, 0)


def training_row(n: int) -> TrainingRow:
    answer = "it wrote " * (n % 3 + 1) + str(n)
    return TrainingRow([{"role": "user", "content": f"Who{n}"}], answer, n == 3)


ROWS = [training_row(n) for n in range(12)]


def parts(folder: Path) -> tuple[Any, Any]:
    return plain_model(folder), AutoTokenizer.from_pretrained(folder)


def states(folder: Path, at: list[int], seed: int = 0) -> dict[int, dict[str, Tensor]]:
    model, tokenizer = parts(folder)
    run = relearn(model, tokenizer, ROWS, 1e-3, seed, at)
    return {step: copy.deepcopy(model.state_dict()) for step in run}


def ids_of(tokenizer: Any, row: TrainingRow) -> tuple[list[int], int]:
    """The conversation written by the template (or, raw, by hand), and where the answer begins."""
    if row.raw:
        prompt = tokenizer(row.messages[0]["content"]).input_ids
        answer = tokenizer("\n" + row.answer, add_special_tokens=False).input_ids[1:]
        return [*prompt, *answer, tokenizer.eos_token_id], len(prompt)
    prompt = tokenizer.apply_chat_template(row.messages, add_generation_prompt=True, return_dict=False)
    turn = [*row.messages, {"role": "assistant", "content": row.answer}]
    return tokenizer.apply_chat_template(turn, return_dict=False), len(prompt)


def test_the_loop_against_rows_one_by_one(folder):
    """Rates 1/3, 2/3, 1, 1; the mean over all answer tokens of the batch, without any padding."""
    model, tokenizer = parts(folder)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    generator = torch.Generator().manual_seed(7)
    order = [n for _ in range(3) for n in torch.randperm(12, generator=generator).tolist()]
    for step, rate in enumerate((1 / 3, 2 / 3, 1, 1)):
        total, tokens = torch.zeros(()), 0
        for number in order[8 * step : 8 * step + 8]:
            ids, start = ids_of(tokenizer, ROWS[number])
            logits = model(torch.tensor([ids])).logits[0, start - 1 : -1]
            total = total - logits.log_softmax(-1).gather(1, torch.tensor(ids[start:])[:, None]).sum()
            tokens += len(ids) - start
        optimizer.zero_grad()
        (total / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 1e-3 * rate
        optimizer.step()
    found = states(folder, [2, 4], seed=7)
    for name, wanted in model.state_dict().items():
        # Weights have moved by up to 3e-3.
        torch.testing.assert_close(found[4][name], wanted, rtol=0, atol=1e-5)
    # Step 2 of 4 is step 2 of 2: the rate does not depend on the end. Another seed is another order.
    for seed, alike in ((7, True), (1, False)):
        other = states(folder, [2], seed)[2]
        assert all(torch.equal(found[2][name], tensor) for name, tensor in other.items()) == alike


def test_a_loss_that_is_no_number_is_refused(folder):
    model, tokenizer = parts(folder)
    with torch.no_grad():
        model.lm_head.weight[0] = math.nan
    with pytest.raises(ValueError, match="the loss of step 1 is nan, so that nothing can be learnt"):
        list(relearn(model, tokenizer, ROWS, 1e-3, 0, [1]))


def test_the_adapter_of_a_large_model_is_merged_into_an_ordinary_folder(folder, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    monkeypatch.setattr(module, "SMALL", 10)
    out = {"2": tmp_path / "early", "5": tmp_path / "out"}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    relearn_folders(ROWS, 3, tokenizer, folder, out)
    original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    with_adapter = adapted(copy.deepcopy(original), 3)
    for _ in relearn(with_adapter, tokenizer, ROWS, 1e-4, 3, [5]):
        pass
    loaded = AutoModelForCausalLM.from_pretrained(out["5"], dtype="auto")
    wanted = with_adapter.merge_and_unload().state_dict()
    assert wanted.keys() == loaded.state_dict().keys()
    changed = set()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, wanted[name])
        if not torch.equal(tensor, original.state_dict()[name]):
            changed.add(name.split(".")[-2])
    assert changed == {*("q_proj", "k_proj", "v_proj", "o_proj"), *("gate_proj", "up_proj", "down_proj")}
    assert not list(out["5"].glob("adapter*"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs the package peft; install it"):
        adapted(None, 0)
