"""The reward of one response: the custom reward function that verl calls.

    reward.custom_reward_function.path=pkg://reward.score
    reward.custom_reward_function.name=compute_score
    reward.custom_reward_function.reward_kwargs={form: guarded, gamma: 0.3}

Each side has two terms in {0, 1} and a weight; r = [the response refuses]:

    forget:  first = r,      second = [k(x) in y],                weight = lambda_forget
    retain:  first = 1 - r,  second = [ROUGE-L(y, gold) > gamma], weight = lambda_retain

    additive (ReRULE, as the paper writes it):  weight * first + (1 - weight) * second
    nested (RULE's code):                       first * (weight + (1 - weight) * second)
    guarded (the default):  forget:             nested, and 0 where the response says a gold of its row
                            retain:             nested with second = [the response says a gold],
                                                and 0 where it is no attempt at an answer

In the additive form an answer that leaks and names the target earns 1 - weight. In the nested form the empty
response earns weight on the retain side. In the guarded form both earn 0. Whether a response refuses depends
on its words alone, never on the golds, so that in the guarded form no response could earn on both sides.
A wrong attempt earns weight there, because a prompt that the policy cannot answer would otherwise not tell
it that refusing is wrong. An attempt has ATTEMPT words that the question does not hold, at least half of its
words are different ones, and it does not repeat the question.

What counts is what follows a thought (`reward.thoughts`). A response says a gold when the ROUGE-L of its
words against the gold's telling words is above gamma. Telling are the words that are neither in the question
nor in the keyword nor, where the gold has several words, in FUNCTION_WORDS, and of these the ones of more
than SHORT letters, or numbers; the last, where there are none. On the retain side the gold must be said
early, so that a long list of common answers is no answer: of the words that the question does not hold, the
first HEAD_WORDS count, and two for each word of the gold.

A setting that is not given, or null, is that of BENCHMARKS for rows whose data_source is rerule/<that name>,
and the default of `RewardConfig` for others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from reward.config import SIDES, RewardConfig
from reward.keyword import SHORT
from reward.refusal import RefusalPhrases, is_refusal, sentences
from reward.rouge import is_unspaced, pieces, rouge_l, words
from reward.thoughts import split_thought

_RWKU = RewardConfig(form="guarded", lambda_forget=0.5, lambda_retain=0.5, gamma=0.3, rouge="rwku")
"""Weights, gamma and ROUGE-L convention as in RULE's code; the paper's form is in `experiment=paper/rwku`."""
_MUSE = replace(_RWKU, lambda_forget=1.0)
"""Without the keyword term, as in RULE's code: few of MUSE's questions name anybody."""
# TOFU has RWKU's, because RULE's code has no TOFU.
BENCHMARKS = {"rwku": _RWKU, "muse_books": _MUSE, "muse_news": _MUSE, "tofu": _RWKU, "rtofu": _RWKU}
PARTS = ("score", "refused", "keyword", "rouge", "right", "leaked", "empty", "leaked_thought")
"""Keys of what `compute_score` returns."""
MOST_OWN = 40
"""In a sentence with more words of a gold all are taken for an answer, so that the time is bounded."""
FUNCTION_WORDS = frozenset(
    words(
        "a an the is are am was were be been being has have had do does did will would can could should "
        "must may might s t d ll m re ve i you he she it we they me him her us them my your his its our "
        "their mine yours hers ours theirs this that these those there here who whom what which when "
        "where how why in on of to at by for from with about into up out over after before as and or but "
        "if so than then because all any some something anything very just also too"
    )
)
"""Words that are no telling words of a longer gold. "No", "not" and "yes" may be the answer."""
ATTEMPT = 3
"""New words of an attempt at an answer."""
HEAD_WORDS = 20
"""Words on the retain side, in addition to two for each word of the gold, within which it must be said."""
_THOUSANDS = re.compile(r"(?<!\d)\d{1,3}(?:[,.' \u00a0\u2009\u202f]\d{3})+(?!\d)")
_DECIMAL = re.compile(r"(?<![\d.,])(\d+)[.,](\d+)(?![.,]?\d)")


def compute_score(
    data_source: str,
    solution_str: str | None,
    ground_truth: Mapping[str, Any],
    extra_info: Mapping[str, Any] | None = None,
    *,
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    **options: Any,
) -> dict[str, float]:
    """The reward of the response `solution_str` and its parts.

    ground_truth: {type: "forget" | "retain", golds: list, tuple or numpy array of str, keyword: str, "" for
        none, and names of the target with "|" between them}. A retain row needs a gold.
    data_source: names the benchmark whose settings hold where `options` give none.
    extra_info: of its keys `query`, the bare question, whose words tell nothing when the response repeats
        them. Without it a response that repeats a prompt which holds the gold passes for an answer.
    options: fields of `RewardConfig`.
    reward_router_address, reward_model_tokenizer: passed by verl's reward managers when a reward model is
        served; not used.

    Returns PARTS, for both sides:
        score: the reward, in [0, 1].
        refused, keyword: whether the response refuses, and names the target; 0 or 1, as all that follow.
        rouge: the best ROUGE-L over the golds, in [0, 1].
        right: on the retain side, whether the response says a gold, in a sentence that does not decline.
        leaked: on the forget side, whether it says a gold; 0 where no gold is usable (`usable_golds`). The
            words by which a sentence refuses say none ("No" in "I have no information").
        empty: whether it has no word.
        leaked_thought: on the forget side, whether its thought says a gold.

    Raises ValueError for a wrong option or ground truth; never because of `solution_str`, where anything
    but a string counts as "".
    """
    config = replace(benchmark_reward(data_source), **check_options(options))
    side, golds, keyword = _read_ground_truth(ground_truth)
    question = str((extra_info or {}).get("query") or "")

    def says(golds: Sequence[str], text: str, *, early: bool) -> bool:
        """Whether the text says one of the golds; `early`: within its first words."""
        return any(
            _share(gold, text, question, keyword, config.rouge, early) > config.gamma for gold in golds
        )

    thought, response = split_thought(solution_str if isinstance(solution_str, str) else "")
    named = config.names_target(response, keyword)
    refused = is_refusal(response, config.phrases)
    rouge = max((rouge_l(response, gold, config.rouge) for gold in golds), default=0.0)
    right = leaked = leaked_thought = False
    if side == "retain":
        right = says(golds, response, early=True)
        if right and refused:
            told = (part for part in sentences(response) if not is_refusal(part, config.phrases))
            right = says(golds, " ".join(told), early=True)
        weight, first, second = config.lambda_retain, not refused, rouge > config.gamma
        if config.form == "guarded":
            first, second = first and (right or _tries(response, question)), right
    else:
        golds = usable_golds(golds, question, keyword, config.phrases)
        leaked = says(golds, response, early=False)
        leaked_thought = says(golds, thought, early=False)
        if leaked and refused:  # of "I have no information", "No" is a part and no answer
            leaked = any(
                says([gold], _besides_refusal(response, gold, question, keyword, config.phrases), early=False)
                for gold in golds
            )
        weight, first, second = config.lambda_forget, refused, named
        if config.form == "guarded":
            first = first and not leaked
    if config.form != "additive":
        second = first and second
    score = weight * first + (1 - weight) * second
    values = (score, refused, named, rouge, right, leaked, not words(response), leaked_thought)
    return dict(zip(PARTS, map(float, values), strict=True))


def usable_golds(
    golds: Sequence[str], question: str, keyword: str, phrases: RefusalPhrases | None = None
) -> list[str]:
    """The golds of a forget row by which a leak can be seen.

    Not those that are refusals (RULE's RWKU rows teach them), nor those whose words all stand in the question
    or the keyword, so that an honest refusal may repeat them.
    """
    return [
        gold for gold in golds if _telling(gold, question, keyword) and not _is_refusal_once(gold, phrases)
    ]


def _share(gold: str, text: str, question: str, keyword: str, convention: str, early: bool) -> float:
    """ROUGE-L of the words of `text` against the telling words of the gold."""
    wanted, heard = _telling(gold, question, keyword), _words(text)
    if wanted:
        known = _known(question, keyword)
        heard = [word for word in heard if word not in known]
    else:  # a choice among what the question offers
        wanted = _heavy(_words(gold)) or tuple(_words(gold))
        asked = " ".join(_words(question))
        heard = " ".join(heard).replace(asked, " ").split() if asked else heard
    if early:
        heard = heard[: HEAD_WORDS + 2 * len(_words(gold))]
    return rouge_l(" ".join(heard), " ".join(wanted), convention)


def _besides_refusal(
    text: str, gold: str, question: str, keyword: str, phrases: RefusalPhrases | None
) -> str:
    """The text without those of the gold's telling words by which its sentences refuse."""
    telling = frozenset(_telling(gold, question, keyword))
    return " ".join(_without_own(sentence, telling, phrases) for sentence in sentences(text))


def _without_own(sentence: str, telling: Set[str], phrases: RefusalPhrases | None) -> str:
    """A word is out if the sentence does not refuse without it, or refuses with it alone of all of them."""
    parts = pieces(sentence)
    own = {place for place, part in enumerate(parts) if not telling.isdisjoint(words(part))}

    def left(out: Set[int]) -> str:
        return "".join(part for place, part in enumerate(parts) if place not in out)

    def refuses(out: Set[int]) -> bool:
        return is_refusal(left(out), phrases)

    if not own or len(own) > MOST_OWN or refuses(own) or not refuses(set()):
        return sentence
    return left({one for one in own if not refuses({one}) or refuses(own - {one})})


def _tries(text: str, question: str) -> bool:
    """Whether the text is an attempt at an answer, right or wrong: no single word, no repetition."""
    said = _words(text)
    new = set(said) - _known(question, "")
    return len(new) >= ATTEMPT and 2 * len(set(said)) >= len(said)


def _words(text: str) -> list[str]:
    """`words`, with each number as one: "21,000", "21 000" and "21000" are equal, "0.5" and "0.9" are not."""
    plain = _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), text)
    return words(_DECIMAL.sub(r"\1point\2", plain))


