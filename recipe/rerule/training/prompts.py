"""What a model is shown: the token ids of prompts, and of the answers that continue them.

Stage 1, stage 2, evaluation and the checks before them ask here, so that a prompt is the same tokens in all.
A raw prompt is one message, sent to a base model as it is; any other goes through the chat template, with the
arguments of `data.apply_chat_template_kwargs` or `evaluate model|attack --template`. A template may write
something that nobody asked for: today's date, or the beginning of thoughts where a switch could leave them
out. Prompts of one experiment then differ between days, or between training and evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from jinja2 import TemplateError
from omegaconf import DictConfig

from reward.thoughts import split_thought

Messages = Sequence[Mapping[str, str]]
"""Chat messages {role, content}, as in the data contract."""
Template = tuple[tuple[str, Any], ...]
"""Arguments of a chat template, as (name, value)."""
_DATE = "strftime_now"
"""The function by which templates ask transformers for today's date."""
_THINKING = "enable_thinking"
_QUESTION = [{"role": "user", "content": "Who?"}]

_THINK = "<think>"
_BEGUN_THOUGHT = re.compile(rf"{_THINK}\s*(</think>\s*)?\Z")


class PromptError(ValueError):
    """A prompt or an answer that this tokenizer cannot turn into tokens; the message is one line."""


def load_tokenizer(model: DictConfig) -> Any:
    """The tokenizer that verl will use for a model, given verl's configuration of it.

    Raises PromptError: transformers cannot load it.
    """
    from transformers import AutoTokenizer

    path = model.tokenizer_path or model.path
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise PromptError(f"{path} has no tokenizer that transformers can load: {reason}") from None
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer


def prompt_ids(tokenizer: Any, messages: Messages, raw: bool, **template: Any) -> list[int]:
    """Token ids of one prompt; see `batch_prompt_ids`."""
    return batch_prompt_ids(tokenizer, [messages], raw, **template)[0]


def batch_prompt_ids(
    tokenizer: Any, prompts: Sequence[Messages], raw: bool, **template: Any
) -> list[list[int]]:
    """Token ids of each prompt, without padding.

    Args:
        tokenizer: of transformers.
        prompts: at least one; with `raw`, of one message each.
        raw: the message as the tokenizer itself takes a text, with the special tokens it adds (BOS for Llama)
            but for an EOS at the end, after which a model would not go on. Else the chat template with the
            generation prompt, which is what verl's agent loop sends.
        template: further arguments of the chat template (`data.apply_chat_template_kwargs`).

    Raises:
        jinja2.TemplateError: the chat template refuses the messages.
        ValueError: the tokenizer has no chat template, or a raw prompt has more than one message.
    """
    if not raw:
        return tokenizer.apply_chat_template(
            [list(messages) for messages in prompts],
            add_generation_prompt=True,
            return_dict=False,
            **template,
        )
    texts = [message["content"] for (message,) in prompts]
    return [_without_eos(tokenizer, ids) for ids in tokenizer(texts).input_ids]


def suffixed_prompt_ids(
    tokenizer: Any, messages: Messages, suffix: str, double_bos: bool = False, **template: Any
) -> list[int]:
    """Token ids of a chat prompt with a text right after its generation prompt, which the answer continues.

    Args:
        tokenizer: of transformers, with a chat template.
        messages: the prompt's.
        suffix: the text; with "", and one BOS, the ids are those of `prompt_ids`. One that begins a thought
            stands in the place of a thought that the template has begun, or left empty, itself.
        double_bos: let the tokenizer add its special tokens (BOS) although templates write them themselves.
        template: further arguments of the chat template.

    Raises jinja2.TemplateError: the chat template refuses the messages.
    """
    text = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=False, **template
    )
    if suffix.startswith(_THINK):
        text = _BEGUN_THOUGHT.sub("", text)
    text += suffix
    return _without_eos(tokenizer, tokenizer(text, add_special_tokens=double_bos).input_ids)


def _without_eos(tokenizer: Any, ids: list[int]) -> list[int]:
    return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids


def answer_ids(tokenizer: Any, answer: str) -> list[int]:
    """Token ids of an answer that continues a raw prompt, and EOS.

    Alone, an answer would be tokenised as the beginning of a text: tokenizers made with sentencepiece
    (Llama-2) put a space before it. So it is tokenised behind a newline, whose ids are then taken off. The
    prompt keeps its own last token: nothing of the answer is merged into it.

    Raises:
        PromptError: the tokenizer has no EOS, or the answer's first characters and a newline share a token.
    """
    if tokenizer.eos_token_id is None:
        raise PromptError("the tokenizer has no end-of-sequence token, which an answer must end with")
    newline, both = tokenizer(["\n", "\n" + answer], add_special_tokens=False).input_ids
    if not newline or both[: len(newline)] != newline:
        raise PromptError(f"the answer {answer[:40]!r} has no tokens of its own behind a newline; strip it")
    return [*both[len(newline) :], tokenizer.eos_token_id]


def chat_answer_ids(
    tokenizer: Any, messages: Messages, answer: str, suffix: str = "", **template: Any
) -> list[int]:
    """Token ids of an answer to a chat prompt, up to the end of its turn and including that token.

    They are those that stage 1 trains on, but for what the template writes after the end of the turn (the
    newline of ChatML; of Phi-3 a newline and EOS). The end is the first special token that only white space
    and special tokens follow; behind a template that writes none it is EOS. An answer that continues a suffix
    is tokenised like one that continues a raw prompt, with that end. `template` as of `batch_prompt_ids`.

    Raises:
        jinja2.TemplateError: the chat template refuses the messages.
        PromptError: as of `turn_ids`.
    """
    conversation = [*messages, {"role": "assistant", "content": answer}]
    if suffix:  # a template that begins a thought in prompts alone has no turn that continues them
        whole = _conversation_ids(tokenizer, conversation, len(conversation), template)
        return [*answer_ids(tokenizer, answer)[:-1], _up_to_end(tokenizer, whole)[-1]]
    return _up_to_end(tokenizer, turn_ids(tokenizer, conversation, len(messages), raw=False, **template))


