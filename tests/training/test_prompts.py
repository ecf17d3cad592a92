"""Prompts and answers token by token, on tokenizers whose tokens are known by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError

from data_prep.world.model import train_tokenizer
from recipe.rerule.training.prompts import (
    PromptError,
    answer_ids,
    batch_prompt_ids,
    chat_answer_ids,
    prompt_ids,
    require_chat_template,
    suffixed_prompt_ids,
    turn_ids,
)
from tests.made_tokenizers import (
    ALTERNATING_TEMPLATE,
    CHATML_TEMPLATE,
    LLAMA3_TEMPLATE,
    byte_level,
    sentencepiece,
)

WORLD = train_tokenizer(["Who wrote it? Ada Thorn wrote it."] * 4, vocab_size=300)
RAW = {
    "sentencepiece": sentencepiece(),
    "sentencepiece, space before every part": sentencepiece("always"),
    "byte level with BOS": byte_level(),
    "byte level": byte_level(adds_bos=False),
    "world": WORLD,
}
CHAT = {
    "alternating": sentencepiece(template=ALTERNATING_TEMPLATE),
    "llama3": byte_level(LLAMA3_TEMPLATE),
    "chatml": byte_level(CHATML_TEMPLATE, adds_bos=False),
    "world": WORLD,
}


# Without "<": a text may spell a special token, and is that token then.
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="<")


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def tokens(tokenizer: Any, ids: list[int]) -> list[str]:
    return tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "answer"),
    [
        (
            sentencepiece(),
            ["<s>", "▁Who", "▁wrote", "<0x0A>", "it", "?", "▁"],
            ["Who", "▁wrote", "▁", "<0xC3>", "<0xA9>", "</s>"],
        ),
        (
            byte_level(),
            ["<|begin|>", "Who", "Ġwrote", "Ċ", "it", "?", "Ġ"],
            ["Who", "Ġwrote", "Ġ", "Ã", "©", "<|end|>"],
        ),
        (
            byte_level(adds_bos=False),
            ["Who", "Ġwrote", "Ċ", "it", "?", "Ġ"],
            ["Who", "Ġwrote", "Ġ", "Ã", "©", "<|end|>"],
        ),
    ],
)
def test_a_raw_prompt_and_its_answer(tokenizer: Any, prompt: list[str], answer: list[str]) -> None:
    assert tokenizer.chat_template is None
    messages = [*user("Who wrote\nit? "), {"role": "assistant", "content": "Who wrote é"}]
    assert tokens(tokenizer, prompt_ids(tokenizer, messages[:1], raw=True)) == prompt
    assert tokens(tokenizer, answer_ids(tokenizer, "Who wrote é")) == answer
    turns = [turn_ids(tokenizer, messages, turn, raw=True) for turn in (0, 1)]
    assert [tokens(tokenizer, turn) for turn in turns] == [prompt, answer]


def test_spaces_of_an_answer_stay_and_an_eos_that_the_tokenizer_adds_to_a_prompt_does_not() -> None:
    assert tokens(sentencepiece(), answer_ids(sentencepiece(), " Who")) == ["▁Who", "</s>"]
    assert tokens(byte_level(), answer_ids(byte_level(), " Who")) == ["ĠWho", "<|end|>"]
    tokenizer = sentencepiece(ends_with_eos=True)
    assert tokens(tokenizer, tokenizer("Who it").input_ids) == ["<s>", "▁Who", "▁it", "</s>"]
    assert tokens(tokenizer, prompt_ids(tokenizer, user("Who it"), raw=True)) == ["<s>", "▁Who", "▁it"]
    assert tokens(tokenizer, answer_ids(tokenizer, "it")) == ["it", "</s>"]


def test_a_template_that_writes_only_bos_and_content_would_give_other_tokens() -> None:
    """Why raw prompts are not sent through such a template: it loses the space before the first word."""
    tokenizer = sentencepiece(template="{{ bos_token }}{{ messages[0].content }}")
    by_template = tokenizer.apply_chat_template(user("Who wrote"), return_dict=False)
    assert tokens(tokenizer, by_template) == ["<s>", "Who", "▁wrote"]
    assert tokens(tokenizer, prompt_ids(tokenizer, user("Who wrote"), raw=True)) == ["<s>", "▁Who", "▁wrote"]


@pytest.mark.parametrize("name", CHAT)
def test_a_chat_prompt_is_the_one_of_verls_agent_loop_and_begins_the_conversation(name: str) -> None:
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer = CHAT[name]
    builder = create_continuous_token_builder(tokenizer, hf_model_type="llama")
    prompts = [user("Who wrote it?"), user("Who?\n"), user("é")]
    ids = batch_prompt_ids(tokenizer, prompts, raw=False)
    assert ids == [builder.build_initial_tokens(messages) for messages in prompts]
    assert ids == [prompt_ids(tokenizer, messages, raw=False) for messages in prompts]
    assert ids == [suffixed_prompt_ids(tokenizer, messages, "") for messages in prompts]
    messages = [*prompts[0], {"role": "assistant", "content": "I don't know."}]
    prompt, answer = (turn_ids(tokenizer, messages, turn, raw=False) for turn in (0, 1))
    assert prompt == ids[0]
    assert prompt + answer == tokenizer.apply_chat_template(messages, return_dict=False)


def test_arguments_of_the_chat_template_reach_it() -> None:
    tokenizer = byte_level("{{ messages[0].content }}{% if thinks %} wrote{% endif %}")
    assert tokens(tokenizer, prompt_ids(tokenizer, user("Who"), raw=False)) == ["Who"]
    assert tokens(tokenizer, prompt_ids(tokenizer, user("Who"), raw=False, thinks=True)) == ["Who", "Ġwrote"]


def test_turns_of_a_template_whose_roles_must_alternate() -> None:
    """As Llama-2's: no message but the first user's can be rendered alone."""
    tokenizer = CHAT["alternating"]
    messages = [*user("Who"), {"role": "assistant", "content": "it"}, *user("Who it")]
    messages.append({"role": "assistant", "content": "wrote"})
    turns = [tokens(tokenizer, turn_ids(tokenizer, messages, turn, raw=False)) for turn in range(4)]
    mark, end = ["[", "I", "N", "S", "T", "]"], ["[", "/", "I", "N", "S", "T", "]"]
    # Behind a special token a text has no space put before it.
    assert turns == [
        ["<s>", *mark, "▁Who", "▁", *end],
        ["▁it", "▁", "</s>"],
        ["<s>", *mark, "▁Who", "▁it", "▁", *end],
        ["▁wrote", "▁", "</s>"],
    ]


def test_a_suffix_stands_right_behind_the_generation_prompt() -> None:
    prompt = suffixed_prompt_ids(CHAT["llama3"], user("Who"), "it")
    assert tokens(CHAT["llama3"], prompt)[-4:] == ["t", "<|body|>", "ĊĊ", "it"]
    assert prompt[:-1] == prompt_ids(CHAT["llama3"], user("Who"), raw=False)


def test_the_tokenizer_may_add_its_own_beginning() -> None:
    (first, second, third, *_) = suffixed_prompt_ids(CHAT["llama3"], user("Who"), "", double_bos=True)
    assert tokens(CHAT["llama3"], [first, second, third]) == ["<|begin|>", "<|begin|>", "<|head|>"]
    ends = sentencepiece(template=ALTERNATING_TEMPLATE, ends_with_eos=True)
    ids = suffixed_prompt_ids(ends, user("Who"), "", double_bos=True)
    assert tokens(ends, ids)[:2] == ["<s>", "<s>"]
    assert tokens(ends, ids)[-1] == "]"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("alternating", ["▁it", "▁", "</s>"]),
        ("llama3", ["it", "<|eot|>"]),
        ("chatml", ["it", "<|eot|>"]),  # whose template writes a newline behind
    ],
)
def test_an_answer_to_a_chat_prompt_ends_with_the_end_of_its_turn(name: str, expected: list[str]) -> None:
    tokenizer = CHAT[name]
    answer = chat_answer_ids(tokenizer, user("Who"), "it")
    assert tokens(tokenizer, answer) == expected
    turn = turn_ids(tokenizer, [*user("Who"), {"role": "assistant", "content": "it"}], 1, raw=False)
    assert turn[: len(answer)] == answer
    if name == "llama3":  # whose template trims an answer, but not behind a suffix
        behind = chat_answer_ids(tokenizer, user("Who"), " wrote", suffix="it")
        assert tokens(tokenizer, behind) == ["Ġwrote", "<|eot|>"]
        assert tokens(tokenizer, chat_answer_ids(tokenizer, user("Who"), " wrote")) == ["wrote", "<|eot|>"]


def test_an_answer_ends_with_eos_where_the_template_has_no_end() -> None:
    tokenizer = byte_level("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    assert tokens(tokenizer, chat_answer_ids(tokenizer, user("Who"), "it")) == ["it", "Ċ", "<|end|>"]
    # A special token inside the answer is not its end.
    written = tokens(tokenizer, chat_answer_ids(tokenizer, user("Who"), "it<|eot|>it"))
    assert written == ["it", "<|eot|>", "it", "Ċ", "<|end|>"]
    tokenizer.eos_token = None
    with pytest.raises(PromptError, match="ends an answer with a special token"):
        chat_answer_ids(tokenizer, user("Who"), "it")


@pytest.mark.parametrize("name", RAW)
@given(
    prompt=st.text(CHARACTERS, min_size=1),
    answer=st.text(CHARACTERS, min_size=1),
)
@settings(max_examples=60, deadline=None)
def test_raw_tokens_give_back_prompt_and_answer(name: str, prompt: str, answer: str) -> None:
    """And, where the prompt ends with a newline, they are those of the whole text tokenised at once."""
    tokenizer = RAW[name]
    prompt, answer = (
        "Q" + prompt,
        answer.lstrip() or "it",
    )  # a space before all may be taken for the tokenizer's
    first = prompt_ids(tokenizer, user(prompt), raw=True)
    second = answer_ids(tokenizer, answer)
    assert second[-1] == tokenizer.eos_token_id
    text = tokenizer.decode([*first, *second[:-1]], skip_special_tokens=True)
    assert text == prompt + answer
    whole = tokenizer(prompt + "x\n" + answer).input_ids
    assert [*prompt_ids(tokenizer, user(prompt + "x\n"), raw=True), *second[:-1]] == whole


def test_what_has_no_tokens_is_refused() -> None:
    with pytest.raises(PromptError, match="strip it"):
        answer_ids(byte_level(), "\nWho")  # a newline before it would become one token with its own
    silent = sentencepiece()
    silent.eos_token = None
    with pytest.raises(PromptError, match="no end-of-sequence token"):
        answer_ids(silent, "it")
    with pytest.raises(ValueError, match="unpack"):
        prompt_ids(sentencepiece(), [*user("Who"), *user("it")], raw=True)
    with pytest.raises(PromptError, match="no chat template: use an instruct model"):
        require_chat_template(sentencepiece())
    require_chat_template(CHAT["llama3"])


def test_a_template_that_rewrites_what_stands_before_is_refused() -> None:
    tokenizer = byte_level("{{ messages | length }}{{ messages[0].content }}")
    messages = [*user("Who"), {"role": "assistant", "content": "it"}]
    with pytest.raises(PromptError, match="message 1"):
        turn_ids(tokenizer, messages, 1, raw=False)
    with pytest.raises(TemplateError, match="take turns"):
        prompt_ids(CHAT["alternating"], [messages[1]], raw=False)
