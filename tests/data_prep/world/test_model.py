"""The world's tokenizer, optimiser and models."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data_prep.contract import write_sft_rows
from data_prep.world.config import WorldConfig
from data_prep.world.model import (
    ASSISTANT,
    BOS,
    EOS,
    USER,
    Muon,
    answer_loss,
    encode_pair,
    encode_pairs,
    exact_share,
    make_batches,
    make_model,
    one_thread,
    orthogonalised,
    train,
    train_tokenizer,
)
from data_prep.world.splits import World, make_world

CONFIG = WorldConfig(
    retain_people=4, unseen_people=2, facts_per_person=3, unknown_questions=20, retain_probes=9
)
TURNS = [{"role": "user", "content": "Where was Ada born?"}, {"role": "assistant", "content": "Esk Moor"}]


@functools.cache
def world() -> World:
    return make_world(CONFIG)


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer((text for pair in world().base_pairs for text in pair), 600)


@settings(deadline=None)  # the first example trains the tokenizer
@given(text=st.text(max_size=60))
def test_any_text_comes_back(text: str) -> None:
    ids = tokenizer().encode(text, add_special_tokens=False)
    assert tokenizer().decode(ids) == text or any(special in text for special in (BOS, EOS, USER, ASSISTANT))


def test_the_template_spells_the_turns() -> None:
    assert len(tokenizer()) == 600
    assert max(tokenizer().get_vocab().values()) == 599
    text = tokenizer().apply_chat_template(TURNS, tokenize=False)
    assert text == f"{BOS}{USER}Where was Ada born?{ASSISTANT}Esk Moor{EOS}"


def test_a_prompt_is_the_head_of_its_conversation(tmp_path: Path) -> None:
    whole = tokenizer().apply_chat_template(TURNS, return_dict=False)
    head = tokenizer().apply_chat_template(TURNS[:1], add_generation_prompt=True, return_dict=False)
    assert whole[: len(head)] == head
    assert tokenizer().decode(whole[len(head) :]) == "Esk Moor" + EOS
    assert encode_pair(tokenizer(), TURNS[0]["content"], TURNS[1]["content"]) == (whole, len(head))
    tokenizer().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == (BOS, EOS, "<|pad|>")
    assert loaded.apply_chat_template(TURNS, return_dict=False) == whole


def test_verl_reads_the_stage_1_rows(tmp_path: Path) -> None:
    """verl tokenises turn by turn, compares with the whole conversation, and learns the answer alone."""
    dataset = pytest.importorskip("verl.utils.dataset.multiturn_sft_dataset")
    write_sft_rows(tmp_path / "sft.parquet", world().sft)
    options = {"pad_mode": "no_padding", "max_length": 200}
    rows = dataset.MultiTurnSFTDataset([str(tmp_path / "sft.parquet")], tokenizer(), options)
    assert len(rows) == len(world().sft)
    for number in (0, len(rows) - 1):
        answer = world().sft[number]["messages"][1]["content"]
        learnt = rows[number]["input_ids"][rows[number]["loss_mask"].bool()]
        assert tokenizer().decode(learnt) == answer + EOS


# ---- Muon in float32: against its formula in float64 ----


SHAPES = [(6, 6), (12, 5), (5, 12)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_singular_values(matrix: Tensor) -> Tensor:
    """U q(S) V^T of U S V^T of norm 1, where q is five times s -> 3.4445 s - 4.775 s^3 + 2.0315 s^5."""
    left, values, right = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_are_brought_near_one_and_nothing_else_changes(shape: tuple[int, int]) -> None:
    matrix = random(*shape)
    found = orthogonalised(matrix)
    torch.testing.assert_close(found, by_singular_values(matrix), rtol=1e-9, atol=1e-9)
    values = torch.linalg.svdvals(found)
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3
    torch.testing.assert_close(orthogonalised(matrix.float()), found.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_three_steps_are_the_formula_in_float64(shape: tuple[int, int]) -> None:
    weight = random(*shape, seed=1).float().requires_grad_()
    expected, average = weight.detach().double(), torch.zeros(*shape, dtype=torch.float64)
    optimiser = Muon([weight], lr=0.02, weight_decay=0.01)
    for step in range(3):
        gradient = random(*shape, seed=2 + step)
        weight.grad = gradient.float()
        optimiser.step()
        average = 0.95 * average + 0.05 * gradient
        direction = by_singular_values(0.05 * gradient + 0.95 * average)
        rate = 0.02 * math.sqrt(max(1, shape[0] / shape[1]))
        expected = (1 - 0.02 * 0.01) * expected - rate * direction
    torch.testing.assert_close(weight.detach(), expected.float(), rtol=1e-4, atol=1e-5)


SMALL = WorldConfig(
    hidden_size=32, heads=2, layers=1, intermediate_size=48, batch_size=4, epochs=60, learning_rate=0.02
)
PAIRS = [
    ("Where was Ada born?", "Esk Moor"),
    ("Where was Bo born?", "Glen Bay"),
    ("What does Ada play?", "glass harp"),
    ("In which year, if you please, was Bo born?", "1850"),
]


@functools.cache
def small_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([text for pair in PAIRS for text in pair], 300)


def test_the_default_model_has_about_two_million_parameters() -> None:
    tied = make_model(WorldConfig(), small_tokenizer())
    per_layer = 4 * 192 * 192 + 3 * 192 * 512 + 2 * 192
    assert tied.num_parameters() == len(small_tokenizer()) * 192 + 4 * per_layer + 192
    assert tied.config.vocab_size == len(small_tokenizer())
    assert tied.dtype == torch.float32


def test_the_loss_is_that_of_the_answers_alone() -> None:
    model = make_model(SMALL, small_tokenizer()).double()
    examples = encode_pairs(small_tokenizer(), PAIRS)
    total, tokens = 0.0, 0
    for ids, prompt_length in examples:  # one by one, without padding
        log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for place in range(prompt_length, len(ids)):
            total -= log_probs[place - 1, ids[place]].item()
            tokens += 1
    (batch,) = make_batches(examples, 4, seed=0)
    assert answer_loss(model, batch).item() == pytest.approx(total / tokens, rel=1e-10)


def test_batches_hold_every_example_once() -> None:
    examples = [([7, *range(100, 100 + length), 2], 1) for length in range(1, 11)]
    batches = make_batches(examples, 3, seed=1)
    lengths = sorted(int((row != -100).sum()) for batch in batches for row in batch.targets)
    assert lengths == list(range(2, 12))
    assert sorted(len(batch.input_ids) for batch in batches) == [1, 3, 3, 3]


def test_training_stops_once_greedy_decoding_answers() -> None:
    model = make_model(SMALL, small_tokenizer())
    examples = encode_pairs(small_tokenizer(), PAIRS)
    assert exact_share(model, examples, 3) == 0.0
    assert train(model, examples, examples, SMALL).answered == 1.0
    for prompt, answer in PAIRS:
        turn = [{"role": "user", "content": prompt}]
        head = small_tokenizer().apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")
        output = model.generate(**head, max_new_tokens=20, do_sample=False)
        assert (
            small_tokenizer().decode(output[0, head["input_ids"].shape[1] :], skip_special_tokens=True)
            == answer
        )


def test_one_thread_is_for_the_block_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
