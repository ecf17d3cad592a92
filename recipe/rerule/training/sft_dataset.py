"""The data set of stage 1: verl's, with the token ids of `prompts`.

verl tokenises each message of a conversation alone. That needs a chat template which takes any message alone,
so not Llama-2's or Mistral's, which want the roles to alternate; and it knows no raw rows. Here the ids are
those of the whole conversation, cut where messages end. Where verl can do it too, they are the same.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
from verl.utils.py_functional import convert_nested_value_to_list_recursive

from recipe.rerule.training.prompts import turn_ids

_ANY_MESSAGES = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class SFTDataset(MultiTurnSFTDataset):
    """Named in `data.custom_cls` of stage 1; rows, padding, truncation and fields are verl's."""

    def __init__(
        self,
        parquet_files: str | list[str],
        tokenizer: PreTrainedTokenizerBase,
        config: DictConfig,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        self._own_tokenizer = tokenizer
        # What verl renders with this one no longer counts, but it must not fail. A copy, because the trainer
        # saves the tokenizer with the model.
        stand_in = copy.copy(tokenizer)
        stand_in.chat_template = _ANY_MESSAGES
        super().__init__(parquet_files, stand_in, config, processor, max_samples)

    def _build_messages(self, example: dict[str, Any]) -> list[dict[str, Any]]:
        """The row's messages; those of a raw row say so, as verl passes on nothing else of it."""
        if not example["extra_info"]["raw"]:
            return super()._build_messages(example)
        messages = convert_nested_value_to_list_recursive(example[self.messages_key])
        return [{**message, "raw": True} for message in messages]

    def _process_single_message(
        self, index: int, message: dict[str, Any], full_message: list[dict[str, Any]], **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Token ids of a message, loss mask (an assistant's messages), attention mask, and no other inputs.

        A text row begins with the assistant's message. Its first token follows nothing, so it is not learnt:
        verl would take it as what the row before goes on with.

        As in stage 2, the template gets `data.apply_chat_template_kwargs`, no tools and no thinking mode.
        """
        raw = message.get("raw", False)
        turn = turn_ids(self._own_tokenizer, full_message, index, raw, **self.apply_chat_template_kwargs)
        ids = torch.tensor(turn, dtype=torch.int64)
        learnt = torch.full_like(ids, int(message["role"] == "assistant"))
        if index == 0:
            learnt[:1] = 0
        return ids, learnt, torch.ones_like(ids), {}

    def sanity_check(self, *_: Any) -> None:
        """Nothing to do: verl compares its ids with those of the whole conversation, which ours are."""
