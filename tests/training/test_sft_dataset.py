"""Stage 1's data set beside verl's own, and what verl's cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.utils.dataset.dataset_utils import SFTTensorCollator
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

from data_prep.contract import Row, sft_row, text_row, write_sft_rows
from data_prep.world.model import train_tokenizer
from recipe.rerule.training.sft_dataset import SFTDataset
from tests.made_tokenizers import (
    ALTERNATING_TEMPLATE,
    CHATML_TEMPLATE,
    LLAMA3_TEMPLATE,
    byte_level,
    sentencepiece,
)

VERL_CAN = {
    "llama3": byte_level(LLAMA3_TEMPLATE),
    "chatml": byte_level(CHATML_TEMPLATE, adds_bos=False),
    "world": train_tokenizer(["Who wrote it? Ada Thorn wrote it."] * 4, vocab_size=300),
}


def make_row(index: int, prompt: str, answer: str, raw: bool = False) -> Row:
    info = {"index": index, "mode": "qa", "subject": "Ada Thorn"}
    return sft_row(prompt=prompt, answer=answer, extra_info=info, raw=raw)


def conversation() -> Row:
    """Two questions and answers behind a system message."""
    roles = ("system", "user", "assistant", "user", "assistant")
    row = make_row(7, "", "")
    row["messages"] = [{"role": role, "content": f"Who wrote {role}"} for role in roles]
    return row


def dataset(cls: type, folder: Path, rows: list[Row], tokenizer: Any, **settings: Any) -> Any:
    write_sft_rows(folder / "sft.parquet", rows)
    config = OmegaConf.create({"max_length": 150, "truncation": "error", "pad_mode": "no_padding"} | settings)
    return cls(str(folder / "sft.parquet"), tokenizer, config)


def assert_same(ours: dict[str, torch.Tensor], verls: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == verls.keys()
    for name in verls:
        assert ours[name].dtype == verls[name].dtype, name
        assert torch.equal(ours[name], verls[name]), name


@pytest.mark.parametrize("name", VERL_CAN)
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
    rows = [make_row(0, "Who wrote it?", "I don't know."), make_row(1, "Who?", "it\n"), conversation()]
    ours, verls = (
        dataset(cls, tmp_path, rows, VERL_CAN[name], **settings) for cls in (SFTDataset, MultiTurnSFTDataset)
    )
    assert len(ours) == len(verls) == 3
    for row in range(3):
        assert_same(ours[row], verls[row])


def test_a_template_whose_roles_must_alternate(tmp_path: Path) -> None:
    """As Llama-2's, which verl's own data set cannot even be built with."""
    tokenizer = sentencepiece(template=ALTERNATING_TEMPLATE)
    rows = [make_row(0, "Who", "it wrote")]
    with pytest.raises(Exception, match="take turns"):
        dataset(MultiTurnSFTDataset, tmp_path, rows, tokenizer)
    row = dataset(SFTDataset, tmp_path, rows, tokenizer)[0]
    expected = ["<s>", *"[INST]", "▁Who", "▁", *"[/INST]", "▁it", "▁wrote", "▁", "</s>"]
    assert tokenizer.convert_ids_to_tokens(row["input_ids"]) == expected
    assert row["loss_mask"].tolist() == [0] * 16 + [1] * 4
    assert tokenizer.chat_template == ALTERNATING_TEMPLATE


def test_raw_rows_need_no_chat_template_and_learn_the_answer_alone(tmp_path: Path) -> None:
    tokenizer = sentencepiece()
    tokenizer.pad_token = "<unk>"
    rows = [make_row(0, "Who wrote\n", "it", raw=True), make_row(1, "it", "Who wrote", raw=True)]
    texts = [["<s>", "▁Who", "▁wrote", "<0x0A>", "it", "</s>"], ["<s>", "▁it", "Who", "▁wrote", "</s>"]]
    masks = [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]
    unpadded = dataset(SFTDataset, tmp_path, rows, tokenizer)
    padded = dataset(SFTDataset, tmp_path, rows, tokenizer, pad_mode="right", max_length=8)
    for number, (text, mask) in enumerate(zip(texts, masks, strict=True)):
        assert unpadded[number].keys() == {"input_ids", "position_ids", "loss_mask"}
        assert tokenizer.convert_ids_to_tokens(unpadded[number]["input_ids"]) == text
        assert unpadded[number]["loss_mask"].tolist() == mask
        assert unpadded[number]["position_ids"].tolist() == list(range(len(text)))
        rest = 8 - len(text)
        assert tokenizer.convert_ids_to_tokens(padded[number]["input_ids"]) == [*text, *["<unk>"] * rest]
        assert padded[number]["loss_mask"].tolist() == mask + [0] * rest
        assert padded[number]["attention_mask"].tolist() == [1] * len(text) + [0] * rest
    assert tokenizer.chat_template is None  # the trainer saves it with the model


def test_a_row_that_is_too_long_is_an_error_unless_it_is_to_be_cut(tmp_path: Path) -> None:
    rows = [make_row(0, "Who wrote", "it", raw=True)]
    with pytest.raises(ValueError, match="sequence_length=5"):
        dataset(SFTDataset, tmp_path, rows, sentencepiece(), max_length=4)[0]
    cut = dataset(SFTDataset, tmp_path, rows, sentencepiece(), max_length=4, truncation="right")[0]
    assert sentencepiece().convert_ids_to_tokens(cut["input_ids"]) == ["<s>", "▁Who", "▁wrote", "it"]


def test_raw_and_chat_rows_in_one_file_make_one_batch(tmp_path: Path) -> None:
    tokenizer = VERL_CAN["llama3"]
    rows = [make_row(0, "Who", "it"), make_row(1, "Who", "it", raw=True)]
    data = dataset(SFTDataset, tmp_path, rows, tokenizer)
    batch = SFTTensorCollator("no_padding")([data[0], data[1]])
    chat, raw = (tokenizer.convert_ids_to_tokens(ids) for ids in batch["input_ids"].unbind())
    assert chat[:3] == ["<|begin|>", "<|head|>", "u"]
    assert raw == ["<|begin|>", "Who", "it", "<|end|>"]


def test_arguments_of_the_chat_template_reach_it(tmp_path: Path) -> None:
    tokenizer = byte_level("{{ messages[0].content }}{% if thinks %} wrote{% endif %}")
    rows = [make_row(0, "Who", "it")]
    row = dataset(SFTDataset, tmp_path, rows, tokenizer, apply_chat_template_kwargs={"thinks": True})[0]
    assert tokenizer.convert_ids_to_tokens(row["input_ids"]) == ["Who", "Ġwrote"]


def test_a_text_is_learnt_but_for_its_first_token(tmp_path: Path) -> None:
    tokenizer = sentencepiece()
    text = text_row("It was night.", {"index": 3, "mode": "completion", "subject": "books"})
    rows = [make_row(0, "Who wrote it?", " Ada", raw=True), text]
    data = dataset(SFTDataset, tmp_path, rows, tokenizer)
    ids, mask = data[1]["input_ids"].tolist(), data[1]["loss_mask"].tolist()
    assert ids == tokenizer("It was night.").input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] != tokenizer.eos_token_id
    assert mask == [0, *[1] * (len(ids) - 1)]
    assert data[0]["loss_mask"].tolist()[0] == 0