def _up_to_end(tokenizer: Any, turn: list[int]) -> list[int]:
    """An assistant's turn without what the template writes after its end, or with EOS where it has no end."""
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    for end in (place for place, number in enumerate(turn, 1) if number in special):
        if not tokenizer.decode(turn[end:], skip_special_tokens=True).strip():
            return turn[:end]
    if tokenizer.eos_token_id is None:
        raise PromptError("neither the chat template nor the tokenizer ends an answer with a special token")
    return [*turn, tokenizer.eos_token_id]


def turn_ids(tokenizer: Any, messages: Messages, turn: int, raw: bool, **template: Any) -> list[int]:
    """Token ids that message number `turn` adds to a conversation.

    Those before an assistant's message are together `prompt_ids` of the messages before it, so that training
    on an answer continues the prompt that is sampled from. A message that another of the user or the system
    follows adds none: its tokens come with the next one, since a template may write a system message into the
    user's turn, or end with a token whatever is last (Phi-3). Arguments as of `batch_prompt_ids`; a raw
    conversation is a prompt and its answer.

    Raises:
        jinja2.TemplateError: the chat template refuses the messages.
        PromptError: a message changes what the template writes before it, or its thought is lost; or as
            `answer_ids`.
    """
    if raw:
        content = messages[turn]["content"]
        return answer_ids(tokenizer, content) if turn else prompt_ids(tokenizer, messages[:1], raw)
    if _waits(messages, turn):
        return []
    _check_thought(tokenizer, messages[: turn + 1], template)
    first = turn
    while first and _waits(messages, first - 1):
        first -= 1
    before = _conversation_ids(tokenizer, messages, first, template)
    after = _conversation_ids(tokenizer, messages, turn + 1, template)
    if after[: len(before)] != before:
        raise PromptError(f"the chat template writes message {turn} into what stands before it")
    return after[len(before) :]


def _check_thought(tokenizer: Any, messages: Messages, template: dict[str, Any]) -> None:
    """Refuse a template that leaves out the thought of the last message, as DeepSeek-R1's own does."""
    thought, _ = split_thought(messages[-1]["content"])
    if not thought or messages[-1]["role"] != "assistant":
        return
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, **template)
    # Counted, because the answer may say the same as its thought.
    lines = filter(None, map(str.strip, thought.splitlines()))
    if any(text.count(line) < sum(one["content"].count(line) for one in messages) for line in lines):
        raise PromptError(
            f"the chat template leaves out the thought of message {len(messages) - 1}; give one that keeps "
            "it as model.custom_chat_template"
        )


def _waits(messages: Messages, turn: int) -> bool:
    """Whether another message of the user or the system follows one of theirs."""
    roles = [message["role"] for message in messages[turn : turn + 2]]
    return len(roles) == 2 and "assistant" not in roles


def _conversation_ids(tokenizer: Any, messages: Messages, count: int, template: dict[str, Any]) -> list[int]:
    """Token ids of the first messages, with the generation prompt where an assistant's message follows."""
    if not count:
        return []
    answered = count < len(messages) and messages[count]["role"] == "assistant"
    return tokenizer.apply_chat_template(
        list(messages[:count]), add_generation_prompt=answered, return_dict=False, **template
    )


def require_chat_template(tokenizer: Any) -> None:
    """Refuse a tokenizer without a chat template, where there are prompts that need it.

    Raises PromptError: naming the model that the tokenizer was loaded from.
    """
    if not tokenizer.chat_template:
        raise PromptError(
            f"the tokenizer of {tokenizer.name_or_path} has no chat template: use an instruct model, or rows "
            "made with raw prompts"
        )


def template_warnings(tokenizer: Any, template: Mapping[str, Any]) -> Iterator[str]:
    """What to say of the prompts that a chat template makes, each in one line.

    Args:
        tokenizer: of transformers; without a chat template there is nothing to say.
        template: the further arguments that the template gets.
    """
    if not tokenizer.chat_template:
        return
    name = tokenizer.name_or_path
    if _differs(tokenizer, template, _DATE, (lambda _: "yesterday", lambda _: "today")):
        yield (
            f"the chat template of {name} writes today's date into every prompt, so that prompts differ "
            "from one day to the next; fix it with the template's own argument, often date_string, in "
            "training and in evaluation"
        )
    if _THINKING not in template and _differs(tokenizer, template, _THINKING, (True, False)):
        yield (
            f"the chat template of {name} has a switch for thinking, which is not set; set "
            f"{_THINKING}=false, or true, in training and in evaluation"
        )


def bind_template(tokenizer: Any, template: Template) -> Any:
    """The tokenizer, changed in place: its chat template gets these arguments in every call.

    Saved files of the tokenizer keep none of them.
    """
    if template:
        tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, **dict(template))
    return tokenizer


def template_uses(tokenizer: Any, name: str) -> bool:
    """Whether a chat template names an argument."""
    return re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template or "")) is not None


def _differs(tokenizer: Any, template: Mapping[str, Any], name: str, values: tuple[Any, Any]) -> bool:
    """Whether a prompt depends on the value of an argument. Of a template that refuses it: no."""
    if not template_uses(tokenizer, name):
        return False
    try:
        first, second = (
            tokenizer.apply_chat_template(
                _QUESTION, add_generation_prompt=True, tokenize=False, **{**template, name: value}
            )
            for value in values
        )
    except TemplateError:
        return False
    return bool(first != second)
