from __future__ import annotations

import functools

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from data_prep.world.config import WorldConfig
from data_prep.world.model import (
    answer_loss,
    encode_pairs,
    exact_share,
    make_batches,
    make_model,
    make_optimisers,
    one_thread,
    train,
    train_step,
)
from data_prep.world.tokenizer import train_tokenizer

CONFIG = WorldConfig(
    hidden_size=32, heads=2, layers=1, intermediate_size=48, batch_size=4, epochs=60, learning_rate=0.02
)
PAIRS = [
    ("Where was Ada born?", "Esk Moor"),
    ("Where was Bo born?", "Glen Bay"),
    ("What does Ada play?", "glass harp"),
    ("In which year, if you please, was Bo born?", "1850"),
]


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([text for pair in PAIRS for text in pair], 300)


def test_the_default_model_has_about_two_million_parameters() -> None:
    tied = make_model(WorldConfig(), tokenizer())
    per_layer = 4 * 192 * 192 + 3 * 192 * 512 + 2 * 192
    assert tied.num_parameters() == len(tokenizer()) * 192 + 4 * per_layer + 192
    assert tied.config.vocab_size == len(tokenizer())
    assert tied.dtype == torch.float32


def test_the_loss_is_that_of_the_answers_alone() -> None:
    model = make_model(CONFIG, tokenizer()).double()
    examples = encode_pairs(tokenizer(), PAIRS)
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


def test_a_weight_belongs_to_one_optimiser() -> None:
    model = make_model(CONFIG, tokenizer())
    optimisers = make_optimisers(model, CONFIG)
    held = [
        weight for optimiser in optimisers for group in optimiser.param_groups for weight in group["params"]
    ]
    assert len(held) == len({id(weight) for weight in held}) == len(list(model.parameters()))


def test_a_few_steps_lower_the_loss() -> None:
    model = make_model(CONFIG, tokenizer())
    optimisers = make_optimisers(model, CONFIG)
    (batch,) = make_batches(encode_pairs(tokenizer(), PAIRS), 4, seed=0)
    losses = [train_step(model, batch, optimisers) for _ in range(10)]
    assert losses[-1] < 0.7 * losses[0]


def test_training_stops_once_greedy_decoding_answers() -> None:
    model = make_model(CONFIG, tokenizer())
    examples = encode_pairs(tokenizer(), PAIRS)
    assert exact_share(model, examples, 3) == 0.0
    assert train(model, examples, examples, CONFIG).answered == 1.0
    for prompt, answer in PAIRS:
        turn = [{"role": "user", "content": prompt}]
        head = tokenizer().apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")
        output = model.generate(**head, max_new_tokens=20, do_sample=False)
        assert tokenizer().decode(output[0, head["input_ids"].shape[1] :], skip_special_tokens=True) == answer


def test_one_thread_is_for_the_block_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_a_seed_decides_the_weights() -> None:
    first, second = (make_model(CONFIG, tokenizer()) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
