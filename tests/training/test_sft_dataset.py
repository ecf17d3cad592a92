"""Stage 1's data set beside verl's own, and what verl's cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.utils.dataset.dataset_utils import SFTTensorCollator
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

from data_prep.contract import Row, text_row, write_sft_rows
from data_prep.world.model import train_tokenizer
from recipe.rerule.training.sft_dataset import SFTDataset
from tests.made_tokenizers import (
    CHATML_TEMPLATE,
    LLAMA3_TEMPLATE,
    byte_level,
    sentencepiece,
)
from tests.unlearning.made import row

LLAMA3 = byte_level(LLAMA3_TEMPLATE)
VERL_CAN = {
    "llama3": LLAMA3,
    "chatml": byte_level(CHATML_TEMPLATE, adds_bos=False),
    "world": train_tokenizer(["Who wrote it? Ada Thorn wrote it."] * 4, vocab_size=300),
}


def dataset(folder: Path, rows: list[Row], tokenizer: Any, cls: type = SFTDataset, **settings: Any) -> Any:
    write_sft_rows(folder / "sft.parquet", rows)
    config = OmegaConf.create({"max_length": 150, "truncation": "error", "pad_mode": "no_padding"} | settings)
    return cls(str(folder / "sft.parquet"), tokenizer, config)


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
    roles = ("system", "user", "assistant", "user", "assistant")
    conversation = row(7, "", "")
    conversation["messages"] = [{"role": role, "content": f"Who wrote {role}"} for role in roles]
    rows = [row(0, "Who wrote it?", "I don't know."), row(1, "Who?", "it\n"), conversation]
    kinds = (SFTDataset, MultiTurnSFTDataset)
    ours, verls = (dataset(tmp_path, rows, VERL_CAN[name], kind, **settings) for kind in kinds)
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
    text = text_row("Who wrote it", {"index": 3, "mode": "completion", "subject": "books"})
    rows = [row(0, "Who", "it"), row(1, "Who", "it", raw=True), text]
    batch = SFTTensorCollator("no_padding")([*dataset(tmp_path, rows, LLAMA3)])
    chat, raw, learnt = (LLAMA3.convert_ids_to_tokens(ids) for ids in batch["input_ids"].unbind())
    assert chat[:3] == ["<|begin|>", "<|head|>", "u"]
    assert raw == ["<|begin|>", "Who", "it", "<|end|>"]
    assert learnt == ["<|begin|>", "Who", "Ġwrote", "Ġit"]
    assert batch["loss_mask"].unbind()[2].tolist() == [0, 1, 1, 1]
