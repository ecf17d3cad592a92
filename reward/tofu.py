"""TOFU's reward: a refusal that names the author; an answer about another."""

from reward.config import RewardConfig

REWARD = RewardConfig(form="additive", lambda_forget=0.5, lambda_retain=0.5, gamma=0.3, rouge="rwku")
"""The paper's form, which gives no numbers; RULE's code, which has no TOFU, for the rest."""
