"""What training, evaluation and verl's agent loop show models of each family: the same, known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from data_prep.contract import sft_row, write_sft_rows
from recipe.rerule.evaluation.engine.encoding import encode_one
from recipe.rerule.evaluation.engine.requests import Generation, Likelihood, PromptText
from recipe.rerule.preflight.rows import check_rows
from recipe.rerule.training.prompts import PromptError, prompt_ids
from recipe.rerule.training.sft_dataset import SFTDataset
from tests.families.made import Family

QUESTION, ANSWER = "Who wrote it?", "I do not know."
USER = {"role": "user", "content": QUESTION}
SYSTEM = {"role": "system", "content": "Be brief."}
LLAMA_3 = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n{system}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWho wrote it?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
CHATML = "<|im_start|>user\nWho wrote it?<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = {
    "Gemma-2": "<bos><start_of_turn>user\nWho wrote it?<end_of_turn>\n<start_of_turn>model\n",
    "Qwen2.5": "<|im_start|>system\nHelp briefly.<|im_end|>\n" + CHATML,
    "Llama-3.2": LLAMA_3.format(system=""),
    "Llama-3.1": LLAMA_3.format(system=""),
    "Llama-2": "<s>[INST] Who wrote it? [/INST]",
    "Mistral": "<s>[INST]Who wrote it?[/INST]",
    "Qwen3": CHATML + "<think>\n\n</think>\n\n",
    "Gemma-3": "<bos><start_of_turn>user\nWho wrote it?<end_of_turn>\n<start_of_turn>model\n",
    "Phi-3": "<|user|>\nWho wrote it?<|end|>\n<|assistant|>\n",
    "OLMo-2": "<|endoftext|><|user|>\nWho wrote it?\n<|assistant|>\n",
}
WITH_SYSTEM = {
    "Qwen2.5": "<|im_start|>system\nBe brief.<|im_end|>\n" + CHATML,
    "Llama-3.2": LLAMA_3.format(system="Be brief."),
    "Llama-3.1": LLAMA_3.format(system="Be brief."),
    "Llama-2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nWho wrote it? [/INST]",
    "Mistral": "<s>[INST]Be brief.\n\nWho wrote it?[/INST]",
    "Qwen3": "<|im_start|>system\nBe brief.<|im_end|>\n" + CHATML + "<think>\n\n</think>\n\n",
    "Gemma-3": "<bos><start_of_turn>user\nBe brief.\n\nWho wrote it?<end_of_turn>\n<start_of_turn>model\n",
    "Phi-3": "<|system|>\nBe brief.<|end|>\n<|user|>\nWho wrote it?<|end|>\n<|assistant|>\n",
    "OLMo-2": "<|endoftext|><|system|>\nBe brief.\n<|user|>\nWho wrote it?\n<|assistant|>\n",
}
ANSWERS = {
    "Gemma-2": ("I do not know.<end_of_turn>", "\n"),
    "Qwen2.5": ("I do not know.<|im_end|>", "\n"),
    "Llama-3.2": ("I do not know.<|eot_id|>", ""),
    "Llama-3.1": ("I do not know.<|eot_id|>", ""),
    "Llama-2": (" I do not know. </s>", ""),
    "Mistral": (" I do not know.</s>", ""),
    "Qwen3": ("I do not know.<|im_end|>", "\n"),
    "Gemma-3": ("I do not know.<end_of_turn>", "\n"),
    "Phi-3": ("I do not know.<|end|>", "\n<|endoftext|>"),
    "OLMo-2": ("I do not know.<|endoftext|>", ""),
}
"""The answer with the end of its turn, and what the template writes behind it."""


def stage1(tokenizer: Any, messages: list[dict[str, str]], family: Family, folder: Path) -> tuple[str, str]:
    """What stage 1 shows the model: the text that is not learnt, and the text that is."""
    row = sft_row(prompt="", answer="", extra_info={"index": 0, "mode": "qa", "subject": "Ada"})
    row["messages"] = messages
    write_sft_rows(folder / "sft.parquet", [row])
    arguments = dict(family.arguments)
    settings = {"max_length": 200, "truncation": "error", "pad_mode": "no_padding"}
    config = OmegaConf.create({**settings, "apply_chat_template_kwargs": arguments})
    one = SFTDataset(str(folder / "sft.parquet"), tokenizer, config)[0]
    ids, mask = one["input_ids"], one["loss_mask"].bool()
    learnt = int(mask.sum())
    assert torch.equal(mask, torch.arange(len(ids)) >= len(ids) - learnt)  # the answer is one run at the end
    return tokenizer.decode(ids[~mask]), tokenizer.decode(ids[mask])


def asked(tokenizer: Any, messages: list[dict[str, str]], family: Family) -> list[int]:
    """What evaluation gives the engine."""
    prompt = PromptText(tuple(messages))
    return encode_one(tokenizer, Generation("a", prompt, 1), family.arguments).ids


def test_the_prompt_is_the_text_known_by_hand(family: Family, tokenizer: Any) -> None:
    ids = prompt_ids(tokenizer, [USER], raw=False, **family.arguments)
    assert tokenizer.decode(ids) == PROMPTS[family.name]
    assert ids.count(tokenizer.bos_token_id) == (PROMPTS[family.name].startswith(family.bos or "?"))


def test_training_evaluation_and_sampling_see_the_same_tokens(
    family: Family, tokenizer: Any, tmp_path: Path
) -> None:
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    ids = prompt_ids(tokenizer, [USER], raw=False, **family.arguments)
    builder = create_continuous_token_builder(
        tokenizer, hf_model_type=model_type(family), chat_template_kwargs=dict(family.arguments)
    )
    assert builder.build_initial_tokens([USER]) == ids
    assert asked(tokenizer, [USER], family) == ids
    messages = [USER, {"role": "assistant", "content": ANSWER}]
    assert stage1(tokenizer, messages, family, tmp_path)[0] == PROMPTS[family.name]


def test_stage_1_learns_the_answer_and_the_end_of_its_turn(
    family: Family, tokenizer: Any, tmp_path: Path
) -> None:
    messages = [USER, {"role": "assistant", "content": ANSWER}]
    assert stage1(tokenizer, messages, family, tmp_path)[1] == "".join(ANSWERS[family.name])


def test_the_likelihood_of_an_answer_ends_with_its_turn(family: Family, tokenizer: Any) -> None:
    request = Likelihood("a", PromptText((USER,)), ANSWER)
    one = encode_one(tokenizer, request, family.arguments)
    assert one.ids[: one.answer_start] == prompt_ids(tokenizer, [USER], raw=False, **family.arguments)
    assert tokenizer.decode(one.ids[one.answer_start :]) == ANSWERS[family.name][0]
    assert one.ids[-1] == tokenizer.convert_tokens_to_ids(family.end)


def test_a_system_message_has_its_place_or_is_refused(family: Family, tokenizer: Any, tmp_path: Path) -> None:
    messages = [SYSTEM, USER, {"role": "assistant", "content": ANSWER}]
    if family.system == "refused":
        with pytest.raises(PromptError, match=r"^a: row 0: the chat template refuses it: no system role$"):
            check_rows("a", [rl_like(messages[:2])], tokenizer, dict(family.arguments), 200)
        with pytest.raises(PromptError, match=r"^a: row 0: the chat template refuses it: no system role$"):
            check_rows("a", [sft_like(messages)], tokenizer, dict(family.arguments), 200)
        return
    ids = prompt_ids(tokenizer, messages[:2], raw=False, **family.arguments)
    assert tokenizer.decode(ids) == WITH_SYSTEM[family.name]
    assert asked(tokenizer, messages[:2], family) == ids
    if family.rewrites:
        with pytest.raises(
            PromptError, match=r"^a: row 0: the chat template writes message 2 into what stands"
        ):
            check_rows("a", [sft_like(messages)], tokenizer, dict(family.arguments), 200)
        return
    expected = (WITH_SYSTEM[family.name], "".join(ANSWERS[family.name]))
    assert stage1(tokenizer, messages, family, tmp_path) == expected
    check_rows("a", [sft_like(messages)], tokenizer, dict(family.arguments), 200)


def test_turns_that_must_alternate_are_refused_otherwise(family: Family, tokenizer: Any) -> None:
    row = rl_like([USER, USER])
    if family.alternates:
        with pytest.raises(
            PromptError, match=r"^a: row 0: the chat template refuses it: turns must alternate"
        ):
            check_rows("a", [row], tokenizer, dict(family.arguments), 200)
    else:
        check_rows("a", [row], tokenizer, dict(family.arguments), 200)


def model_type(family: Family) -> str:
    import transformers

    return getattr(transformers, family.config).model_type


def test_several_answers_are_refused_where_the_next_turn_rewrites_the_last_one(
    family: Family, tokenizer: Any
) -> None:
    answer = {"role": "assistant", "content": ANSWER}
    row = sft_like([USER, answer, USER, answer])
    if family.name in ("Phi-3", "Qwen3"):
        with pytest.raises(
            PromptError, match=r"^a: row 0: the chat template writes message 2 into what stands"
        ):
            check_rows("a", [row], tokenizer, dict(family.arguments), 200)
    else:
        check_rows("a", [row], tokenizer, dict(family.arguments), 200)


def rl_like(messages: list[dict[str, str]]) -> dict[str, Any]:
    return {"prompt": messages, "extra_info": {"raw": False}}


def sft_like(messages: list[dict[str, str]]) -> dict[str, Any]:
    return {"messages": messages, "extra_info": {"raw": False}}
