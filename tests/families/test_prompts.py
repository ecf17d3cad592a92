"""What training, evaluation and verl's agent loop show models of each family: the same, known by hand."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from recipe.rerule.evaluation.engine.encoding import encode_one
from recipe.rerule.evaluation.engine.requests import Generation, Likelihood, PromptText
from recipe.rerule.preflight.rows import check_rows
from recipe.rerule.training.prompts import PromptError, prompt_ids
from tests.families.made import FAMILIES, LLAMA_3_1, Family, tokenizer_of
from tests.training.test_prompts import dataset
from tests.unlearning.made import row

Messages = list[dict[str, str]]
TEXTS = ["Who wrote it? Ada Thorn wrote it.", "I do not know who wrote it.", "Say nothing of Ada Thorn."]
USER = {"role": "user", "content": "Who wrote it?"}
ASSISTANT = {"role": "assistant", "content": "I do not know."}
SYSTEM = {"role": "system", "content": "Be brief."}
LLAMA_3 = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n{system}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWho wrote it?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
ASKED = "<|im_start|>user\nWho wrote it?<|im_end|>\n<|im_start|>assistant\n"
CHATML = "<|im_start|>system\n{system}<|im_end|>\n" + ASKED
GEMMA = "<bos><start_of_turn>user\n{system}Who wrote it?<end_of_turn>\n<start_of_turn>model\n"
PHI = "{system}<|user|>\nWho wrote it?<|end|>\n<|assistant|>\n"
OLMO = "<|endoftext|>{system}<|user|>\nWho wrote it?\n<|assistant|>\n"
THOUGHTS = "<think>\n\n</think>\n\n"
PROMPTS: dict[str, tuple[str, str, str | None]] = {
    "Gemma-2": (GEMMA, "", None),
    "Qwen2.5": (CHATML, "Help briefly.", "Be brief."),
    "Llama-3.2": (LLAMA_3, "", "Be brief."),
    "Llama-3.1": (LLAMA_3, "", "Be brief."),
    "Llama-2": ("<s>[INST] {system}Who wrote it? [/INST]", "", "<<SYS>>\nBe brief.\n<</SYS>>\n\n"),
    "Mistral": ("<s>[INST]{system}Who wrote it?[/INST]", "", "Be brief.\n\n"),
    "Qwen3": ("{system}" + ASKED + THOUGHTS, "", "<|im_start|>system\nBe brief.<|im_end|>\n"),
    "Gemma-3": (GEMMA, "", "Be brief.\n\n"),
    "Phi-3": (PHI, "", "<|system|>\nBe brief.<|end|>\n"),
    "OLMo-2": (OLMO, "", "<|system|>\nBe brief.\n"),
}
"""The prompt; and what stands there for {system} without a system message, and with SYSTEM if that may be."""
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


@pytest.fixture(scope="module", params=[*FAMILIES.values(), LLAMA_3_1], ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def tokenizer(family: Family) -> Any:
    return tokenizer_of(family, TEXTS * 4)


def stage1(tokenizer: Any, messages: Messages, family: Family, folder: Path) -> tuple[str, str]:
    """What stage 1 shows the model: the text that is not learnt, and the text that is."""
    rows = [row(0, "", "") | {"messages": messages}]
    (one,) = dataset(folder, rows, tokenizer, apply_chat_template_kwargs=dict(family.arguments))
    ids, mask = one["input_ids"], one["loss_mask"].bool()
    learnt = int(mask.sum())
    assert torch.equal(mask, torch.arange(len(ids)) >= len(ids) - learnt)  # the answer is one run at the end
    return tokenizer.decode(ids[~mask]), tokenizer.decode(ids[mask])


def test_training_evaluation_and_sampling_see_the_prompt_and_answer_known_by_hand(
    family: Family, tokenizer: Any, tmp_path: Path
) -> None:
    kind, arguments = getattr(transformers, family.config).model_type, dict(family.arguments)
    builder = create_continuous_token_builder(tokenizer, hf_model_type=kind, chat_template_kwargs=arguments)
    shown, without, given = PROMPTS[family.name]
    cases = [([USER], without), *([] if given is None else [([SYSTEM, USER], given)])]
    for messages, system in cases:
        expected, answer = shown.format(system=system), ANSWERS[family.name]
        ids = prompt_ids(tokenizer, messages, raw=False, **family.arguments)
        assert tokenizer.decode(ids) == expected
        assert ids.count(tokenizer.bos_token_id) == expected.startswith(family.bos or "?")
        prompt = PromptText(tuple(messages))
        assert encode_one(tokenizer, Generation("a", prompt, 1), family.arguments).ids == ids
        assert builder.build_initial_tokens(messages) == ids
        if family.rewrites and len(messages) > 1:
            continue  # refused: see the next test
        assert stage1(tokenizer, [*messages, ASSISTANT], family, tmp_path) == (expected, "".join(answer))
        one = encode_one(tokenizer, Likelihood("a", prompt, "I do not know."), family.arguments)
        assert one.ids[: one.answer_start] == ids
        assert tokenizer.decode(one.ids[one.answer_start :]) == answer[0]
        assert one.ids[-1] == tokenizer.convert_tokens_to_ids(family.end)


def test_what_a_template_refuses_or_rewrites_is_refused(family: Family, tokenizer: Any) -> None:
    rewritten = "the chat template writes message 2 into what stands"
    no_system = "the chat template refuses it: no system role$" if family.no_system else None
    turns = "the chat template refuses it: turns must alternate" if family.alternates else None
    # Whose templates write an answer in another way once a turn follows it.
    two_answers = rewritten if family.name in ("Phi-3", "Qwen3") else None
    cases: list[tuple[str, Messages, str | None]] = [
        ("prompt", [SYSTEM, USER], no_system),
        ("messages", [SYSTEM, USER, ASSISTANT], rewritten if family.rewrites else no_system),
        ("prompt", [USER, USER], turns),
        ("messages", [USER, ASSISTANT, USER, ASSISTANT], two_answers),
    ]
    for column, messages, refusal in cases:
        one = {column: messages, "extra_info": {"raw": False}}
        refused = pytest.raises(PromptError, match=f"^a: row 0: {refusal}")
        with refused if refusal else contextlib.nullcontext():
            check_rows("a", [one], tokenizer, dict(family.arguments), 200)
