"""Fill-in-the-blank forms of questions, by rules alone.

From a question with its answer, the answer sentence loses what the question asks for. From a question alone,
the question word becomes the blank. The forms are plainer than a language model's, and always there.
"""

from __future__ import annotations

import re

BLANK = "___"

_QUOTED = re.compile(r"[\"“][^\"”]{2,80}[\"”]|(?<!\w)'[^']{2,80}'(?!\w)")
_DATE = re.compile(
    r"\b(?:\d{1,2}(?:st|nd|rd|th)? (?:of )?)?(?:January|February|March|April|May|June|July|August"
    r"|September|October|November|December)(?: \d{1,2}(?:st|nd|rd|th)?)?(?:,? \d{4})?\b|\b\d[\d,./-]*\b"
)
_NAME = re.compile(r"\b[A-Z][\w'’-]*(?:(?: (?:de|da|del|van|von|bin|al|of|the|and))? [A-Z][\w'’-]*)*\+?")
_PARTICIPLE = r"(?-i:born|set|held|made|written|built|found|[a-z]+ed)"
_DANGLING = rf"(?!.* (?:about|as|at|by|for|from|in|like|of|on|to|with|{_PARTICIPLE})$)"
_QUESTION = tuple(
    (re.compile(pattern, re.IGNORECASE), form)
    for pattern, form in (
        (rf"^(?:what|which|who) (is|are|was|were) {_DANGLING}(.+)$", "{1} {0} {blank}."),
        (r"^who (?!(?:did|do|does|has|have|had|can|could|will|would)\b)(.+)$", "{blank} {0}."),
        (rf"^(?:where|when) (is|was|are|were) (.+?) ({_PARTICIPLE}\b.*)$", "{1} {0} {2} in {blank}."),
        (r"^(?:where|when) (is|was|are|were) (.+)$", "{1} {0} in {blank}."),
    )
)


def blank_answer(question: str, answer: str) -> str:
    """The answer sentence with a blank for its first part that the question does not give away.

    Tried in turn: quoted titles, dates and numbers, names, and the last word. The blank is "___", once.
    """
    sentence = _first_sentence(answer)
    for pattern in (_QUOTED, _DATE, _NAME):
        for match in pattern.finditer(sentence):
            told = match[0].strip("\"“”'").casefold() in question.casefold()
            if not told and not (pattern is _NAME and match.start() == 0):
                return sentence[: match.start()] + BLANK + sentence[match.end() :]
    words = sentence.rstrip(".!?").rsplit(" ", 1)
    return f"{words[0]} {BLANK}." if len(words) == 2 else f"{question} The answer is {BLANK}."


def blank_question(question: str) -> str:
    """A sentence with a blank for what the question asks; "...? The answer is ___." where no rule fits."""
    asked = question.strip().rstrip("?").strip()
    for pattern, form in _QUESTION:
        if match := pattern.match(asked):
            filled = form.format(*match.groups(), blank=BLANK)
            return filled[:1].upper() + filled[1:]
    return f"{asked}? The answer is {BLANK}."


def _first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence; all of it where a sentence is very short."""
    match = re.search(r"^.{20,}?[.!?](?=\s+[A-Z\"“]|$)", text.strip(), re.DOTALL)
    return match[0] if match else text.strip()
