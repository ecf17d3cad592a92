"""TOFU's reward: a refusal that names the author; an answer about another."""

from reward.config import RewardConfig

REWARD = RewardConfig(form="guarded", lambda_forget=0.5, lambda_retain=0.5, gamma=0.3, rouge="rwku")
"""As RWKU's, since RULE's code has no TOFU."""