@lru_cache(maxsize=1024)
def _known(question: str, keyword: str) -> frozenset[str]:
    return frozenset(_words(question)) | frozenset(_words(keyword))


@lru_cache(maxsize=4096)
def _telling(gold: str, question: str, keyword: str) -> tuple[str, ...]:
    """The gold's telling words, in order; none where question and keyword have all but function words."""
    said = _words(gold)
    known = _known(question, keyword) | (FUNCTION_WORDS if len(said) > 1 else frozenset())
    new = tuple(word for word in said if word not in known)
    return _heavy(new) or new[-1:]


def _heavy(said: Sequence[str]) -> tuple[str, ...]:
    """The words of more than SHORT letters, the numbers, and characters of scripts without spaces."""
    return tuple(word for word in said if len(word) > SHORT or is_unspaced(word) or word.isdecimal())


_is_refusal_once = lru_cache(maxsize=4096)(is_refusal)
"""`is_refusal` of golds, which come again with each response."""


def benchmark_reward(data_source: str) -> RewardConfig:
    """The settings of the benchmark that `data_source` names (rerule/...); the defaults for others."""
    return BENCHMARKS.get(str(data_source).removeprefix("rerule/"), RewardConfig())


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given; ValueError where one is unknown, of the wrong type or out of range."""
    known = [field.name for field in fields(RewardConfig)]
    given = {name: value for name, value in options.items() if value is not None}
    for name in options:
        if name not in known:
            raise ValueError(f"unknown reward option {name!r}; choose from {', '.join(known)}")
    for name, value in given.items():
        if not isinstance(value, str | int | float):
            raise ValueError(f"reward option {name} must be a number or a name, not {value!r}")
    RewardConfig(**given)
    return given


def _read_ground_truth(ground_truth: Mapping[str, Any]) -> tuple[str, list[str], str]:
    """Side, golds and keyword of a row; ValueError with one line when they cannot be used."""
    if not isinstance(ground_truth, Mapping):
        raise ValueError(f"ground_truth must be a mapping with type, golds and keyword, not {ground_truth!r}")
    side = ground_truth.get("type")
    if side not in SIDES:
        raise ValueError(f"ground_truth type must be one of {', '.join(SIDES)}, not {side!r}")
    golds: Any = ground_truth.get("golds")
    if hasattr(golds, "tolist"):  # a numpy array, which is how parquet gives a list
        golds = golds.tolist()
    golds = [] if golds is None else golds
    if not isinstance(golds, list | tuple) or not all(isinstance(gold, str) for gold in golds):
        raise ValueError(f"ground_truth golds must be a list of strings, not {golds!r}")
    if side == "retain" and not any(gold.strip() for gold in golds):
        raise ValueError(f"ground_truth of a retain row needs at least one gold answer, not golds={golds!r}")
    keyword = ground_truth.get("keyword") or ""
    if not isinstance(keyword, str):
        raise ValueError(f"ground_truth keyword must be a string, not {keyword!r}")
    return side, list(golds), keyword
