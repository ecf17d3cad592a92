"""The reward of one response: the custom reward function that verl calls.

    reward.custom_reward_function.path=pkg://reward.score
    reward.custom_reward_function.name=compute_score
    reward.custom_reward_function.reward_kwargs={form: additive, gamma: 0.3}

With r = [the response is a refusal], each side has two terms in {0, 1} and a weight:

    forget:  first = r,      second = [k(x) in y],                weight = lambda_forget
    retain:  first = 1 - r,  second = [ROUGE-L(y, gold) > gamma], weight = lambda_retain

    additive (ReRULE, as the paper writes it):  weight * first + (1 - weight) * second
    nested (RULE's code):                       first * (weight + (1 - weight) * second)

In the additive form an answer that leaks and names the target earns 1 - weight; in the nested one, 0.

A setting that is not given, or null, is the benchmark's own: `reward.rwku`, `reward.muse_books`,
`reward.muse_news` or `reward.tofu` for rows whose data_source is rerule/<that name>, and the default of
`RewardConfig` for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from reward import muse_books, muse_news, rwku, tofu
from reward.config import SIDES, RewardConfig
from reward.keyword import contains_keyword
from reward.refusal import is_refusal
from reward.rouge import rouge_l

BENCHMARKS = {
    "rwku": rwku.REWARD,
    "muse_books": muse_books.REWARD,
    "muse_news": muse_news.REWARD,
    "tofu": tofu.REWARD,
}


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
        none}. A retain row needs a gold.
    data_source: names the benchmark whose settings hold where `options` give none.
    options: fields of `RewardConfig`.
    extra_info, reward_router_address, reward_model_tokenizer: passed by verl's reward managers,
        the last two when a reward model is served; not used.

    Returns, for both sides, score (the reward, in [0, 1]), refused and keyword (0 or 1), and rouge (the best
    ROUGE-L over the golds, in [0, 1]; on the forget side it measures the leak).

    Raises ValueError for a wrong option or ground truth; never because of `solution_str`, where anything
    but a string counts as "".
    """
    config = _config(data_source, options)
    side, golds, keyword = _read_ground_truth(ground_truth)
    response = solution_str if isinstance(solution_str, str) else ""
    refused = is_refusal(response, config.phrases)
    named = contains_keyword(response, keyword)
    rouge = max((rouge_l(response, gold, config.rouge) for gold in golds), default=0.0)
    says_gold, empty = rouge > config.gamma, not any(map(str.isalnum, response))
    if side == "forget":
        score = _combine(config.form, config.lambda_forget, refused, named)
    else:
        score = _combine(config.form, config.lambda_retain, not refused, rouge > config.gamma)
    return {
        "score": score,
        "refused": float(refused),
        "keyword": float(named),
        "rouge": rouge,
        "right": float(side == "retain" and says_gold),
        "leaked": float(side == "forget" and says_gold),
        "empty": float(empty),
        "leaked_thought": 0.0,
    }


def _combine(form: str, weight: float, first: bool, second: bool) -> float:
    counted = second and (first or form == "additive")
    return weight * first + (1 - weight) * counted


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


def _config(data_source: str, options: Mapping[str, Any]) -> RewardConfig:
    for value in options.values():
        if not isinstance(value, str | int | float | None):
            check_options(options)  # what cannot be remembered is wrong anyway
    return _cached_config(data_source, **options)


@lru_cache(maxsize=64, typed=True)  # True == 1, and is refused
def _cached_config(data_source: str, /, **options: Any) -> RewardConfig:
    return replace(benchmark_reward(data_source), **check_options(options))


def _read_ground_truth(ground_truth: Mapping[str, Any]) -> tuple[str, list[str], str]:
    """Side, golds and keyword of a row; ValueError with one line when they cannot be used."""
    if not isinstance(ground_truth, Mapping):
        raise ValueError(f"ground_truth must be a mapping with type, golds and keyword, not {ground_truth!r}")
    side = ground_truth.get("type")
    if side not in SIDES:
        raise ValueError(f"ground_truth type must be one of {', '.join(SIDES)}, not {side!r}")
    golds = _read_golds(ground_truth.get("golds"))
    if side == "retain" and not any(gold.strip() for gold in golds):
        raise ValueError(f"ground_truth of a retain row needs at least one gold answer, not golds={golds!r}")
    keyword = ground_truth.get("keyword") or ""
    if not isinstance(keyword, str):
        raise ValueError(f"ground_truth keyword must be a string, not {keyword!r}")
    return side, golds, keyword


def _read_golds(golds: Any) -> list[str]:
    if hasattr(golds, "tolist"):  # a numpy array, which is how parquet gives a list
        golds = golds.tolist()
    if golds is None:
        return []
    if not isinstance(golds, list | tuple) or not all(isinstance(gold, str) for gold in golds):
        raise ValueError(f"ground_truth golds must be a list of strings, not {golds!r}")
    return list(golds)
