"""What makes an answer of the right schema wrong; None where nothing does.

Texts are compared as `data_prep.text.normalise` gives them: words in lower case, without punctuation.
"""

from __future__ import annotations

import re

from data_prep.generate.task import Answer, Inputs
from data_prep.text import normalise
from reward.keyword import contains_keyword
from reward.refusal import is_refusal

BLANK_MARK = "___"


def blank_problem(inputs: Inputs, answer: Answer) -> str | None:
    """One blank of three underscores, and the answer not beside it."""
    sentence = answer["sentence"]
    if _blanks(sentence) != [BLANK_MARK]:
        return f"the sentence has not exactly one {BLANK_MARK}"
    if _names(sentence, inputs["answer"]):
        return "the sentence contains the answer"
    return None


def passage_qa_problem(inputs: Inputs, answer: Answer) -> str | None:
    """Questions that differ, and answers that are words of the passage, spaces and line breaks apart."""
    passage = _one_line(str(inputs["passage"]))
    questions = [normalise(pair["question"]) for pair in answer["pairs"]]
    if "" in questions:
        return "a question is empty"
    if len(set(questions)) < len(questions):
        return "two questions are the same"
    for pair in answer["pairs"]:
        if not _names(passage, pair["answer"]) or _one_line(pair["answer"]) not in passage:
            return f"the answer {_short(pair['answer'])} is not in the passage"
    return None


def boundary_problem(inputs: Inputs, answer: Answer) -> str | None:
    """Another question of the same form, about somebody else, with an answer that is one."""
    question, original = answer["question"], str(inputs["question"])
    if not normalise(question) or not normalise(answer["answer"]):
        return "the question or its answer is empty"
    if normalise(question) == normalise(original):
        return "the question is the original one"
    if _blanks(question) != _blanks(original):
        return f"the question has not as many {BLANK_MARK} as the original"
    # "Prince Harry" of "Prince Harry, Duke of Sussex" is the target too
    for name in (str(inputs["target"]), str(inputs["target"]).split(",")[0]):
        if _names(f"{question} {answer['answer']}", name):
            return f"the target {name} is named"
    return "the answer is a refusal" if is_refusal(answer["answer"]) else None


def refusals_problem(inputs: Inputs, answer: Answer) -> str | None:
    """Refusals that all differ, each with the name letter by letter."""
    name, refusals = str(inputs["name"]), answer["refusals"]
    for refusal in refusals:
        if not contains_keyword(refusal, name):
            return f"{_short(refusal)} does not name {name}"
        if not is_refusal(refusal):
            return f"{_short(refusal)} is no refusal"
    return "two refusals are the same" if len(set(map(normalise, refusals))) < len(refusals) else None


def _blanks(text: str) -> list[str]:
    return re.findall("__+", text)


def _names(text: str, words: str | int) -> bool:
    """Whether the words stand in the text, in their order; no words stand nowhere."""
    wanted = normalise(str(words))
    return wanted != "" and f" {wanted} " in f" {normalise(text)} "


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
