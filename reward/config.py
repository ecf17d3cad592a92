"""The reward's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from reward.keyword import contains_keyword
from reward.refusal import RefusalPhrases, is_refusal, load_phrases
from reward.rouge import check_convention
from reward.thoughts import split_thought

FORMS = ("additive", "nested", "guarded")
SIDES = ("forget", "retain")
MOST_UNSEEN = 0.1
"""The share of the refusals of stage 1 that the reward may miss without a warning."""


@dataclass(frozen=True)
class RewardConfig:
    """The reward's settings; a wrong one raises ValueError.

    form: "additive", "nested" or "guarded", see `reward.score`.
    lambda_forget, lambda_retain: weight of the first term by side, in [0, 1]. The paper gives no value; RULE
        has 0.5, and lambda_forget=1 (no keyword term) on MUSE.
    gamma: the ROUGE-L above which (strictly) an answer says a gold, in [0, 1]; 0.3 is RULE's.
    rouge: the ROUGE-L convention, see `reward.rouge`. RULE's own is "rwku".
    refusal_phrases: file of phrases that extend the refusal detector, see `reward.refusal`; None for none.
    keyword_any_case, keyword_part: what counts as naming the target, see `reward.keyword`.
    """

    form: str = "guarded"
    lambda_forget: float = 0.5
    lambda_retain: float = 0.5
    gamma: float = 0.3
    rouge: str = "unicode"
    refusal_phrases: str | None = None
    keyword_any_case: bool = False
    keyword_part: bool = False

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"unknown reward form {self.form!r}; choose one of {', '.join(FORMS)}")
        for name in ("lambda_forget", "lambda_retain", "gamma"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ValueError(f"reward option {name} must be a number in [0, 1], not {value!r}")
        for name in ("keyword_any_case", "keyword_part"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"reward option {name} must be true or false, not {value!r}")
        check_convention(self.rouge)
        if self.refusal_phrases is not None:
            _load_once(self.refusal_phrases)

    @property
    def phrases(self) -> RefusalPhrases | None:
        """The phrases of `refusal_phrases`, read once a process."""
        return None if self.refusal_phrases is None else _load_once(self.refusal_phrases)

    def names_target(self, text: str, keyword: str) -> bool:
        """Whether a text names the target of a row with this keyword."""
        return contains_keyword(text, keyword, any_case=self.keyword_any_case, part=self.keyword_part)

    def unseen(self, taught: Sequence[str], option: str) -> list[str]:
        """What to say where more than MOST_UNSEEN of the refusals of stage 1 are none to the reward.

        option: the one that takes `refusal_phrases`.
        """
        missed = [text for text in taught if not is_refusal(split_thought(text)[1], self.phrases)]
        if len(missed) <= MOST_UNSEEN * len(taught):
            return []
        return [
            f"the reward does not see {len(missed)} of the {len(taught)} refusals of stage 1 as refusals, "
            f"such as {missed[0]!r}, so that stage 2 would not pay for them; write phrases that such "
            f"refusals have into a file and give it as {option} (docs/rewards.md)"
        ]


@lru_cache(maxsize=8)
def _load_once(path: str) -> RefusalPhrases:
    return load_phrases(path)
