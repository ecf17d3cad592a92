"""The rule-based reward: refusal detector, keyword, ROUGE-L, and the score made of them."""

from reward.config import RewardConfig
from reward.keyword import contains_keyword, names_of
from reward.refusal import is_refusal
from reward.rouge import rouge_l
from reward.score import compute_score

__all__ = ["RewardConfig", "compute_score", "contains_keyword", "is_refusal", "names_of", "rouge_l"]
