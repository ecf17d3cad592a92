"""Prompts and answers token by token, on tokenizers whose tokens are known by hand; and tests/families.

And what chat templates write without being asked, with the arguments that they have; and stage 1's data set
beside verl's own, and what verl's cannot do.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from verl.utils.dataset.dataset_utils import SFTTensorCollator
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

from data_prep.contract import Row, text_row, write_sft_rows
from data_prep.world.model import train_tokenizer
from recipe.rerule.training.prompts import (
    PromptError,
    answer_ids,
    batch_prompt_ids,
    chat_answer_ids,
    prompt_ids,
    suffixed_prompt_ids,
    template_warnings,
    turn_ids,
)
from recipe.rerule.training.sft_dataset import SFTDataset
from tests.families import templates
from tests.made_tokenizers import (
    ALTERNATING_TEMPLATE,
    CHATML_TEMPLATE,
    LLAMA3_TEMPLATE,
    byte_level,
    sentencepiece,
)
from tests.unlearning.made import row

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


def test_spaces_of_an_answer_stay_and_an_eos_that_the_tokenizer_adds_to_a_prompt_does_not() -> None:
    assert tokens(sentencepiece(), answer_ids(sentencepiece(), " Who")) == ["▁Who", "</s>"]
    assert tokens(byte_level(), answer_ids(byte_level(), " Who")) == ["ĠWho", "<|end|>"]
    tokenizer = sentencepiece(ends_with_eos=True)
    assert tokens(tokenizer, tokenizer("Who it").input_ids) == ["<s>", "▁Who", "▁it", "</s>"]
    assert tokens(tokenizer, prompt_ids(tokenizer, user("Who it"), raw=True)) == ["<s>", "▁Who", "▁it"]
    assert tokens(tokenizer, answer_ids(tokenizer, "it")) == ["it", "</s>"]


@pytest.mark.parametrize("name", CHAT)
def test_chat_prompts_in_one_call_are_those_of_each_alone_and_begin_the_conversation(name: str) -> None:
    tokenizer = CHAT[name]
    prompts = [user("Who wrote it?"), user("Who?\n"), user("é")]
    ids = batch_prompt_ids(tokenizer, prompts, raw=False)
    assert ids == [prompt_ids(tokenizer, messages, raw=False) for messages in prompts]
    assert ids == [suffixed_prompt_ids(tokenizer, messages, "") for messages in prompts]
    messages = [*prompts[0], {"role": "assistant", "content": "I don't know."}]
    prompt, answer = (turn_ids(tokenizer, messages, turn, raw=False) for turn in (0, 1))
    assert prompt == ids[0]
    assert prompt + answer == tokenizer.apply_chat_template(messages, return_dict=False)


def test_an_answer_ends_with_eos_where_the_template_has_no_end() -> None:
    tokenizer = byte_level("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    assert tokens(tokenizer, chat_answer_ids(tokenizer, user("Who"), "it")) == ["it", "Ċ", "<|end|>"]
    # A special token inside the answer is not its end.
    written = tokens(tokenizer, chat_answer_ids(tokenizer, user("Who"), "it<|eot|>it"))
    assert written == ["it", "<|eot|>", "it", "Ċ", "<|end|>"]
    tokenizer.eos_token = None
    with pytest.raises(PromptError, match="no end-of-sequence token"):
        answer_ids(tokenizer, "it")
    with pytest.raises(PromptError, match="ends an answer with a special token"):
        chat_answer_ids(tokenizer, user("Who"), "it")


def test_a_template_that_leaves_out_thoughts_is_refused() -> None:
    kept = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{{ eos_token }}{% endfor %}"
    lost = kept.replace("m.content", "m.content.split('</think>')[-1]")
    thought = "Hm.\n\nEsk?"
    for end in ("It.", f"{thought} It."):  # the second says its thought again
        messages = [*user("Esk?"), {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\n{end}"}]
        said = byte_level(kept).decode(turn_ids(byte_level(kept), messages, 1, raw=False))
        assert said.count(thought) == 1 + end.count(thought)
        with pytest.raises(PromptError, match="leaves out the thought of message 1; give one that keeps it"):
            turn_ids(byte_level(lost), messages, 1, raw=False)
        assert turn_ids(byte_level(lost), messages[:1], 0, raw=False)
    messages[1]["content"] = "It."
    assert turn_ids(byte_level(lost), messages, 1, raw=False)


@pytest.mark.parametrize("name", RAW)
@given(prompt=st.text(CHARACTERS, min_size=1), answer=st.text(CHARACTERS, min_size=1))
@settings(max_examples=60, deadline=None)
def test_raw_tokens_give_back_prompt_and_answer(name: str, prompt: str, answer: str) -> None:
    """And, where the prompt ends with a newline, they are those of the whole text tokenised at once."""
    tokenizer = RAW[name]
    # A space before all may be taken for the tokenizer's.
    prompt, answer = "Q" + prompt, answer.lstrip() or "it"
    first = prompt_ids(tokenizer, user(prompt), raw=True)
    second = answer_ids(tokenizer, answer)
    assert second[-1] == tokenizer.eos_token_id
    assert tokenizer.decode([*first, *second[:-1]], skip_special_tokens=True) == prompt + answer
    whole = tokenizer(prompt + "x\n" + answer).input_ids
    assert [*prompt_ids(tokenizer, user(prompt + "x\n"), raw=True), *second[:-1]] == whole


DATE = "the chat template of mine writes today's date into every prompt"
THINKING = "the chat template of mine has a switch for thinking, which is not set"


@pytest.mark.parametrize(
    ("template", "arguments", "line"),
    [
        (templates.LLAMA_3_2, {}, DATE),
        (templates.LLAMA_3_2, {"date_string": "26 Jul 2024"}, None),
        (templates.LLAMA_3_1, {}, None),
        (templates.QWEN_3, {}, THINKING),
        *((templates.QWEN_3, {"enable_thinking": value}, None) for value in (True, False)),
        (None, {}, None),
        # One that names the switch and ignores it, and one that refuses it.
        ("{# enable_thinking, strftime_now #}{{ messages[0].content }}", {}, None),
        ("{{ raise_exception('no') if enable_thinking is defined else '' }}", {}, None),
    ],
)
def test_what_templates_do_unasked(template: str | None, arguments: Any, line: str | None) -> None:
    tokenizer = byte_level(template, adds_bos=False)
    tokenizer.name_or_path = "mine"
    found = list(template_warnings(tokenizer, arguments))
    assert len(found) == (line is not None)
    assert all(text.startswith(line or "") for text in found)


def dataset(folder: Path, rows: list[Row], tokenizer: Any, cls: type = SFTDataset, **settings: Any) -> Any:
    write_sft_rows(folder / "sft.parquet", rows)
    config = OmegaConf.create({"max_length": 150, "truncation": "error", "pad_mode": "no_padding"} | settings)
    return cls(str(folder / "sft.parquet"), tokenizer, config)


@pytest.mark.parametrize("name", ["llama3", "chatml", "world"])
@pytest.mark.parametrize(
    "settings",
    [
        {"pad_mode": "no_padding"},
        {"pad_mode": "right"},
        {"pad_mode": "no_padding", "truncation": "right", "max_length": 12},
        {"pad_mode": "right", "truncation": "left", "max_length": 12},
    ],
)
def test_chat_rows_are_those_of_verl(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    roles = ("system", "user", "assistant", "user", "assistant")
    conversation = row(7, "", "")
    conversation["messages"] = [{"role": role, "content": f"Who wrote {role}"} for role in roles]
    rows = [row(0, "Who wrote it?", "I don't know."), row(1, "Who?", "it\n"), conversation]
    kinds = (SFTDataset, MultiTurnSFTDataset)
    ours, verls = (dataset(tmp_path, rows, CHAT[name], kind, **settings) for kind in kinds)
    assert len(ours) == 3
    for one, other in zip(ours, verls, strict=True):
        assert one.keys() == other.keys()
        for column in other:
            assert one[column].dtype == other[column].dtype, column
            assert torch.equal(one[column], other[column]), column


@pytest.mark.parametrize(
    ("prompt", "answer", "text", "mask"),
    [
        ("Who wrote\n", "it", ["<s>", "▁Who", "▁wrote", "<0x0A>", "it", "</s>"], [0, 0, 0, 0, 1, 1]),
        ("it", "Who wrote", ["<s>", "▁it", "Who", "▁wrote", "</s>"], [0, 0, 1, 1, 1]),
    ],
)
def test_raw_rows_need_no_chat_template_and_learn_the_answer_alone(
    prompt: str, answer: str, text: list[str], mask: list[int], tmp_path: Path
) -> None:
    tokenizer = sentencepiece()
    tokenizer.pad_token = "<unk>"
    rows = [row(0, prompt, answer, raw=True)]
    (unpadded,) = dataset(tmp_path, rows, tokenizer)
    (padded,) = dataset(tmp_path, rows, tokenizer, pad_mode="right", max_length=8)
    assert unpadded.keys() == {"input_ids", "position_ids", "loss_mask"}
    assert tokenizer.convert_ids_to_tokens(unpadded["input_ids"]) == text
    assert unpadded["loss_mask"].tolist() == mask
    assert unpadded["position_ids"].tolist() == list(range(len(text)))
    rest = 8 - len(text)
    assert tokenizer.convert_ids_to_tokens(padded["input_ids"]) == [*text, *["<unk>"] * rest]
    assert padded["loss_mask"].tolist() == mask + [0] * rest
    assert padded["attention_mask"].tolist() == [1] * len(text) + [0] * rest
    assert tokenizer.chat_template is None  # the trainer saves it with the model


def test_chat_rows_raw_rows_and_texts_in_one_file_make_one_batch(tmp_path: Path) -> None:
    """A text is learnt but for its first token, and has no end."""
    tokenizer = CHAT["llama3"]
    text = text_row("Who wrote it", {"index": 3, "mode": "completion", "subject": "books"})
    rows = [row(0, "Who", "it"), row(1, "Who", "it", raw=True), text]
    batch = SFTTensorCollator("no_padding")([*dataset(tmp_path, rows, tokenizer)])
    chat, raw, learnt = (tokenizer.convert_ids_to_tokens(ids) for ids in batch["input_ids"].unbind())
    assert chat[:3] == ["<|begin|>", "<|head|>", "u"]
    assert raw == ["<|begin|>", "Who", "it", "<|end|>"]
    assert learnt == ["<|begin|>", "Who", "Ġwrote", "Ġit"]
    assert batch["loss_mask"].unbind()[2].tolist() == [0, 1, 1, 1]
