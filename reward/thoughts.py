"""What a model thought before it answered, apart from the answer.

A thought stands between two marks of the chat template. The marks known are tags and special tokens of the
names below (<think>, [THINK], <|begin_of_thought|>, <|START_THINKING|>, <seed:think>, Kimi's triangles), the
channels of gpt-oss, and what is left of these channels where special tokens were not decoded
("analysis...assistantfinal..."). A template whose marks are special tokens, and which leaves nothing else,
shows no marks in decoded text, and its thoughts cannot be told from the answer.
"""

from __future__ import annotations

import re

_NAMES = "think(?:ing)?|thoughts?|reason(?:ing)?|reflection|scratchpad"
_NAMED = rf"(?:seed:)?(?:{_NAMES})"
_OPENING = rf"""
    <\|?(?:begin_of_|start_)?{_NAMED}\|?> | \[(?:{_NAMES})\] | \u25c1think\u25b7
    | (?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)[^<]{{0,200}}<\|message\|>
    | \A\s*(?-i:analysis(?=[A-Z"'(]))
"""
_CLOSING = rf"""
    </\|?{_NAMED}\|?> | <\|(?:end_of_|end_){_NAMED}\|> | \[/(?:{_NAMES})\] | \u25c1/think\u25b7
    | (?:<\|end\|>)?(?:<\|start\|>assistant)?<\|channel\|>final[^<]{{0,200}}<\|message\|>
    | (?-i:assistantfinal)
"""
_FLAGS = re.IGNORECASE | re.VERBOSE
_MARK = re.compile(rf"(?P<opening>{_OPENING}) | {_CLOSING}", _FLAGS)
# what some templates put around the answer that follows a thought
_ANSWER_MARK = re.compile(
    r"</?answer> | <\|/?(?:begin_of_|end_of_|start_|end_)(?:solution|response)\|> | <\|(?:return|end)\|>",
    _FLAGS,
)


def split_thought(text: str) -> tuple[str, str]:
    """The thoughts of a response and what is left of it without them, both stripped.

    Where the opening mark is missing, all before the closing mark is thought. A thought that does not end
    goes on to the end of the text, so that a response of nothing else is "". A text without marks stays as it
    is.
    """
    thoughts: list[str] = []
    answers: list[str] = []
    thinking, place = False, 0
    for mark in _MARK.finditer(text):
        opens = mark["opening"] is not None
        if opens and thinking:
            continue
        (thoughts if thinking else answers).append(text[place : mark.start()])
        if not opens and not thinking:  # the template has written the opening into the prompt
            thoughts += answers
            answers = []
        thinking, place = opens, mark.end()
    if not place:
        return "", text
    (thoughts if thinking else answers).append(text[place:])
    answer = _ANSWER_MARK.sub(" ", " ".join(answers))
    return "\n".join(part.strip() for part in thoughts).strip(), answer.strip()


def with_thought(thought: str, answer: str) -> str:
    """The answer behind its thought, as DeepSeek-R1 and Qwen3 write it; alone where there is none."""
    return f"<think>\n{thought}\n</think>\n\n{answer}" if thought else answer
