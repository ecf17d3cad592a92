"""Groups of rows: who is whose partner, which tokens are learnt, and that all draws follow from the seed."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

import pytest
from torch.utils.data import DataLoader

from data_prep.contract import Row
from recipe.rerule.unlearning import presets
from recipe.rerule.unlearning.method import SIDES, Method
from recipe.rerule.unlearning.rows import GroupDataset, GroupError, GroupSampler
from tests.made_tokenizers import LLAMA3_TEMPLATE, byte_level
from tests.unlearning import made

TOKENIZER = byte_level(LLAMA3_TEMPLATE)


def dataset(method: str | Method, seed: int = 0, max_length: int = 300, **files: list[Row]) -> GroupDataset:
    chosen = presets.load(method) if isinstance(method, str) else method
    return GroupDataset(made.rows() | files, chosen, TOKENIZER, max_length, seed)


def texts(group: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Side, prompt and answer of each row of a group."""
    found = []
    for row in group:
        side = SIDES[row["side"].item()]
        parts = [
            TOKENIZER.decode(row["input_ids"][row["loss_mask"] == learnt], skip_special_tokens=True)
            for learnt in (0, 1)
        ]
        found.append((side, parts[0].replace("user", "").replace("assistant", "").strip(), parts[1].strip()))
    return found


def test_the_alternate_row_is_the_one_with_the_same_index() -> None:
    groups = dataset("dpo")
    for place, row in enumerate(made.rows()["forget"]):
        (side, prompt, answer), (other_side, other_prompt, refusal) = texts(groups.group(3, place))
        assert (side, other_side) == ("forget", "alternate")
        assert prompt == other_prompt == row["messages"][0]["content"]
        assert answer == row["messages"][1]["content"].strip()
        assert refusal == "I do not know" + "." * place


@pytest.mark.parametrize("rows", [1, 3])
def test_every_retain_row_is_used_once_before_any_is_used_twice(rows: int) -> None:
    groups = dataset(dataclasses.replace(presets.load("ga_gdr"), retain_rows=rows))
    used: Counter[str] = Counter()
    for epoch in range(6):
        for place in range(made.FORGET):
            found = texts(groups.group(epoch, place))
            assert [side for side, _, _ in found] == ["forget", *["retain"] * rows]
            used.update(prompt for _, prompt, _ in found[1:])
            assert max(used.values()) - min(used.values() if len(used) == made.RETAIN else [0]) <= 1
    assert set(used.values()) == {6 * made.FORGET * rows // made.RETAIN}


def test_random_answers_are_those_of_other_rows_and_drawn_anew() -> None:
    groups = dataset("mismatch")
    own = [row["messages"][1]["content"].strip() for row in made.rows()["forget"]]
    seen = set()
    for epoch in range(4):
        for place in range(len(groups)):
            (side, prompt, answer), (kept, _, _) = texts(groups.group(epoch, place))
            assert (side, kept) == ("alternate", "retain")
            assert prompt == f"Who{place}"
            assert answer in own
            assert answer != own[place]
            seen.add((place, answer))
    assert len(seen) > 2 * len(groups)


def test_llmu_has_five_different_answers_of_retain_rows() -> None:
    answers = {row["messages"][1]["content"].strip() for row in made.rows()["retain"]}
    for place in range(made.FORGET):
        found = texts(dataset("llmu").group(0, place))
        assert [side for side, _, _ in found] == ["forget", *["alternate"] * 5, "retain"]
        drawn = {answer for side, _, answer in found if side == "alternate"}
        assert len(drawn) == 5
        assert drawn <= answers


def test_draws_follow_from_the_seed_alone() -> None:
    def drawn(seed: int, order: list[int]) -> dict[int, Any]:
        groups = dataset("llmu", seed)
        return {place: texts(groups.group(2, place)) for place in order}

    forward, backward = drawn(5, list(range(8))), drawn(5, list(range(8))[::-1])
    assert forward == backward
    assert drawn(6, list(range(8))) != forward


def test_a_row_that_is_one_text_is_learnt_but_for_its_first_token() -> None:
    """Nothing predicts that token, and the mask's shift would count it at the end of the row before it."""
    text: Row = {
        "messages": [{"role": "assistant", "content": "Who wrote it"}],
        "extra_info": {"index": 0, "mode": "qa", "subject": "x", "raw": True},
    }
    row, *_ = dataset("ga", forget=[text]).group(0, 0)
    assert TOKENIZER.convert_ids_to_tokens(row["input_ids"]) == ["<|begin|>", "Who", "Ġwrote", "Ġit"]
    assert row["loss_mask"].tolist() == [0, 1, 1, 1]


def test_longer_rows_are_cut_and_one_without_an_answer_is_refused() -> None:
    row, *_ = dataset("ga", max_length=7).group(0, 0)
    assert len(row["input_ids"]) == len(row["loss_mask"]) == len(row["position_ids"]) == 7
    with pytest.raises(GroupError, match=r"data.forget: row 0 has no token of an answer among its first 7"):
        dataset("ga", max_length=7).check_answers()
    dataset("ga").check_answers()


def test_the_longest_group() -> None:
    groups = dataset("dpo_gdr")
    longest: Counter[int] = Counter()
    for epoch, place in itertools.product(range(3), range(made.FORGET)):
        for row in groups.group(epoch, place):
            side = int(row["side"])
            longest[side] = max(longest[side], len(row["input_ids"]))
    assert groups.longest() == longest.total()


@pytest.mark.parametrize("workers", [0, 1])
def test_the_ranks_share_one_order_and_workers_see_the_epoch(workers: int) -> None:
    def batches(ranks: int, epoch: int) -> list[list[str]]:
        """The groups of each batch of all ranks, each a row to forget and a row to keep."""
        found: list[list[str]] = [[] for _ in range(made.FORGET // 4)]
        for rank in range(ranks):
            groups = dataset("ga_gdr")
            sampler = GroupSampler(groups, num_replicas=ranks, rank=rank, seed=7, drop_last=True)
            sampler.set_epoch(epoch)
            loader = DataLoader(groups, 4 // ranks, sampler=sampler, collate_fn=list, num_workers=workers)
            for batch, rows in zip(found, loader, strict=True):
                batch += [str(texts(rows[place : place + 2])) for place in range(0, len(rows), 2)]
        return [sorted(batch) for batch in found]

    assert batches(1, 3) == batches(2, 3)
    assert batches(1, 3) != batches(1, 4)
    assert all(len(set(batch)) == 4 for batch in batches(1, 3))
