"""Fluency: how varied the words of generated text are, which falls where a model repeats itself.

The weighted entropy of word pairs and triples (Zhang et al. 2018; RWKU's eval_fluency.py,
github.com/jinzhuoran/RWKU, commit b8a03b3c): (2/3 H_2 + 4/3 H_3) / 2, where H_n is the entropy in bits of a
text's n-grams. RWKU's table shows 100 times the mean over texts.

Words are those of NLTK's Treebank tokeniser. RWKU splits sentences first with NLTK's punkt model, which has
to be downloaded ("punkt"); "rules", the default, splits them where ".", "?" or "!" ends a word and white
space and no small letter follow. Only where a full stop is a token of its own can the two differ.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from recipe.rerule.evaluation.engine.requests import Answers, Generation, PromptText, Request
from recipe.rerule.evaluation.statistics.samples import Samples, Statistic, mean_of

MAX_TOKENS = 256
WEIGHTS = {2: 2 / 3, 3: 4 / 3}
"""Weight of the n-grams' entropy by n."""
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?![a-z])")
Splitter = Callable[[str], list[str]]


def requests(instructions: Sequence[str]) -> list[Request]:
    """A greedy generation an instruction, as RWKU asks: "Instruction: ..." as user turn, 256 tokens, no stop
    string. Tokenised with two BOS where the chat template writes one, as there.
    """
    return [
        Generation(_request_id(number), _prompt(instruction), MAX_TOKENS)
        for number, instruction in enumerate(instructions)
    ]


def records(instructions: Sequence[str], answers: Answers, sentences: str = "rules") -> list[dict[str, Any]]:
    """A record an instruction, in order: index, prompt, response, entropy in bits.

    Raises ValueError where an answer is missing, or as `n_gram_entropy` does.
    """
    found = []
    for number, instruction in enumerate(instructions):
        if _request_id(number) not in answers:
            raise ValueError(f"no answer to instruction {number} ({_request_id(number)})")
        text = answers[_request_id(number)].text
        entropy = n_gram_entropy(text, sentences)
        found.append({"index": number, "prompt": instruction, "response": text, "entropy": entropy})
    return found


def samples(records: Sequence[dict[str, Any]]) -> Samples:
    """The entropy of every record."""
    return {"fluency": {"entropy": np.array([record["entropy"] for record in records], np.float64)}}


STATISTICS: dict[str, Statistic] = {"fluency": mean_of("entropy", ["fluency"])}
"""The mean entropy, in bits."""


def n_gram_entropy(text: str, sentences: str = "rules") -> float:
    """The weighted n-gram entropy of one text, in bits; 0 for texts without word pairs.

    Args:
        text: as generated.
        sentences: "rules" or "punkt", see the top of this module.

    Raises:
        ValueError: another value, or "punkt" where NLTK has no such data.
    """
    tokens = words(text, sentences)
    return sum(weight * _entropy(tokens, n) for n, weight in WEIGHTS.items()) / len(WEIGHTS)


def words(text: str, sentences: str = "rules") -> list[str]:
    """The Treebank tokens of a text. Raises ValueError as `n_gram_entropy` does."""
    from nltk.tokenize import NLTKWordTokenizer  # loads nltk, which takes over a second

    if sentences not in SPLITTERS:
        raise ValueError(f"unknown sentences {sentences!r}; choose one of {', '.join(SPLITTERS)}")
    tokenizer = NLTKWordTokenizer()
    return [word for sentence in SPLITTERS[sentences](text) for word in tokenizer.tokenize(sentence)]


def _request_id(number: int) -> str:
    return f"fluency/{number}"


def _prompt(instruction: str) -> PromptText:
    turn = {"role": "user", "content": f"Instruction: {instruction}\n"}
    return PromptText((turn,), double_bos=True)


def _entropy(tokens: Sequence[str], n: int) -> float:
    counts = Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
    total = counts.total()
    return -sum(count / total * math.log2(count / total) for count in counts.values())


def _by_rules(text: str) -> list[str]:
    return _SENTENCE_END.split(text)


def _by_punkt(text: str) -> list[str]:
    from nltk.tokenize import sent_tokenize

    try:
        return sent_tokenize(text)
    except LookupError as error:
        raise ValueError(
            'NLTK\'s punkt data are not installed: python -m nltk.downloader punkt_tab, or sentences "rules"'
        ) from error


SPLITTERS: dict[str, Splitter] = {"rules": _by_rules, "punkt": _by_punkt}
"""How a text is cut into sentences, by name."""
